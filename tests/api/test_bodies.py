"""Bodies as clients send them: what they mean for routing."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.api.body import BodyError, decode
from extproc.api.openai_chat import parse as parse_chat
from extproc.api.openai_completions import parse as parse_completions
from extproc.api.paths import parser_for
from extproc.core.model import Prompt


@pytest.mark.parametrize(
    "path",
    ["/v1/chat/completions", "/v1/chat/completions/", "//v1//chat/completions?x=/y", "/openai/v1/chat/completions"],
)
def test_chat_paths_are_found_behind_prefixes_slashes_and_queries(path: str) -> None:
    assert parser_for("POST", path) is parse_chat


def test_completions_are_not_mistaken_for_chat() -> None:
    assert parser_for("POST", "/v1/completions") is parse_completions
    assert parser_for("POST", "/v1/chat") is None


def chat(**changes: Any) -> Prompt:
    return parse_chat({"model": "m", "messages": [{"role": "user", "content": "hello"}]} | changes)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("hello", b"hello"),
        (None, b""),
        ([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], b"ab"),
        ([{"type": "image_url", "image_url": {"url": "u"}}], b'{"type":"image_url","image_url":{"url":"u"}}'),
    ],
)
def test_every_form_of_content_becomes_part_of_the_prompt(content: Any, expected: bytes) -> None:
    prompt = chat(messages=[{"role": "user", "content": content}])
    assert b"".join(prompt.pieces) == b"\nuser:" + expected


def test_tools_come_first_and_tool_calls_with_their_message() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    messages = [{"role": "assistant", "content": None, "tool_calls": [call]}]
    joined = b"".join(chat(tools=[{"type": "function"}], messages=messages).pieces)
    assert joined.startswith(b'[{"type":"function"}]\nassistant:[{"id":"1"')


@pytest.mark.parametrize(
    ("value", "means"),
    [(True, True), ("true", True), (1, True), (False, False), (None, False), ("false", False), ({}, False)],
)
def test_stream_is_read_as_leniently_as_engines_read_it(value: Any, means: bool) -> None:
    assert chat(stream=value).stream is means


def test_the_newer_name_of_the_output_cap_wins() -> None:
    assert chat(max_tokens=5, max_completion_tokens=7).max_output_tokens == 7
    assert chat(max_tokens=5).max_output_tokens == 5
    assert chat().max_output_tokens is None


@pytest.mark.parametrize(
    ("prompt", "pieces", "ids", "choices"),
    [
        ("hi", (b"hi",), 0, 1),
        (["a", "b"], (b"a", b"b"), 0, 2),
        ([1, 2, 3], (), 3, 1),
        ([[1, 2], [3]], (), 3, 2),
    ],
)
def test_every_form_of_a_completions_prompt_is_counted(
    prompt: Any, pieces: tuple[bytes, ...], ids: int, choices: int
) -> None:
    parsed = parse_completions({"model": "m", "prompt": prompt})
    assert (parsed.pieces, len(parsed.token_ids), parsed.choices) == (pieces, ids, choices)


@pytest.mark.parametrize("prompt", [None, 7, [], {}, ["a", 1], [None], [True]])
def test_a_prompt_of_no_known_form_names_its_field(prompt: Any) -> None:
    with pytest.raises(BodyError) as caught:
        parse_completions({"model": "m", "prompt": prompt})
    assert caught.value.param == "prompt"


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=15,
)
FIELDS = ("model", "messages", "prompt", "tools", "max_tokens", "n", "stream")


@given(st.dictionaries(st.sampled_from(FIELDS), json_values))
def test_no_values_in_known_fields_raise_anything_but_the_declared_error(body: dict[str, Any]) -> None:
    for parse in (parse_chat, parse_completions):
        try:
            assert parse(body).model
        except BodyError as error:
            assert error.message  # noqa: PT017 - no error is fine too


@given(st.binary())
def test_no_bytes_raise_anything_but_the_declared_error(data: bytes) -> None:
    try:
        assert isinstance(decode(data), dict)
    except BodyError as error:
        assert error.message  # noqa: PT017 - no error is fine too


@given(st.dictionaries(st.sampled_from((*FIELDS, "x")), json_values))
def test_bodies_survive_the_way_through_json(body: dict[str, Any]) -> None:
    try:
        data = orjson.dumps(body)
    except TypeError:
        return
    assert isinstance(decode(data), dict)
