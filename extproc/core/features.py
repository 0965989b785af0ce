"""From a prompt to the request that is decided upon: token counts, expected output, prefix blocks."""

from __future__ import annotations

import math

from extproc.core.beliefs import Beliefs
from extproc.core.model import Prompt, Request
from extproc.core.prefix import BLOCK_BYTES, chain


def request_of(prompt: Prompt, request_id: str, beliefs: Beliefs) -> Request:
    """Features of one prompt. Token counts are estimates by the bytes that a token of this model has had so far."""
    prompt_bytes = sum(map(len, prompt.pieces))
    bytes_per_token = beliefs.bytes_per_token(prompt.model)
    prompt_tokens = max(1, math.ceil(prompt_bytes / bytes_per_token) + len(prompt.token_ids) + prompt.media_tokens)
    expected = prompt.choices * beliefs.output_tokens(prompt.model, prompt.api)
    if prompt.max_output_tokens is not None:
        expected = min(expected, prompt.choices * prompt.max_output_tokens)
    return Request(
        id=request_id,
        api=prompt.api,
        model=prompt.model,
        prompt_tokens=prompt_tokens,
        prompt_bytes=prompt_bytes,
        prefix=chain(prompt.pieces, prompt.model),
        tokens_per_block=BLOCK_BYTES / bytes_per_token,
        max_output_tokens=prompt.max_output_tokens,
        expected_output_tokens=max(1, math.ceil(expected)),
        stream=prompt.stream,
    )
