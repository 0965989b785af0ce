"""Anthropic messages: tools, the system prompt and messages, and the count of their tokens."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from extproc.api.body import Body, BodyError, count_of, list_of, model_of, object_of
from extproc.api.content import Content, json_text, marked
from extproc.api.conversations import of_anthropic
from extproc.api.hints import hints_of
from extproc.core.values.instance import Capability
from extproc.core.values.request import Prompt

# Claude Code's first system block, different in every request; vLLM drops it, as do most that serve other models.
_BILLING = "x-anthropic-billing-header"


def parse(body: Body) -> Prompt:
    """Prompt of a messages body, a piece a message. Raises BodyError."""
    content = Content()
    pieces = tuple(_pieces(body, content))
    return Prompt(
        api="messages",
        model=model_of(body),
        pieces=pieces,
        media_tokens=content.media_tokens,
        max_output_tokens=count_of(body, "max_tokens"),
        needs=frozenset(_needs(body)).union(content.needs),
        countable=partial(of_anthropic, body),
        **hints_of(body),
    )


def parse_count(body: Body) -> Prompt:
    """Prompt of a count_tokens body: none, for tokenizing is no work of a GPU. Raises BodyError."""
    return Prompt(api="count_tokens", model=model_of(body), pieces=(), max_output_tokens=0, **hints_of(body))


def _pieces(body: Body, content: Content) -> Iterator[bytes]:
    if body.get("tools"):
        yield json_text(body["tools"], "tools")
    system = body.get("system")
    if system:
        yield marked("system", "") + content.text(_without_billing(system), "system")
    for position, message in enumerate(list_of(body, "messages")):
        if not isinstance(message, dict):
            raise BodyError(f"'messages[{position}]' must be an object.", f"messages[{position}]")
        text = message.get("content")
        if isinstance(text, str):
            yield marked(message.get("role"), text)
        else:
            yield marked(message.get("role"), "") + content.text(text, f"messages[{position}].content")


def _without_billing(system: Any) -> Any:
    if not isinstance(system, list):
        return system
    return [block for block in system if not _is_billing(block)]


def _is_billing(block: Any) -> bool:
    text = block.get("text") if isinstance(block, dict) else None
    return isinstance(text, str) and text.startswith(_BILLING)


def _needs(body: Body) -> Iterator[Capability]:
    if body.get("tools") and object_of(body, "tool_choice").get("type") != "none":
        yield Capability.TOOLS
    if object_of(body, "thinking").get("type") not in (None, "disabled"):
        yield Capability.REASONING
    output_format = body.get("output_format") or object_of(body, "output_config").get("format")
    if isinstance(output_format, dict) and output_format.get("type") not in (None, "text"):
        yield Capability.JSON_SCHEMA
