"""A call of another model: wherever a call names one, it names the new one, and nothing else changes."""

from __future__ import annotations

import pytest

from extproc.api.multipart import decode_form
from extproc.api.paths import endpoint_for
from extproc.api.pieces import Pieces
from extproc.api.renaming import Renamed, renamed, renamed_at, site_of
from tests.api.test_multipart import TYPE, form, part

WAV = part("file", b"\r\n--xy\0" + bytes(range(256)), "a.wav")
JSON = "application/json"


def rename(path: str, body: bytes, content_type: str = JSON, old: str = "auto", new: str = "m/1") -> Renamed:
    """A renamed call; the same comes of it if others have looked for the model's place, and the body came in parts."""
    endpoint = endpoint_for("POST", path)
    assert endpoint is not None
    at_once = renamed(endpoint, path, content_type, body, old, new)
    site, parts = site_of(endpoint, content_type, body, named=bool(old)), (body[:9], memoryview(body)[9:])
    later = renamed_at(site, endpoint, path, content_type, parts, new)
    assert (whole(later.body), later.path) == (whole(at_once.body), at_once.path)
    return at_once


def whole(body: Pieces | None) -> bytes | None:
    return None if body is None else b"".join(body)


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/openai/deployments/auto/score?a=/models/b/", "/openai/deployments/m%2F1/score?a=/models/b/"),
        ("//openai//deployments//auto//chat//completions//", "//openai//deployments//m%2F1//chat//completions//"),
        ("/models/x/deployments/a%2Fto/embeddings", "/models/x/deployments/m%2F1/embeddings"),
        ("/v2/models/auto/generate", "/v2/models/m%2F1/generate"),
        ("/v2/models/auto/versions/1/generate", "/v2/models/m%2F1/versions/1/generate"),
        ("/v2/models/models/versions/models/generate/", "/v2/models/m%2F1/versions/models/generate/"),
    ],
)  # fmt: skip
def test_a_path_that_names_the_model_names_the_new_one_and_the_body_only_if_it_did(path: str, expected: str) -> None:
    """Some engines take members that they do not know amiss, so that a body is given none."""
    assert rename(path, b'{"a":{"model":1}}') == Renamed(None, expected)
    assert rename(path, b'{"a":1, "model":"b"}') == Renamed((b'{"a":1, "model":"m/1"}',), expected)
    assert rename(path, b'{"a":1, "model":null}') == Renamed((b'{"a":1, "model":"m/1"}',), expected)


@pytest.mark.parametrize(
    "path", ["/v1/chat/completions", "/deployments/chat/completions", "/deployments/x/y/chat/completions"]
)
def test_other_paths_stay(path: str) -> None:
    """The body alone names the model, or is given one."""
    assert rename(path, b'{"model":"auto"}') == Renamed((b'{"model":"m/1"}',), None)
    assert rename(path, b'{"a":1}', old="") == Renamed((b'{"model":"m/1","a":1}',), None)


@pytest.mark.parametrize("path", ["/v1/audio/transcriptions", "/v1/images/edits"])
def test_forms_are_renamed_where_they_name_a_model(path: str) -> None:
    """All fields of the name, no file of that name, and whatever else is in the form."""
    before, after = part("prompt", b'name="model"'), part("model", b"not me", "model")
    body = b"preamble\r\n" + form(before, part("model", b"auto"), WAV, part("model", b""), after)
    expected = b"preamble\r\n" + form(before, part("model", b"m/1"), WAV, part("model", b"m/1"), after)
    assert rename(path, body, TYPE) == Renamed((expected,), None)
    assert decode_form(expected, TYPE).fields == {"prompt": 'name="model"', "model": "m/1"}


def test_a_form_without_a_model_is_given_one_unless_the_path_names_it() -> None:
    """Before all other fields."""
    for preamble in (b"", b"preamble\r\n"):
        body = preamble + form(WAV)
        added = rename("/v1/audio/transcriptions", body, TYPE, old="").body
        assert added == (preamble + form(part("model", b"m/1"), WAV),)
    path = "/openai/deployments/auto/audio/transcriptions"
    assert rename(path, form(WAV), TYPE) == Renamed(None, path.replace("auto", "m%2F1"))


def test_an_api_that_takes_json_or_forms_is_told_by_the_content_type() -> None:
    """Images, and JSON sent as whatever else to those that take no forms."""
    assert rename("/v1/images/edits", b'{"model":"auto"}') == Renamed((b'{"model":"m/1"}',), None)
    assert rename("/v1/embeddings", b'{"model":"auto"}', TYPE) == Renamed((b'{"model":"m/1"}',), None)


def test_what_named_the_model_already_stays() -> None:
    """Nothing is to be sent anew."""
    path = "/v2/models/m%2F1/generate"
    assert rename(path, b"{}") == Renamed(None, None)
