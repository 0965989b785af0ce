"""No body, however wrong, raises anything but BodyError, and what is read of it is always well formed."""

from __future__ import annotations

import base64
import string
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from extproc.api.body import MAX_COUNT, BodyError
from extproc.api.paths import endpoint_for
from extproc.core.values.instance import Capability
from extproc.core.values.request import Prompt

PAYLOADS = sorted((Path(__file__).parents[1] / "fixtures" / "payloads").glob("*.json"))
BOUNDED = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])

COMMON = """
    model stream user metadata conversation prompt_cache_key service_tier priority cache_salt n best_of
""".split()
CHAT = """
    messages tools functions tool_choice response_format logprobs reasoning thinking modalities
""".split()
FIELDS: dict[str, list[str]] = {
    "/v1/chat/completions": [*CHAT, "max_tokens", "documents", "chat_template_kwargs", "reasoning_effort"],
    "/v1/completions": ["prompt", "prompt_embeds", "suffix", "logprobs", "max_tokens"],
    "/v1/responses": ["input", "instructions", "tools", "text", "include", "max_output_tokens", "prompt"],
    "/v1/embeddings": ["input", "messages", "texts", "images", "inputs"],
    "/v1/rerank": ["query", "documents", "texts"],
    "/v1/score": ["text_1", "text_2", "queries", "items"],
    "/v1/audio/speech": ["input", "instructions"],
    "/v1/images/generations": ["prompt"],
    "/v1/images/edits": ["prompt", "image", "images"],
    "/v1/messages": ["messages", "system", "tools", "tool_choice", "thinking", "output_config", "max_tokens"],
    "/v1/messages/count_tokens": ["messages", "system"],
    "/tokenize": ["prompt", "messages"],
    "/detokenize": ["tokens"],
    "/pooling": ["input", "messages", "text"],
    "/classify": ["input", "text"],
    "/generate": ["text", "input_ids", "inputs", "sampling_params", "parameters", "image_data", "n_predict"],
}
KEYS = """
    type role content text name arguments input output function tool_calls function_call url detail
    image_url input_audio audio_url video_url source data file file_data format schema effort id user_id
    summary
""".split()
KINDS = """
    text image_url input_image image input_audio video_url file document tool_use tool_result thinking
    refusal redacted_thinking message function_call function_call_output reasoning json_schema base64
    content
""".split()
TEXTS = st.text(max_size=20) | st.sampled_from((*KINDS, "m", "data:image/png;base64,AAAA", "data:,", "7", "true"))
SCALARS = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | TEXTS
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4)
        | st.builds(lambda kind, rest: {"type": kind} | rest, st.sampled_from(KINDS), st.dictionaries(TEXTS, inner))
    ),
    max_leaves=12,
)


def check(path: str, body: bytes, content_type: str = "application/json") -> Prompt | None:
    """Read a body and look at the prompt that comes of it; None if it is refused, as only bodies may be."""
    endpoint = endpoint_for("POST", path)
    assert endpoint is not None
    try:
        prompt = endpoint.parse(body, content_type)
    except BodyError as error:
        assert 0 < len(error.message) < 500  # noqa: PT017 - no error is fine too
        return None
    assert prompt.api == endpoint.api
    assert all(type(piece) is bytes for piece in prompt.pieces)
    assert all(type(token_id) is int for token_id in prompt.token_ids)
    assert all(isinstance(need, Capability) for need in prompt.needs)
    assert prompt.media_tokens >= 0
    assert prompt.choices >= 1
    assert prompt.max_output_tokens is None or 0 <= prompt.max_output_tokens <= MAX_COUNT
    assert type(prompt.stream) is bool
    assert all(type(name) is str for name in (prompt.model, prompt.session, prompt.cache_salt))
    return prompt


@pytest.mark.parametrize("path", FIELDS)
def test_no_values_in_known_fields_raise_anything_but_the_declared_error(path: str) -> None:
    fields = st.fixed_dictionaries({"model": st.just("m")}, optional=dict.fromkeys(FIELDS[path], VALUES))
    rest = st.dictionaries(st.sampled_from(COMMON), VALUES, max_size=3)

    @BOUNDED
    @given(fields, rest)
    def run(body: dict[str, Any], other: dict[str, Any]) -> None:
        check(path, orjson.dumps(other | body))

    run()


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
def test_no_parts_of_a_message_raise_anything_but_the_declared_error(path: str) -> None:
    messages = st.lists(st.fixed_dictionaries({"role": TEXTS, "content": VALUES | st.lists(VALUES, max_size=4)}))

    @BOUNDED
    @given(messages.filter(bool))
    def run(body: list[dict[str, Any]]) -> None:
        assert check(path, orjson.dumps({"model": "m", "messages": body})) is not None

    run()


@BOUNDED
@given(st.sampled_from((*FIELDS, "/v1/audio/transcriptions", "/v1/audio/translations")), st.binary(), st.text())
def test_no_bytes_raise_anything_but_the_declared_error(path: str, data: bytes, content_type: str) -> None:
    assert check(path, data, content_type) is None or data


def mangled(draw: Callable[[st.SearchStrategy[Any]], Any], data: bytes) -> bytes:
    """A body with a few stretches cut out, doubled or overwritten."""
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(data)))
        end = min(len(data), start + draw(st.integers(0, 30)))
        put = draw(st.binary(max_size=8) | st.sampled_from([b"", data[start:end] * 2, b"null", b"[", b'"', b"\r\n"]))
        data = data[:start] + put + data[end:]
    return data


@pytest.mark.parametrize("file", PAYLOADS, ids=lambda file: file.stem)
def test_no_damage_to_a_real_payload_raises_anything_but_the_declared_error(file: Path) -> None:
    payload = orjson.loads(file.read_bytes())
    body = payload["body"].encode() if "body" in payload else base64.b64decode(payload["body_base64"])
    content_type = payload["headers"]["content-type"]

    @BOUNDED
    @given(st.data())
    def run(data: st.DataObject) -> None:
        check(payload["path"], mangled(data.draw, body), content_type)

    run()


NAMES = st.sampled_from(("model", "file", "image", "image[]", "mask", "prompt", "stream", "n", "priority"))
BOUNDARIES = st.text(string.ascii_letters + string.digits + "'-_", min_size=1, max_size=70)


@pytest.mark.parametrize("path", ["/v1/audio/transcriptions", "/v1/audio/translations", "/v1/images/edits"])
def test_every_well_formed_form_is_read_whatever_its_fields_hold(path: str) -> None:
    parts = st.lists(st.tuples(NAMES, st.none() | st.just("f"), st.binary(max_size=50)), max_size=6)

    @BOUNDED
    @given(BOUNDARIES, parts)
    def run(boundary: str, fields: list[tuple[str, str | None, bytes]]) -> None:
        body = b""
        for name, filename, value in fields:
            file = "" if filename is None else f'; filename="{filename}"'
            head = f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"{file}\r\n\r\n'
            body += head.encode() + value.replace(b"--", b"..") + b"\r\n"
        body += f"--{boundary}--".encode()
        prompt = check(path, body, f'multipart/form-data; boundary="{boundary}"')
        sure = not any(name in ("n", "model") for name, _, _ in fields)
        has_file = any(name == "file" and filename for name, filename, _ in fields)
        if sure and (has_file or "images" in path):
            assert prompt is not None

    run()
