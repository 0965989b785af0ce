"""OpenAI completions: the prompt is a string, token ids, or a list of either."""

from __future__ import annotations

from typing import Any

from extproc.api.body import Body, BodyError, count_of, flag_of, model_of, text_of
from extproc.core.model import Prompt


def parse(body: Body) -> Prompt:
    """Prompt of a completions body. Raises BodyError."""
    pieces, token_ids, prompts = _pieces(body.get("prompt"))
    return Prompt(
        api="completions",
        model=model_of(body),
        pieces=pieces,
        token_ids=token_ids,
        max_output_tokens=count_of(body, "max_tokens"),
        stream=flag_of(body, "stream"),
        choices=prompts * max(1, count_of(body, "n") or 1),
    )


def _pieces(prompt: Any) -> tuple[tuple[bytes, ...], list[int], int]:
    """Text pieces, token ids, number of prompts."""
    if isinstance(prompt, str):
        return (text_of(prompt),), [], 1
    if not isinstance(prompt, list) or not prompt:
        raise BodyError("'prompt' must be a string, an array of strings or an array of token ids.", "prompt")
    if all(isinstance(item, str) for item in prompt):
        return tuple(map(text_of, prompt)), [], len(prompt)
    if all(type(item) is int for item in prompt):
        return (), prompt, 1
    if all(isinstance(ids, list) and all(type(item) is int for item in ids) for ids in prompt):
        return (), [item for ids in prompt for item in ids], len(prompt)
    raise BodyError("'prompt' mixes strings and token ids.", "prompt")
