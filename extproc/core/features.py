"""From a prompt and its caller to the request that is decided upon."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import msgspec

from extproc.core.flight.work import DEFAULT_BLOCK_SIZE_TOKENS
from extproc.core.prefixes.prefix_chain import BLOCK_BYTES, prefix_salt
from extproc.core.prompt_text import PromptText, id_chain, text_of
from extproc.core.tokens.beliefs import Beliefs
from extproc.core.tokens.output_lengths import AnswerKind, Expected
from extproc.core.tokens.tokens import Estimate, ExactCount
from extproc.core.values.request import LONG_CONTEXT_TOKENS, Caller, KvLayout, Prompt, Request, RequestClass

_NO_TEXT = Estimate(tokens=0, relative_error=0.0, counts=())
_GUESS_ERROR = 1.0  # of tokens guessed from a body that nobody has read: so large that nothing is refused for them


def request_of(
    prompt: Prompt,
    caller: Caller,
    request_id: str,
    beliefs: Beliefs,
    now: float,
    *,
    share_prefixes: bool = False,
    body_bytes: int = 0,
    read: PromptText | None = None,
) -> Request:
    """Features of one request; the tokens of its text are an estimate, those that came as ids are counted.

    `with_count` replaces the estimate. `share_prefixes`: tenants' prompts are not kept apart. `read` is what
    `read_text` made of the prompt, if it is at hand.
    """
    if read is None:
        read = read_text(prompt)
    text = _estimate(prompt.model, read, beliefs)
    prompt_tokens = text.tokens + len(prompt.token_ids) + prompt.media_tokens
    output = _output(prompt, caller.tenant, beliefs)
    prefix, tokens_per_block = _prefix(prompt, read, "" if share_prefixes else caller.tenant, text.tokens)
    return Request(
        id=request_id,
        api=prompt.api,
        model=prompt.model,
        prompt_tokens=max(1, prompt_tokens),
        token_error=text.relative_error,
        token_counts=text.counts,
        media_tokens=prompt.media_tokens + len(prompt.token_ids),
        prefix=prefix,
        tokens_per_block=tokens_per_block,
        max_output_tokens=prompt.max_output_tokens,
        expected_output_tokens=math.ceil(prompt.choices * output.mean),
        output_p50_tokens=output.p50,
        output_p90_tokens=output.p90,
        stream=prompt.stream,
        choices=prompt.choices,
        longest_share=prompt.longest_share,
        needs=prompt.needs,
        tenant=caller.tenant,
        session=caller.session or prompt.session,
        priority=caller.priority if caller.priority is not None else prompt.priority or 0,
        deadline_s=None if caller.timeout_s is None else now + caller.timeout_s,
        request_class=caller.request_class or _class_of(prompt, prompt_tokens),
        placement=caller.placement,
        body_bytes=body_bytes,
    )


def read_text(prompt: Prompt) -> PromptText:
    """What is counted and hashed of a prompt: once, however many models it may be for."""
    return text_of(prompt.pieces, prompt.token_ids) if prompt.text is None else prompt.text


def with_count(request: Request, prompt: Prompt, exact: ExactCount, layouts: Iterable[KvLayout] = ()) -> Request:
    """The same request, now that its text is counted as the engine will count it.

    With ids in the count its blocks are named in each of the layouts.
    """
    estimated_tokens = request.prompt_tokens - request.media_tokens
    prompt_tokens = max(1, exact.tokens + request.media_tokens)
    return msgspec.structs.replace(
        request,
        prompt_tokens=prompt_tokens,
        token_error=0.0,
        tokens_per_block=request.tokens_per_block * max(1, exact.tokens) / max(1, estimated_tokens),
        chains=_chains(exact.token_ids or (), prompt, layouts),
    )


def with_ids(request: Request, prompt: Prompt, layouts: Iterable[KvLayout]) -> Request:
    """The same request, whose prompt came as token ids, with its blocks named in each of the layouts."""
    return msgspec.structs.replace(request, chains=_chains(prompt.token_ids, prompt, layouts))


def _chains(token_ids: Sequence[int], prompt: Prompt, layouts: Iterable[KvLayout]) -> dict[KvLayout, tuple[int, ...]]:
    if not token_ids or not prompt.reuses_cache:
        return {}
    return {
        layout: id_chain(token_ids, prefix_salt(layout.model, cache_salt=prompt.cache_salt), layout.block_size_tokens)
        for layout in layouts
    }


def _output(prompt: Prompt, tenant: str, beliefs: Beliefs) -> Expected:
    kind = AnswerKind.of(prompt.model, prompt.api, tenant, prompt.stream, prompt.max_output_tokens)
    return beliefs.outputs.expect(kind, prompt.max_output_tokens)


def _estimate(model: str, read: PromptText, beliefs: Beliefs) -> Estimate:
    if not read.counts:
        return _NO_TEXT
    estimate = beliefs.tokens.of_counts(model, read.counts)
    return Estimate(estimate.tokens, _GUESS_ERROR, ()) if read.is_guess else estimate


def _prefix(prompt: Prompt, read: PromptText, tenant: str, text_tokens: int) -> tuple[tuple[int, ...], float]:
    """Hash chain of a prompt and the tokens that one of its blocks stands for.

    The salt holds what engines never share, or what the operator would not want to be shared. A prompt without tokens,
    such as that of a call which only counts some, has no blocks.
    """
    if not prompt.reuses_cache or not (text_tokens or prompt.token_ids):
        return (), 1.0
    blocks = read.chain(prefix_salt(prompt.model, tenant, prompt.cache_salt))
    if prompt.token_ids:
        return blocks, float(DEFAULT_BLOCK_SIZE_TOKENS)
    return blocks, BLOCK_BYTES * text_tokens / max(1, read.size_bytes)


def _class_of(prompt: Prompt, prompt_tokens: int) -> RequestClass:
    if prompt.deferrable:
        return RequestClass.BATCH
    return RequestClass.LONG_CONTEXT if prompt_tokens >= LONG_CONTEXT_TOKENS else RequestClass.INTERACTIVE
