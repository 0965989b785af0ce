"""OpenAI speech: a text that becomes sound."""

from __future__ import annotations

from extproc.api.body import Body, BodyError, optional_model_of
from extproc.api.hints import hints_of
from extproc.core.values.request import Prompt


def parse(body: Body) -> Prompt:
    """Prompt of a speech body. Raises BodyError."""
    text = body.get("input")
    if not isinstance(text, str) or not text:
        raise BodyError("'input' must be a non-empty string.", "input")
    instructions = body.get("instructions")
    return Prompt(
        api="speech",
        model=optional_model_of(body),
        pieces=(instructions.encode(), text.encode()) if isinstance(instructions, str) else (text.encode(),),
        **hints_of(body),
    )
