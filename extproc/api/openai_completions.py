"""OpenAI completions: the prompt is a string, token ids, or a list of either."""

from __future__ import annotations

from typing import Any

from extproc.api.body import Body, BodyError, count_of, flag_of, model_of, text_of
from extproc.core.model import Prompt


def parse(body: Body) -> Prompt:
    """Prompt of a completions body. Raises BodyError."""
    pieces, given_tokens, prompts = _pieces(body.get("prompt"))
    return Prompt(
        api="completions",
        model=model_of(body),
        pieces=pieces,
        given_tokens=given_tokens,
        max_output_tokens=count_of(body, "max_tokens"),
        stream=flag_of(body, "stream"),
        choices=prompts * max(1, count_of(body, "n") or 1),
    )


def _pieces(prompt: Any) -> tuple[tuple[bytes, ...], int, int]:
    """Text pieces, number of tokens given as ids, number of prompts."""
    if isinstance(prompt, str):
        return (text_of(prompt),), 0, 1
    if not isinstance(prompt, list) or not prompt:
        raise BodyError("'prompt' must be a string, an array of strings or an array of token ids.", "prompt")
    if all(isinstance(item, str) for item in prompt):
        return tuple(map(text_of, prompt)), 0, len(prompt)
    if all(type(item) is int for item in prompt):
        return (), len(prompt), 1
    if all(isinstance(item, list) for item in prompt):
        return (), sum(map(len, prompt)), len(prompt)
    raise BodyError("'prompt' mixes strings and token ids.", "prompt")
