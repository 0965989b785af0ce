"""OpenAI chat completions: tools and messages become the prompt in the order of usual chat templates."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from extproc.api.body import Body, BodyError, count_of, flag_of, model_of, parts_of, text_of
from extproc.core.model import Prompt


def parse(body: Body) -> Prompt:
    """Prompt of a chat body. Raises BodyError."""
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise BodyError("'messages' must be a non-empty array.", "messages")
    return Prompt(
        api="chat",
        model=model_of(body),
        pieces=tuple(_pieces(body, messages)),
        max_output_tokens=count_of(body, "max_completion_tokens", "max_tokens"),
        stream=flag_of(body, "stream"),
        choices=max(1, count_of(body, "n") or 1),
    )


def _pieces(body: Body, messages: list[Any]) -> Iterator[bytes]:
    if body.get("tools"):
        yield text_of(body["tools"])
    for position, message in enumerate(messages):
        if not isinstance(message, dict):
            raise BodyError(f"'messages[{position}]' must be an object.", f"messages[{position}]")
        yield b"\n" + text_of(message.get("role")) + b":"
        yield from parts_of(message.get("content"))
        if message.get("tool_calls"):
            yield text_of(message["tool_calls"])
