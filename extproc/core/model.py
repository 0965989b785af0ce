"""The values that the rest of the program passes around: request, instance, decision, outcome."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import msgspec

from extproc.core.placement import ANYWHERE, Placement


class Lifecycle(StrEnum):
    """What an instance is doing with its life; only `READY` takes new requests."""

    STARTING = "Starting"  # the process exists, its port does not answer yet
    LOADING = "Loading"  # the port answers, the model is not served yet
    READY = "Ready"
    DRAINING = "Draining"  # finishes what it has, takes nothing new
    UNHEALTHY = "Unhealthy"  # does not answer, or answers that it is ill
    STOPPED = "Stopped"  # ended on purpose


class Capability(StrEnum):
    """What a request needs an instance to be able to do."""

    VISION = "vision"
    AUDIO = "audio"
    TOOLS = "tools"
    JSON_SCHEMA = "json_schema"  # or a grammar: constrained output of any kind
    LOGPROBS = "logprobs"
    REASONING = "reasoning"
    EMBEDDINGS = "embeddings"
    RERANK = "rerank"
    TRANSCRIPTION = "transcription"
    IMAGE_GENERATION = "image_generation"


class Role(StrEnum):
    """Which half of a request an instance takes where prefill and decode stand apart."""

    BOTH = "both"  # whole requests, and with a `kv_domain` either half
    PREFILL = "prefill"  # computes prompts for others, answers nobody
    DECODE = "decode"  # answers, with prompts that another one computed


class Load(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What an engine reports about its work at one moment; `None` means unknown, never zero."""

    running: int | None = None  # requests in the batch
    waiting: int | None = None  # requests queued in the engine
    kv_usage: float | None = None  # share of KV blocks held by running requests, 0 to 1


class Host(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How pressed the machine under an instance is; `None` means unknown.

    Pressures are shares of the last 10 s in which some task had to wait for the resource, 0 to 1.
    """

    cpu_pressure: float | None = None
    memory_pressure: float | None = None
    io_pressure: float | None = None
    network_bytes_s: float | None = None  # received and sent, all real interfaces together


class Instance(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One inference instance as its agent publishes it: an engine process on a set of GPUs.

    The record that lies in Redis is this struct as JSON. `address` is what Envoy connects to, `ip:port`.
    `incarnation` differs for every start of the engine: work in flight and cached prefixes belong to it.
    """

    id: str
    incarnation: str
    address: str
    cluster: str  # name of the Envoy cluster that holds the address
    models: tuple[str, ...]  # names it answers to, LoRA adapters included
    lifecycle: Lifecycle
    lifecycle_reason: str = ""
    engine: str = ""  # vllm, llamacpp …
    engine_version: str = ""
    hardware: str = ""  # GPU type as the profile table names it, such as h100_sxm
    tensor_parallel: int = 1
    zone: str = ""
    capabilities: tuple[Capability, ...] | None = None  # None: not known, taken to be able to do everything
    max_model_len_tokens: int | None = None
    block_size_tokens: int | None = None
    kv_blocks: int | None = None  # KV blocks in all
    max_num_seqs: int | None = None  # requests in one batch at the most
    load: Load = Load()
    age_s: float = 0.0  # how old `load` was when the record was published
    work_done: float | None = None  # a count that only grows in one incarnation: tells a restart
    asleep: bool | None = None  # its weights are put away: it serves nothing until somebody wakes it
    loading_progress: float | None = None  # of a start, 0 to 1
    ready_in_s: float | None = None  # when a start is expected to be over, from the publication on
    loras: tuple[str, ...] = ()  # adapters it answers to
    loras_active: tuple[str, ...] = ()  # those that requests use now
    max_loras: int | None = None  # adapters in one batch at the most
    gpus: int | None = None
    interconnect: str = ""  # between the GPUs of one machine: nvlink, pcie …
    fabric: str = ""  # between its machines, and to others for KV transfer: ib, roce, ethernet …
    pipeline_parallel: int = 1
    data_parallel: int = 1
    expert_parallel: int = 1
    nodes: int = 1  # machines it spans
    price_per_hour: float | None = None  # of the whole instance, in the operator's currency
    precision: str = ""  # of the weights, such as fp8
    tags: dict[str, str] = {}
    network_limit_bytes_s: float | None = None  # what its machine's network can carry, both directions together
    role: Role = Role.BOTH
    kv_domain: str = ""  # instances of one domain can hand KV blocks to each other; "": to nobody
    kv_bytes_per_token: int | None = None  # of its KV cache, over all layers and GPUs
    kv_transfer_bytes_s: float | None = None  # at which it hands KV blocks over, or takes them
    host: Host | None = None  # told by an agent on the same machine
    kv_events: bool = False  # its agent writes down what its engine says that it holds

    @property
    def key(self) -> str:
        """Name of this start of the instance; ledger, prefixes and cool-downs are kept under it."""
        return f"{self.id}@{self.incarnation}"


@dataclass(frozen=True, slots=True)
class Conversation:
    """What an engine's chat template makes a prompt of: plain values, as the client sent them."""

    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Any] = ()
    arguments: Mapping[str, Any] = field(default_factory=dict)  # what clients send as `chat_template_kwargs`


