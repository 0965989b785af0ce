"""Chats with all that clients leave out or add, and templates that look at it."""

from __future__ import annotations

from typing import Any

# Each of these ends a message where the tokenizer of `tests.adapters.tiny_tokenizer` may be cut.
_OPEN = "{% for m in messages %}<|im_start|>{{ m.role }}\n"
_CLOSE = "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
_PARTS = "{% for part in m['content'] %}<{{ part.type }}>{{ part.text }}{% endfor %}"
TEMPLATES = {
    "text": _OPEN + "{{ m.content }}" + _CLOSE,
    "parts": _OPEN + "{% if m.content is string %}{{ m.content }}{% else %}" + _PARTS + "{% endif %}" + _CLOSE,
    "parts by a macro": "{% macro show(content) %}{% for p in content %}{{ p.text }}{% endfor %}{% endmacro %}"
    + (_OPEN + "{{ show(m.content) }}" + _CLOSE),
    "parts of a copy": _OPEN + "{% set content = m.content %}{% for p in content %}{{ p }}{% endfor %}" + _CLOSE,
    "tools": "{% for t in tools or [] %}{{ t | tojson }}\n{{ t.function.name }}\n{% endfor %}"
    + (_OPEN + "{% for c in m.tool_calls or [] %}{{ c.function.name }}{{ c.function.arguments | tojson }}{% endfor %}")
    + ("{{ m.content }}{% if m.tool_calls is defined %} calls{% endif %}{{ m.tool_call_id }}{{ m.name }}" + _CLOSE),
    "thoughts": "{{ reasoning_effort }} {{ enable_thinking }} {{ custom }}\n"
    + (_OPEN + "{{ m.content }}{{ m.reasoning }}{{ m.reasoning_content }}" + _CLOSE),
    "developer": _OPEN + "{% if m.role == 'developer' %}by a developer: {% endif %}{{ m.content }}" + _CLOSE,
}
_ASK = {"role": "user", "content": "what is it?"}


def _called(arguments: str) -> list[dict[str, Any]]:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}
    return [
        _ASK | {"name": "someone"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {
            "role": "tool",
            "tool_call_id": "1",
            "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}],
        },
        {"role": "assistant", "content": "so it is", "tool_calls": []},
        _ASK,
    ]


_TOOLS = [
    {"function": {"parameters": {"type": "object"}, "name": "f", "strict": True, "x": 1}, "type": "function"},
    {"type": "function", "function": {"name": "g", "description": "<é> & co"}, "y": 2},
]
_TWO_PARTS = [{"type": "text", "text": "one"}, {"type": "text", "text": ""}, {"type": "text", "text": "two"}]
CHATS: dict[str, dict[str, Any]] = {
    "plain": {"messages": [{"role": "system", "content": "be brief"}, _ASK]},
    "parts": {"messages": [{"role": "system", "content": _TWO_PARTS}, {"role": "user", "content": _TWO_PARTS}]},
    "tools": {"messages": _called('{"city": "Köln", "n": 1.50}'), "tools": _TOOLS},
    "no arguments": {"messages": _called("")},
    "broken arguments": {"messages": _called("{oops")},
    "arguments that are a list": {"messages": _called("[1]"), "tools": _TOOLS[:1], "tool_choice": "auto"},
    "reasoning": {"messages": [_ASK, {"role": "assistant", "content": "it", "reasoning": "hm"}, _ASK]},
    "reasoning_content": {"messages": [_ASK, {"role": "assistant", "content": "it", "reasoning_content": "hm"}, _ASK]},
    "effort": {"messages": [_ASK], "reasoning_effort": "low"},
    "no effort": {"messages": [_ASK], "reasoning_effort": "none", "chat_template_kwargs": {"custom": 1}},
    "effort twice": {
        "messages": [_ASK],
        "reasoning_effort": "high",
        "chat_template_kwargs": {"reasoning_effort": "low", "enable_thinking": False},
    },
    "developer": {"messages": [{"role": "developer", "content": "be brief"}, _ASK]},
    "developers": {
        "messages": [
            {"role": "system", "content": "be kind"},
            _ASK,
            {"role": "developer", "content": _TWO_PARTS},
            {"role": "developer", "content": ""},
        ]
    },
    "no opening": {"messages": [_ASK], "add_generation_prompt": False},
}
