"""OpenAI responses: instructions and input items become the prompt, without what the engine stored of earlier turns."""

from __future__ import annotations

from functools import partial
from typing import Any

from extproc.api.body import MAX_MESSAGES, Body, BodyError, count_of, model_of
from extproc.api.content import Content, json_text, marked, part_text
from extproc.api.conversations import of_responses
from extproc.api.hints import hints_of
from extproc.api.needs import needs_of
from extproc.core.values.request import Prompt

_STORED = ("previous_response_id", "conversation", "prompt")  # what may stand in the place of `input`


def parse(body: Body) -> Prompt:
    """Prompt of a responses body, a piece an item. Raises BodyError."""
    content = Content()
    pieces = [json_text(body[name], name) for name in ("tools", "prompt") if body.get(name)]
    instructions = body.get("instructions")
    if instructions:
        pieces.append(marked("system", "") + content.text(instructions, "instructions"))
    pieces += _input(body, content)
    return Prompt(
        api="responses",
        model=model_of(body),
        pieces=tuple(pieces),
        media_tokens=content.media_tokens,
        max_output_tokens=count_of(body, "max_output_tokens"),
        needs=needs_of(body).union(content.needs),
        countable=partial(of_responses, body),
        **hints_of(body),
    )


def _input(body: Body, content: Content) -> list[bytes]:
    value = body.get("input")
    if isinstance(value, str):
        return [marked("user", value)]
    if value is None and any(body.get(name) for name in _STORED):
        return []
    if not isinstance(value, list) or not value:
        raise BodyError("'input' must be a string or a non-empty array.", "input")
    if len(value) > MAX_MESSAGES:
        raise BodyError(f"'input' must not have more than {MAX_MESSAGES} items.", "input")
    return [_item(item, content, f"input[{position}]") for position, item in enumerate(value)]


def _item(item: Any, content: Content, where: str) -> bytes:
    """One item: a message, a call, what the call gave, or reasoning; JSON text for anything else."""
    if not isinstance(item, dict):
        raise BodyError(f"'{where}' must be an object.", where)
    match item.get("type", "message"):
        case "message":
            return marked(item.get("role"), "") + content.text(item.get("content"), f"{where}.content")
        case "function_call" | "custom_tool_call":
            called = [item.get(name) for name in ("name", "arguments", "input")]
            return marked("assistant", "".join(value for value in called if isinstance(value, str)))
        case "function_call_output" | "custom_tool_call_output" | "computer_call_output":
            return marked("tool", "") + content.text(item.get("output"), f"{where}.output")
        case "reasoning":
            return marked("assistant", "") + _reasoning(item, content, where)
    return marked(item.get("type"), "") + part_text(item, where)


def _reasoning(item: Body, content: Content, where: str) -> bytes:
    """What can be read of earlier reasoning; what is encrypted no engine of ours can read."""
    return content.text(item.get("content") or item.get("summary"), f"{where}.content")