Countable = Conversation | tuple[bytes, ...]
"""What can be counted exactly: a conversation, or the parts of one plain prompt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
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


@dataclass(frozen=True, slots=True)
class KvLayout:
    """How an engine cuts prompts into KV blocks, and what name it keeps them under: that of its model or adapter."""

    block_size_tokens: int
    model: str


_TWO_DEVIATIONS = 2.5  # in mean absolute errors, which are 0.8 deviations of a normal error


class RequestClass(StrEnum):
    """What a request's owner waits for."""

    INTERACTIVE = "interactive"  # somebody watches: the first token counts
    LONG_CONTEXT = "long_context"  # a prompt so long that KV room and prefill decide
    BATCH = "batch"  # nobody waits: throughput and money count


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """What a request's headers say of who asks, as far as the operator trusts them."""

    tenant: str = ""
    session: str = ""
    priority: int | None = None  # lower is more urgent
    timeout_s: float | None = None  # how long the caller will wait for the whole answer
    request_class: RequestClass | None = None
    placement: Placement = ANYWHERE


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One client request in the terms that routing needs; token counts are estimates before the engine's own."""

    id: str
    api: str  # chat, completions …
    model: str
    prompt_tokens: int
    token_error: float  # mean relative error of such an estimate, 0 where the count is exact
    token_counts: tuple[int, ...]  # what the text's estimate was made from (`core.token_counts`); () if not estimated
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
    chains: Mapping[KvLayout, tuple[int, ...]] = field(default_factory=dict)  # in engines' own blocks, if ids are known

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


class Reason(StrEnum):
    """Why an instance, or the whole request, was turned down; those that pass with time stand last."""

    MODEL_NOT_SERVED = "model_not_served"
    CAPABILITY_MISSING = "capability_missing"
    PLACEMENT_UNREADABLE = "placement_unreadable"  # a demand that we do not understand: nobody is known to fulfil it
    ZONE_NOT_ALLOWED = "zone_not_allowed"
    TAG_MISSING = "tag_missing"
    HARDWARE_NOT_ALLOWED = "hardware_not_allowed"
    PRECISION_NOT_ALLOWED = "precision_not_allowed"
    TOPOLOGY_NOT_ALLOWED = "topology_not_allowed"
    ROLE_TAKES_HALF = "role_takes_half"  # it takes one half of a request, and no pair could be made
    CONTEXT_TOO_LONG = "context_too_long"
    KV_TOO_SMALL = "kv_too_small"
    NOT_READY = "not_ready"
    STALE = "stale"
    COOLING_DOWN = "cooling_down"
    PUSHED_BACK = "pushed_back"  # it answered 429 or 503 a moment ago
    AT_CONCURRENCY_LIMIT = "at_concurrency_limit"
    QUEUE_TOO_LONG = "queue_too_long"
    NO_INSTANCE = "no_instance"  # nothing is registered at all


