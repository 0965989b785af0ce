"""Messages and tools as templates get them, whatever clients leave out; `tests/vllm` holds the same against vLLM."""

from __future__ import annotations

from typing import Any

import pytest

from extproc.adapters.chat_messages import shaped_message, shaped_tool, without_developers
from extproc.adapters.chat_template import ChatTemplate

PARTS = [{"type": "text", "text": "a"}, "b", {"type": "text", "text": ""}, {"type": "image_url"}]
AS_PARTS = [{"type": "text", "text": text} for text in ("a", "b", "")]


@pytest.mark.parametrize(
    ("content", "text", "parts"),
    [
        ("x", "x", [{"type": "text", "text": "x"}]),
        (PARTS, "a\nb", AS_PARTS),
        (None, "", []),
        ([], "", []),
    ],
)
def test_content_is_text_or_parts_as_the_template_reads_it(content: Any, text: str, parts: list[Any]) -> None:
    """Null becomes nothing, and never the word None."""
    assert shaped_message({"role": "user", "content": content}, in_parts=False)["content"] == text
    assert shaped_message({"role": "user", "content": content}, in_parts=True)["content"] == parts
    assert shaped_message({"role": "tool", "content": content}, in_parts=True)["content"] == text


@pytest.mark.parametrize(
    ("arguments", "parsed"),
    [('{"a": 1}', {"a": 1}), ("", {}), ("{oops", {}), ("[1]", {}), ("null", {}), ({"a": 1}, {"a": 1}), (None, {})],
)
def test_arguments_of_tool_calls_are_always_a_mapping(arguments: Any, parsed: dict[str, Any]) -> None:
    """Templates go through them by name."""
    message = {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": arguments}}]}
    (call,) = shaped_message(message, in_parts=False)["tool_calls"]
    assert call["function"]["arguments"] == parsed


@pytest.mark.parametrize("none", [{"tool_calls": []}, {"tool_calls": None}, {}])
def test_an_answer_without_tool_calls_has_no_such_key(none: dict[str, Any]) -> None:
    """Templates ask whether the key is there."""
    assert "tool_calls" not in shaped_message({"role": "assistant", "content": "x", **none}, in_parts=False)


@pytest.mark.parametrize("given", [{"reasoning": "r"}, {"reasoning_content": "r"}])
def test_thoughts_are_found_under_both_names(given: dict[str, Any]) -> None:
    """Templates read one, clients send the other."""
    shaped = shaped_message({"role": "assistant", "content": "x", **given}, in_parts=False)
    assert (shaped["reasoning"], shaped["reasoning_content"]) == ("r", "r")


@pytest.mark.parametrize(
    ("tool", "shaped"),
    [
        (
            {"function": {"parameters": {}, "name": "f", "x": 1}, "type": "function", "y": 2},
            {"type": "function", "function": {"name": "f", "description": None, "parameters": {}}},
        ),
        (
            {"function": {"name": "f", "strict": False, "description": "d"}, "defer_loading": True},
            {
                "type": "function",
                "function": {
                    "name": "f",
                    "description": "d",
                    "parameters": None,
                    "strict": False,
                    "defer_loading": True,
                },
                "defer_loading": True,
            },
        ),
        ({"name": "of another API"}, {"name": "of another API"}),
        ("not even that", "not even that"),
    ],
)
def test_tools_are_shown_with_the_keys_and_the_order_of_vllm(tool: Any, shaped: Any) -> None:
    """Templates print them as JSON, so every key counts."""
    assert shaped_tool(tool) == shaped
    if isinstance(shaped, dict) and "function" in shaped:
        assert list(shaped_tool(tool)["function"]) == list(shaped["function"])


def _said(*roles: str) -> list[dict[str, Any]]:
    return [{"role": role, "content": f"{number}"} for number, role in enumerate(roles)]


@pytest.mark.parametrize(
    ("roles", "heads", "text"),
    [
        ("developer user", "system user", "0"),
        ("developer user developer", "system user", "0\n\n2"),
        ("system developer user", "system user", "0\n\n1"),
        ("user developer", "system user", "1"),
        ("user system", "user system", "0"),  # without a developer it is the template's own affair
    ],
)
def test_templates_that_know_no_developers_get_their_words_as_the_systems(roles: str, heads: str, text: str) -> None:
    """And all of it at the head, where such templates look for it."""
    changed = without_developers(_said(*roles.split()))
    assert [message["role"] for message in changed] == heads.split()
    assert changed[0]["content"] == text


def test_developers_words_in_parts_are_joined() -> None:
    """Where they are merged with others."""
    messages = [{"role": role, "content": [{"type": "text", "text": "a"}] * 2} for role in ("system", "developer")]
    assert without_developers(messages) == [{"role": "system", "content": "a\na\n\na\na"}]


@pytest.mark.parametrize(
    ("loop", "joined"),
    [
        ("{% for m in messages %}{{ m.content }}{% endfor %}", "a\nb"),
        ("{% for m in messages %}{% for p in m['content'] %}{{ p.text }}{% endfor %}{% endfor %}", "ab"),
        ("{% for m in messages %}{% for p in m.content | list %}{{ p.text }}{% endfor %}{% endfor %}", "ab"),
        (
            "{% macro show(content) %}{% for p in content %}{{ p.text }}{% endfor %}{% endmacro %}"
            "{% for m in messages %}{{ show(m.content) }}{% endfor %}",
            "ab",
        ),
    ],
)
def test_a_template_that_goes_through_parts_gets_parts(loop: str, joined: str) -> None:
    """Then nothing stands between them but what the template itself writes."""
    assert ChatTemplate(loop, {}).render([{"role": "user", "content": PARTS}]) == joined
