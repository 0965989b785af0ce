"""Chat bodies as clients send them: what they mean for routing, and what is refused."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from extproc.api import body as limits
from extproc.api.body import MAX_CONTAINERS, BodyError, decode
from extproc.api.content import MARK
from extproc.api.openai_chat import parse as parse_chat
from extproc.api.paths import endpoint_for
from extproc.core.values.instance import Capability
from extproc.core.values.request import Conversation, Prompt

USER = {"role": "user", "content": "hello"}
TOOL = {"type": "function", "function": {"name": "f"}}
PNG_URL = "data:image/png;base64," + "iVBORw0KGgo" * 1000


def chat(**changes: Any) -> Prompt:
    return parse_chat({"model": "m", "messages": [USER]} | changes)


def saying(content: Any) -> Prompt:
    return chat(messages=[{"role": "user", "content": content}])


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("hello", b"hello"),
        (None, b""),
        ([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], b"ab"),
        (["a", "b"], b"ab"),
        ([{"type": "refusal", "refusal": "no"}], b"no"),
        ([{"type": "unheard_of", "x": [1]}], b'{"type":"unheard_of","x":[1]}'),
        ([{"type": ["image"], "x": 1}], b'{"type":["image"],"x":1}'),
        ([7, None], b"7null"),
        ({"type": "text", "text": "alone"}, b"alone"),
        (7, b"7"),
    ],
)
def test_every_form_of_content_becomes_part_of_the_prompt(content: Any, expected: bytes) -> None:
    assert saying(content).pieces == (f"{MARK}user:".encode() + expected,)


def test_each_message_is_one_piece_after_the_tools() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    messages = [
        {"role": "system", "content": "s"},
        {"role": "assistant", "content": None, "reasoning_content": "why", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": [{"type": "text", "text": "r"}]},
    ]
    pieces = chat(tools=[TOOL], messages=messages).pieces
    assert [piece.decode().replace(MARK, "|") for piece in pieces] == [
        '[{"type":"function","function":{"name":"f"}}]',
        "|system:s",
        "|assistant:whyf{}",
        "|tool:r",
    ]


@pytest.mark.parametrize("opening", [b"[", b"{"])
def test_a_body_that_would_take_long_to_decode_is_refused_undecoded(opening: bytes) -> None:
    with pytest.raises(BodyError, match="arrays and objects"):
        decode(b'{"model": "m", "messages": ' + opening * (MAX_CONTAINERS + 1))
    assert decode(b'{"x": "' + b"[" * (MAX_CONTAINERS - 1) + b'"}')["x"]


def test_the_same_text_by_another_role_is_another_prompt() -> None:
    texts = {chat(messages=[{"role": role, "content": "x"}]).pieces for role in ("user", "assistant", "system", None)}
    assert len(texts) == 4


@pytest.mark.parametrize(
    ("value", "means"),
    [(True, True), ("true", True), (1, True), (False, False), (None, False), ("false", False), ({}, False)],
)
def test_stream_is_read_as_leniently_as_engines_read_it(value: Any, means: bool) -> None:
    assert chat(stream=value).stream is means


@pytest.mark.parametrize(
    ("fields", "tokens"),
    [
        ({"max_tokens": 5, "max_completion_tokens": 7}, 7),
        ({"max_tokens": 5}, 5),
        ({"max_tokens": "5"}, 5),
        ({"max_tokens": 5.0}, 5),
        ({"max_tokens": 1e300}, limits.MAX_COUNT),
        ({"max_tokens": None}, None),
        ({}, None),
    ],
)
def test_the_output_cap_is_read_under_both_names_and_the_newer_one_wins(fields: Any, tokens: int | None) -> None:
    assert chat(**fields).max_output_tokens == tokens


@pytest.mark.parametrize("value", [-1, 1.5, True, "x", "-1", [], {}, float("inf"), float("nan")])
def test_an_output_cap_that_is_no_count_names_its_field(value: Any) -> None:
    with pytest.raises(BodyError) as caught:
        chat(max_tokens=value)
    assert caught.value.param == "max_tokens"


@pytest.mark.parametrize(
    ("fields", "choices"),
    [({}, 1), ({"n": 3}, 3), ({"n": 2, "best_of": 4}, 4), ({"n": 0}, 1), ({"n": 1e30}, limits.MAX_CHOICES)],
)
def test_choices_are_what_the_engine_computes(fields: Any, choices: int) -> None:
    assert chat(**fields).choices == choices


NEEDS: list[tuple[dict[str, Any], set[Capability]]] = [
    ({}, set()),
    ({"tools": []}, set()),
    ({"tools": [TOOL]}, {Capability.TOOLS}),
    ({"tools": [TOOL], "tool_choice": "none"}, set()),
    ({"functions": [{"name": "f"}]}, {Capability.TOOLS}),
    ({"response_format": {"type": "text"}}, set()),
    ({"response_format": {"type": "json_object"}}, {Capability.JSON_SCHEMA}),
    ({"response_format": {"type": "json_schema", "json_schema": {}}}, {Capability.JSON_SCHEMA}),
    ({"guided_json": {"type": "object"}}, {Capability.JSON_SCHEMA}),
    ({"guided_regex": "a+"}, {Capability.JSON_SCHEMA}),
    ({"guided_grammar": "root ::= x"}, {Capability.JSON_SCHEMA}),
    ({"guided_json": None, "structured_outputs": None}, set()),
    ({"structured_outputs": {"choice": ["a"]}}, {Capability.JSON_SCHEMA}),
    ({"grammar": "root ::= x"}, {Capability.JSON_SCHEMA}),
    ({"logprobs": True}, {Capability.LOGPROBS}),
    ({"logprobs": False, "top_logprobs": 0}, set()),
    ({"top_logprobs": 5}, {Capability.LOGPROBS}),
    ({"prompt_logprobs": 0}, {Capability.LOGPROBS}),
    ({"reasoning_effort": "low"}, {Capability.REASONING}),
    ({"reasoning_effort": "none"}, set()),
    ({"reasoning": {"effort": "high"}}, {Capability.REASONING}),
    ({"thinking": {"type": "enabled"}}, {Capability.REASONING}),
    ({"thinking": {"type": "disabled"}}, set()),
    ({"chat_template_kwargs": {"enable_thinking": True}}, {Capability.REASONING}),
    ({"chat_template_kwargs": {"enable_thinking": False}}, set()),
    ({"modalities": ["text", "audio"]}, {Capability.AUDIO}),
]


@pytest.mark.parametrize(("fields", "needs"), NEEDS)
def test_switches_say_what_an_instance_must_be_able_to_do(fields: Any, needs: set[Capability]) -> None:
    assert chat(**fields).needs == needs


SESSIONS: list[tuple[dict[str, Any], str]] = [
    ({"user": "u"}, "u"),
    ({"user": "u", "safety_identifier": "i"}, "i"),
    ({"user": "u", "safety_identifier": "i", "prompt_cache_key": "k"}, "k"),
    ({"user": "u", "conversation": {"id": "c"}}, "c"),
    ({"conversation": "c"}, "c"),
    ({"previous_response_id": "r"}, "r"),
    ({"user": "u", "previous_response_id": "r"}, "u"),
    ({"metadata": {"user_id": "mu"}}, "mu"),
    ({"metadata": {"user_id": "mu", "session_id": "ms"}}, "ms"),
    ({"user": 7, "metadata": "x", "conversation": []}, ""),
]


@pytest.mark.parametrize(("fields", "session"), SESSIONS)
def test_the_session_is_what_names_one_conversation_most_closely(fields: Any, session: str) -> None:
    assert chat(**fields).session == session


def test_long_session_names_that_differ_at_their_end_stay_apart() -> None:
    first, second = (chat(user="u" * 1000 + end).session for end in "ab")
    assert first != second
    assert len(first) < 100


@pytest.mark.parametrize(
    ("path", "fields", "reuses"),
    [
        ("/v1/completions", {}, True),
        ("/v1/completions", {"logprobs": 1}, True),
        ("/v1/completions", {"echo": True}, True),
        ("/v1/completions", {"echo": True, "logprobs": 0}, False),
        ("/v1/completions", {"prompt_logprobs": 0}, False),
        ("/v1/chat/completions", {"logprobs": True, "top_logprobs": 2}, True),
        ("/v1/chat/completions", {"echo": True}, False),  # which vLLM takes for a wish for the prompt's as well
        ("/v1/chat/completions", {"prompt_logprobs": 1}, False),
    ],
)
def test_who_wants_log_probabilities_of_the_prompt_has_it_computed_anew(
    path: str, fields: dict[str, Any], reuses: bool
) -> None:
    """Whatever the engine holds of it, so no instance is the better for holding it."""
    body = {"model": "m", "prompt": "x", "messages": [{"role": "user", "content": "x"}]}
    del body["messages" if path == "/v1/completions" else "prompt"]
    endpoint = endpoint_for("POST", path)
    assert endpoint is not None
    assert endpoint.parse(orjson.dumps(body | fields), "").reuses_cache == reuses


@pytest.mark.parametrize(
    ("fields", "counted"),
    [
        ({}, True),
        ({"tools": [TOOL]}, True),
        ({"tools": [TOOL], "tool_choice": "none"}, False),  # engines differ in whether the model sees them
        ({"tool_choice": "none"}, True),
        ({"add_special_tokens": False}, True),
        ({"add_special_tokens": True}, False),
        ({"truncate_prompt_tokens": 5}, False),
    ],
)
def test_a_chat_is_counted_where_its_prompt_is_sure(fields: dict[str, Any], counted: bool) -> None:
    """A wrong count is worse than none."""
    what = chat(**fields).countable
    assert what is not None
    assert (what() is not None) == counted


@pytest.mark.parametrize(
    ("fields", "arguments"),
    [
        ({"reasoning_effort": "low"}, {"reasoning_effort": "low", "enable_thinking": True}),
        ({"reasoning_effort": "none"}, {"reasoning_effort": "none", "enable_thinking": False}),
        (
            {"reasoning_effort": "low", "chat_template_kwargs": {"reasoning_effort": "x", "enable_thinking": False}},
            {"reasoning_effort": "low", "enable_thinking": False},
        ),
        ({}, {}),
    ],
)
def test_the_effort_that_is_asked_for_reaches_the_template(fields: dict[str, Any], arguments: dict[str, Any]) -> None:
    """Under the names and in the order of precedence that vLLM has."""
    what = chat(**fields).countable
    assert what is not None
    conversation = what()
    assert isinstance(conversation, Conversation)
    assert conversation.arguments == arguments


@pytest.mark.parametrize("tier", ["flex", "batch"])
def test_a_client_that_can_wait_says_so_by_its_service_tier(tier: str) -> None:
    assert chat(service_tier=tier).deferrable
    assert not chat(service_tier="auto").deferrable


def test_salt_and_priority_are_read_and_wrong_types_ignored() -> None:
    prompt = chat(cache_salt="s", priority=-3)
    assert (prompt.cache_salt, prompt.priority) == ("s", -3)
    prompt = chat(cache_salt=1, priority="high")
    assert (prompt.cache_salt, prompt.priority) == ("", None)
    assert chat(priority=True).priority is None


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": PNG_URL}},
        {"type": "input_image", "image_url": PNG_URL},
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PNG_URL}},
        {"type": "input_audio", "input_audio": {"data": PNG_URL, "format": "wav"}},
        {"type": "video_url", "video_url": {"url": PNG_URL}},
        {"type": "file", "file": {"file_data": PNG_URL, "filename": "a.pdf"}},
        {"image_url": PNG_URL},
    ],
)
def test_media_count_by_estimate_and_leave_a_short_digest(part: dict[str, Any]) -> None:
    prompt = saying([part])
    other = saying([orjson.loads(orjson.dumps(part).replace(b"iVBORw0KGgo", b"iVBORw0KGgp", 1))])
    assert prompt.media_tokens > 0
    assert sum(map(len, prompt.pieces)) < 50
    assert prompt.pieces != other.pieces


@pytest.mark.parametrize(
    ("part", "need"),
    [
        ({"type": "image_url", "image_url": {"url": "https://x/y.png"}}, Capability.VISION),
        ({"type": "image_url", "image_url": None, "uuid": "u"}, Capability.VISION),
        ({"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}, Capability.AUDIO),
        ({"type": "audio_url", "audio_url": {"url": "https://x/y.mp3"}}, Capability.AUDIO),
        ({"type": "video_url", "video_url": {"url": "https://x/y.mp4"}}, Capability.VISION),
    ],
)
def test_media_need_an_instance_that_takes_them(part: dict[str, Any], need: Capability) -> None:
    assert saying([part]).needs == {need}


def test_detail_low_costs_what_openai_counts_for_it() -> None:
    def tokens(detail: str) -> int:
        return saying([{"type": "image_url", "image_url": {"url": "https://x/y.png", "detail": detail}}]).media_tokens

    assert (tokens("low"), tokens("high"), tokens("auto")) == (85, 765, 765)


@pytest.mark.parametrize("name", ["image_embeds", "unheard_of"])
def test_data_in_parts_that_nobody_knows_is_no_text(name: str) -> None:
    prompt = saying([{"type": name, name: "QUJD" * 10_000}])
    assert sum(map(len, prompt.pieces)) < 120
    text = "Ein Satz mit vielen Wörtern. " * 1000
    assert text.encode() in saying([{"type": name, name: text}]).pieces[0]
    numbers = list(range(1000))
    assert orjson.dumps(numbers) in saying([{"type": name, "numbers": numbers, name: "x"}]).pieces[0]


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"model": None}, "model"),
        ({"model": ""}, "model"),
        ({"model": 7}, "model"),
        ({"model": "m" * 10_000}, "model"),
        ({"messages": None}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": [None]}, "messages[0]"),
        ({"messages": [USER] * (limits.MAX_MESSAGES + 1)}, "messages"),
        ({"messages": [{"role": "user", "content": ["x"] * (limits.MAX_PARTS + 1)}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": ["x"] * (limits.MAX_PARTS // 2)}] * 3}, "messages[2].content"),
    ],
)
def test_a_refused_body_names_the_field_at_fault(changes: dict[str, Any], param: str) -> None:
    with pytest.raises(BodyError) as caught:
        chat(**changes)
    assert caught.value.param == param
    assert len(caught.value.message) < 200


DEEP = {
    "tools": b'{"model":"m","messages":[{"role":"user","content":"x"}],"tools":%s}',
    "content": b'{"model":"m","messages":[{"role":"user","content":%s}]}',
    "role": b'{"model":"m","messages":[{"role":%s,"content":"x"}]}',
    "tool_calls": b'{"model":"m","messages":[{"role":"user","tool_calls":%s}]}',
    "unknown part": b'{"model":"m","messages":[{"role":"user","content":[{"type":"x","y":"%s","z":%%s}]}]}'
    % (b"y " * 999),
    "user": b'{"model":"m","messages":[{"role":"user","content":"x"}],"user":%s}',
}


@pytest.mark.parametrize("field", DEEP)
@pytest.mark.parametrize("depth", [100, 250, 300, 1000, 100_000])
def test_deep_nesting_is_taken_or_refused_but_never_overflows(field: str, depth: int) -> None:
    data = DEEP[field] % (b"[" * depth + b"]" * depth)
    try:
        parse_chat(decode(data))
    except BodyError as error:
        assert depth > 250, error.message  # noqa: PT017 - only what is deep may be refused


@pytest.mark.parametrize(
    "data",
    [b"", b"null", b"[]", b'"x"', b"7", b'{"model": "m"', b"\xef\xbb\xbf{}", b'{"a": "\xff"}', b'{"a": "\\ud800"}'],
)
def test_what_is_no_json_object_is_refused_as_a_whole(data: bytes) -> None:
    with pytest.raises(BodyError) as caught:
        decode(data)
    assert caught.value.param is None


def test_of_duplicate_keys_the_last_counts_as_in_every_engine() -> None:
    assert decode(b'{"model": "a", "model": "b"}') == {"model": "b"}
