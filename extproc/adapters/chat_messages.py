"""Messages and tools in the shape in which vLLM hands them to a chat template, whatever a client left out or added.

Source: `_parse_chat_message_content` and `_postprocess_messages` in vLLM's chat_utils.py, and the models of tools in
its openai/chat_completion/protocol.py; for developers `_consolidate_system_messages` in its renderers/hf.py. Media
are counted elsewhere.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

_TOOL_KEYS = ("type", "function", "defer_loading")
_FUNCTION_KEYS = ("name", "description", "parameters", "strict", "defer_loading")
_TOLD_AS_NULL = ("description", "parameters")  # others are left out where a client does


def shaped_message(message: Mapping[str, Any], in_parts: bool) -> dict[str, Any]:
    """A message with its text as one string, parts joined by line ends, or as a list of parts where `in_parts`."""
    shaped = dict(message)
    role = message.get("role")
    shaped["content"] = _content(message.get("content"), in_parts and role != "tool")
    if role == "assistant":
        _shape_reasoning(shaped)
        calls = shaped.get("tool_calls")
        if isinstance(calls, list):
            shaped["tool_calls"] = [_with_parsed_arguments(call) for call in calls]
        if not calls:
            shaped.pop("tool_calls", None)
    return shaped


def without_developers(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Shaped messages for a template that knows no developers: system messages, and one of them if not at the head.

    Without a developer's message among them they are left as they are.
    """
    if all(message.get("role") != "developer" for message in messages):
        return [dict(message) for message in messages]
    spoken = [_as_system(message) if message.get("role") == "developer" else dict(message) for message in messages]
    system = [message for message in spoken if message.get("role") == "system"]
    if system == spoken[:1]:
        return spoken
    texts = [text for message in system if (text := _joined(message["content"]))]
    others = [message for message in spoken if message.get("role") != "system"]
    return [{"role": "system", "content": "\n\n".join(texts)}, *others]


def shaped_tool(tool: Any) -> Any:
    """A tool with its known keys in vLLM's order; what is no tool of OpenAI's is left as it is."""
    if not isinstance(tool, Mapping) or not isinstance(function := tool.get("function"), Mapping):
        return tool
    known = {key: function.get(key) for key in _FUNCTION_KEYS if key in _TOLD_AS_NULL or function.get(key) is not None}
    if tool.get("defer_loading") is not None:
        known.setdefault("defer_loading", tool["defer_loading"])
    shaped = {"type": "function", **tool, "function": known}
    return {key: shaped[key] for key in _TOOL_KEYS if shaped.get(key) is not None}


def _content(content: Any, in_parts: bool) -> Any:
    parts = [content] if isinstance(content, str) else content or ()
    texts = [text for part in parts if (text := _text(part)) is not None]
    return [{"type": "text", "text": text} for text in texts] if in_parts else "\n".join(filter(None, texts))


def _text(part: Any) -> str | None:
    if isinstance(part, Mapping):
        part = part.get("text")
    return part if isinstance(part, str) else None


def _as_system(message: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in message.items() if key != "tools"} | {"role": "system"}


def _joined(content: str | list[dict[str, str]]) -> str:
    return content if isinstance(content, str) else "\n".join(part["text"] for part in content)


def _shape_reasoning(message: dict[str, Any]) -> None:
    """Put the thoughts of an earlier answer under both names that templates know."""
    given = message.get("reasoning")
    reasoning = message.get("reasoning_content") if given is None else given
    message.pop("reasoning_content", None)
    if reasoning is not None:
        message["reasoning"] = message["reasoning_content"] = reasoning


def _with_parsed_arguments(call: Any) -> Any:
    if not isinstance(call, Mapping) or not isinstance(function := call.get("function"), Mapping):
        return call
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except ValueError:
            arguments = None  # templates need a mapping, and an engine must go on for the sake of the turns to come
    return {**call, "function": {**function, "arguments": arguments if isinstance(arguments, dict) else {}}}