@dataclass(frozen=True, slots=True)
class Rejection:
    """A hard constraint that an instance fails, with the two numbers (or names) that clash."""

    instance_id: str
    reason: Reason
    needs: str | float | tuple[str, ...]
    has: str | float | tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Seconds that a request costs on one instance, term by term, and what they are worth together."""

    queue_s: float  # work that is ahead of the request
    prefill_s: float  # computing the prompt tokens that the instance does not hold
    decode_s: float  # producing the expected output in the batch it would join
    communication_s: float = 0.0  # reaching the instance, and waiting for its host's CPU and memory
    pressure_s: float = 0.0  # expected loss to preemption as KV blocks run out
    harm_s: float = 0.0  # by which others are delayed, summed over them
    tail_s: float = 0.0  # what waiting for longer than nearly all others counts more
    doubt_s: float = 0.0  # for what the instance last told is old
    start_s: float = 0.0  # while the instance has just become Ready: keeps the crowd away
    money_s: float = 0.0  # waiting that would be worth what the request costs there
    total_s: float  # all of them as the class of the request weighs them: what instances are compared by

    @property
    def ttft_s(self) -> float:
        """Predicted time to the first token."""
        return self.queue_s + self.prefill_s + self.communication_s

    def plus(self, other: Cost) -> Cost:
        """The sum of two costs, term by term."""
        return Cost(**{name: getattr(self, name) + getattr(other, name) for name in Cost.__dataclass_fields__})


class CacheSource(StrEnum):
    """How it is believed to be known what an instance holds of a prompt."""

    LEARNED = "learned"  # from where earlier requests were sent
    TOLD = "told"  # by its engine's own events


@dataclass(frozen=True, slots=True)
class Claims:
    """Prompt tokens that an instance holds, as each source has it, whichever is believed."""

    learned_tokens: int = 0
    told_tokens: int | None = None  # None: its engine tells nothing, or the prompt's ids are not known
    recent_tokens: int = 0  # sent there a moment ago: perhaps computed by now, perhaps not


@dataclass(frozen=True, slots=True)
class Candidate:
    """An instance that can serve the request, and what that would cost."""

    instance: Instance
    cost: Cost
    cached_tokens: int  # prompt tokens whose KV the instance is believed to hold
    tpot_s: float  # predicted seconds for each output token
    claims: Claims = Claims()
    handed_tokens: int = 0  # prompt tokens whose KV it takes over from the one that computes them


@dataclass(frozen=True, slots=True)
class Decision:
    """Where a request goes. `chosen` is None when no instance can serve it; `rejected` then says why."""

    chosen: Candidate | None
    alternatives: tuple[Candidate, ...] = ()  # next best, in the order in which to retry
    rejected: tuple[Rejection, ...] = ()
    partner: Candidate | None = None  # computes the prompt for the chosen one, or for an alternative

    @property
    def candidates(self) -> tuple[Candidate, ...]:
        """The chosen one and the alternatives, in this order."""
        return () if self.chosen is None else (self.chosen, *self.alternatives)

    def with_chosen(self, place: int) -> Decision:
        """The same with another of its candidates chosen, by its place among them."""
        ranked = list(self.candidates)
        chosen = ranked.pop(place)
        return Decision(chosen, tuple(ranked), self.rejected, self.partner)

    @property
    def reason(self) -> Reason | None:
        """The reason that stands nearest to success when nothing could be chosen, else None."""
        if self.chosen is not None:
            return None
        if not self.rejected:
            return Reason.NO_INSTANCE
        return max((rejection.reason for rejection in self.rejected), key=list(Reason).index)


@dataclass(frozen=True, slots=True, kw_only=True)
class Features:
    """What was believed when a request was sent; rides through Envoy and comes back with the outcome."""

    request_id: str
    api: str
    model: str
    instance_key: str
    stream: bool
    prompt_tokens: int
    token_counts: tuple[int, ...]
    media_tokens: int
    cached_tokens: int
    learned_tokens: int  # the claims that led to it
    told_tokens: int  # -1: none
    recent_tokens: int
    tenant: str
    choices: int
    cap_tokens: int  # output cap of each answer, -1 if the client named none
    output_tokens: int
    output_p50_tokens: int
    output_p90_tokens: int
    queue_s: float
    ttft_s: float
    tpot_s: float
    batch_requests: int = 0  # others on the instance, running or waiting
    batch_tokens: float = 0.0  # context that they hold
    engine_waiting: int = 0  # requests in the engine's own queue, by its latest report
    partner_key: str = ""  # of the instance that computed the prompt; "": the one that answered did


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of one HTTP request, as Envoy's access log tells it; None where Envoy did not know."""

    features: Features | None  # None: the request passed without a decision
    address: str  # the endpoint that answered last, "" if none
    status: int
    flags: tuple[str, ...]  # Envoy's response flags by name, such as upstream_connection_failure
    attempts: int
    duration_s: float
    ttft_s: float | None  # to the first body byte from the engine
    routing_s: float | None  # what it took until Envoy began to send to the engine
    prompt_tokens: int | None
    completion_tokens: int | None
    cached_tokens: int | None
    started_s: float | None = None  # when Envoy began to read the request, on its clock
