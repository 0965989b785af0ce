"""What is asked: a client's prompt, who asks, and the request that is decided upon."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import msgspec

from extproc.core.values.instance import Capability
from extproc.core.values.model_site import ModelSite
from extproc.core.values.placement import ANYWHERE, Placement

if TYPE_CHECKING:
    from extproc.core.prompt_text import PromptText


@dataclass(frozen=True, slots=True)
class Conversation:
    """What an engine's chat template makes a prompt of: plain values, as the client sent them."""

    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Any] = ()
    arguments: Mapping[str, Any] = field(default_factory=dict)  # what clients send as `chat_template_kwargs`


Countable = Conversation | tuple[bytes, ...]
"""What can be counted exactly: a conversation, or the parts of one plain prompt."""


class Prompt(msgspec.Struct, frozen=True, kw_only=True):
    """What a client's body asks for, whatever the API it came by."""

    api: str  # chat, completions …
    model: str
    pieces: tuple[bytes, ...]  # the prompt's text as UTF-8, in the order in which the engine sees it
    token_ids: Sequence[int] = ()  # what came as token ids in the place of text
    media_tokens: int = 0  # estimate for images and audio, beside the text
    max_output_tokens: int | None = None  # the client's own cap; 0 where the API produces no tokens
    stream: bool = False
    choices: int = 1  # answers asked for: `n` times the number of prompts
    longest_share: float = 1.0  # of its tokens that stand in one sequence; less where a body holds many prompts
    needs: frozenset[Capability] = frozenset()
    session: str = ""  # what the body says of who or what conversation this is
    cache_salt: str = ""
    reuses_cache: bool = True  # False where the engine must compute all of it anew, whatever it holds
    priority: int | None = None  # as the client claims; lower is more urgent, as vLLM has it
    deferrable: bool = False  # the client says it can wait (service_tier flex or batch)
    countable: Callable[[], Countable | None] | None = None  # made when asked for; None: can only be estimated
    text: PromptText | None = None  # what is known of its text where `pieces` are not here, read by another process
    site: ModelSite | None = None  # where its body names the model; None: that was not looked for


@dataclass(frozen=True, slots=True)
class KvLayout:
    """How an engine cuts prompts into KV blocks, and what name it keeps them under: that of its model or adapter."""

    block_size_tokens: int
    model: str


_TWO_DEVIATIONS = 2.5  # in mean absolute errors, which are 0.8 deviations of a normal error


class RequestClass(StrEnum):
    """What a request's owner waits for."""

    INTERACTIVE = "interactive"  # somebody watches: waiting before the first token and after it weighs alike
    LONG_CONTEXT = "long_context"  # SLOs of its own; its room and its prefill are seconds in anybody's cost
    BATCH = "batch"  # nobody watches: its own waiting weighs half as much


LONG_CONTEXT_TOKENS = 16_000  # prompts from here on are of the class long_context


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """What a request's headers say of who asks, as far as the operator trusts them."""

    tenant: str = ""
    session: str = ""
    priority: int | None = None  # lower is more urgent
    timeout_s: float | None = None  # how long the caller will wait for the whole answer
    request_class: RequestClass | None = None
    placement: Placement = ANYWHERE
    min_quality: str = ""  # floor on the quality of a virtual model's choice, a tier or a number; "": none
    max_cost: str = ""  # ceiling on what its tokens may cost


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """One client request in the terms that routing needs; token counts are estimates before the engine's own."""

    id: str
    api: str  # chat, completions …
    model: str
    prompt_tokens: int
    token_error: float  # mean relative error of such an estimate, 0 where the count is exact
    token_counts: tuple[int, ...]  # what the text's estimate was made from (`tokens.token_counts`); () if not estimated
    media_tokens: int  # part of `prompt_tokens` that did not come as text
    prefix: tuple[int, ...]  # hash chain of the prompt's blocks, first block first
    tokens_per_block: float  # prompt tokens that one block of `prefix` stands for
    max_output_tokens: int | None  # the client's own cap on each answer
    expected_output_tokens: int  # of all its answers together
    output_p50_tokens: int  # half of such answers stay within this length
    output_p90_tokens: int
    stream: bool
    choices: int = 1  # answers asked for
    longest_share: float = 1.0  # of its prompt tokens that stand in one sequence
    needs: frozenset[Capability] = frozenset()
    tenant: str = ""
    session: str = ""  # requests of one session share most of their prompt
    priority: int = 0  # lower is more urgent
    deadline_s: float | None = None  # on the clock of `now`
    request_class: RequestClass = RequestClass.INTERACTIVE
    placement: Placement = ANYWHERE  # what its owner demands of where it is computed
    body_bytes: int = 0  # of the HTTP body, images and all
    chains: Mapping[KvLayout, tuple[int, ...]] = msgspec.field(
        default_factory=dict
    )  # in engines' own blocks, if ids are known

    @property
    def longest_tokens(self) -> float:
        """Prompt tokens of its longest sequence, as estimated."""
        return self.longest_share * self.prompt_tokens

    @property
    def sure_tokens(self) -> float:
        """Tokens that its longest sequence has almost surely: the estimate less two deviations of its error."""
        return self.longest_tokens * max(0.0, 1.0 - _TWO_DEVIATIONS * self.token_error)

    @property
    def context_tokens(self) -> float:
        """Context that its longest sequence needs if it grows to the client's own cap."""
        return self.longest_tokens + (self.max_output_tokens or 0)

    @property
    def doubt_tokens(self) -> float:
        """Tokens by which its longest sequence may be longer or shorter than estimated: two deviations."""
        return self.longest_tokens * _TWO_DEVIATIONS * self.token_error
