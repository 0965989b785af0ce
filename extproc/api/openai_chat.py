"""OpenAI chat completions: tools and messages become the prompt in the order of usual chat templates."""

from __future__ import annotations

from functools import partial
from typing import Any

from extproc.api.body import Body, BodyError, choices_of, count_of, list_of, model_of
from extproc.api.content import Content, json_text, marked
from extproc.api.conversations import of_chat
from extproc.api.hints import hints_of
from extproc.api.needs import needs_of
from extproc.core.values.request import Prompt

_TOOLS = ("tools", "functions", "documents")  # what templates print before the first message
_OWN_TEXT = ("reasoning_content", "reasoning", "refusal")  # what an assistant's message may say beside its content


def parse(body: Body) -> Prompt:
    """Prompt of a chat body, a piece a message. Raises BodyError."""
    content = Content()
    pieces = chat_pieces(body, content)
    return Prompt(
        api="chat",
        model=model_of(body),
        pieces=tuple(pieces),
        media_tokens=content.media_tokens,
        max_output_tokens=count_of(body, "max_completion_tokens", "max_tokens"),
        choices=choices_of(body, "n", "best_of"),
        needs=needs_of(body).union(content.needs),
        countable=partial(of_chat, body),
        **hints_of(body),
    )


def chat_pieces(body: Body, content: Content) -> list[bytes]:
    """Tools and messages of a body that has `messages`, one piece each. Raises BodyError."""
    pieces = [json_text(body[name], name) for name in _TOOLS if body.get(name)]
    for position, message in enumerate(list_of(body, "messages")):
        if not isinstance(message, dict):
            raise BodyError(f"'messages[{position}]' must be an object.", f"messages[{position}]")
        text = message.get("content")
        if isinstance(text, str) and len(message) == 2:
            pieces.append(marked(message.get("role"), text))
        else:
            pieces.append(_message(message, content, f"messages[{position}]"))
    return pieces


def _message(message: Body, content: Content, where: str) -> bytes:
    """A message with more to it than a role and a string."""
    parts = [marked(message.get("role"), "")]
    name = message.get("name")
    if isinstance(name, str):
        parts.append(name.encode())
    parts += [value.encode() for value in map(message.get, _OWN_TEXT) if isinstance(value, str)]
    parts.append(content.text(message.get("content"), f"{where}.content"))
    calls = message.get("tool_calls") or message.get("function_call")
    if calls:
        parts += [_call(call, f"{where}.tool_calls") for call in (calls if isinstance(calls, list) else [calls])]
    return b"".join(parts)


def _call(call: Any, where: str) -> bytes:
    """A tool call as templates print it: name and arguments. Its id stands in few templates, and is long."""
    function = call.get("function", call) if isinstance(call, dict) else None
    if isinstance(function, dict):
        name, arguments = function.get("name"), function.get("arguments")
        if isinstance(name, str) and isinstance(arguments, str):
            return f"{name}{arguments}".encode()
    return json_text(call, where)
