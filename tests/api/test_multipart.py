"""Forms: what is read of them, what is refused, and that files are never copied."""

from __future__ import annotations

import pytest

from extproc.api import openai_audio, openai_images
from extproc.api.body import BodyError
from extproc.api.multipart import MAX_FORM_PARTS, MAX_PART_HEAD_BYTES, decode_form
from extproc.core.values.instance import Capability

TYPE = "multipart/form-data; boundary=xyz"


def part(name: str, value: bytes, filename: str | None = None) -> bytes:
    file = "" if filename is None else f'; filename="{filename}"\r\nContent-Type: audio/wav'
    return f'--xyz\r\nContent-Disposition: form-data; name="{name}"{file}\r\n\r\n'.encode() + value + b"\r\n"


def form(*parts: bytes) -> bytes:
    return b"".join(parts) + b"--xyz--\r\n"


def test_fields_and_files_are_told_apart_and_files_not_copied() -> None:
    body = form(part("model", b"m"), part("file", b"\r\n--xy\0binary", "a.wav"), part("model", "ü".encode()))
    read = decode_form(body, TYPE)
    assert read.fields == {"model": "ü"}
    [(name, file)] = read.files
    assert (name, file.name, bytes(file.data)) == ("file", "a.wav", b"\r\n--xy\0binary")
    assert file.data.obj is body


@pytest.mark.parametrize(
    "content_type",
    [
        "multipart/form-data; boundary=xyz",
        'multipart/form-data; boundary="xyz"',
        "Multipart/Form-Data;BOUNDARY=xyz; charset=utf-8",
        "multipart/form-data; charset=utf-8;boundary=xyz",
    ],
)
def test_the_boundary_is_found_however_it_is_written(content_type: str) -> None:
    assert decode_form(form(part("a", b"1")), content_type).fields == {"a": "1"}


@pytest.mark.parametrize(
    "head",
    [
        b'content-disposition: form-data; name="a"',
        b"Content-Disposition: form-data; name=a",
        b'Content-Type: text/plain\r\nContent-Disposition: form-data; name="a"',
        b'Content-Disposition:form-data;name="a"',
    ],
)
def test_part_heads_are_read_in_every_usual_spelling(head: bytes) -> None:
    assert decode_form(b"preamble\r\n--xyz  \r\n" + head + b"\r\n\r\n1\r\n--xyz--", TYPE).fields == {"a": "1"}


@pytest.mark.parametrize(
    ("body", "content_type"),
    [
        (form(part("a", b"1")), "application/json"),
        (form(part("a", b"1")), "multipart/form-data"),
        (form(part("a", b"1")), ""),
        (form(part("a", b"1")), "multipart/form-data; boundary=other"),
        (b"", TYPE),
        (part("a", b"1"), TYPE),
        (part("a", b"1")[:-8], TYPE),
        (b"--xyz\r\n\r\n1\r\n--xyz--", TYPE),
        (b"--xyz\r\nContent-Disposition: form-data\r\n\r\n1\r\n--xyz--", TYPE),
        (b"--xyzzy\r\n" + part("a", b"1"), TYPE),
        (b"--xyz\r\n" + b"a: b\r\n" * MAX_PART_HEAD_BYTES + form(part("a", b"1")), TYPE),
        (form(*[part("a", b"1")] * (MAX_FORM_PARTS + 1)), TYPE),
        (form(part("a", b"1" * (1 << 21))), TYPE),
    ],
)
def test_what_is_no_whole_form_within_the_limits_is_refused(body: bytes, content_type: str) -> None:
    with pytest.raises(BodyError):
        decode_form(body, content_type)


def test_an_empty_form_has_nothing() -> None:
    read = decode_form(b"--xyz--\r\n", TYPE)
    assert (read.fields, read.files) == ({}, [])


def test_a_transcription_needs_its_file_and_counts_it_by_its_length() -> None:
    mp3 = b"\xff\xfb" + bytes(160_000)
    read = decode_form(form(part("file", mp3, "a.mp3"), part("model", b"w"), part("stream", b"true")), TYPE)
    prompt = openai_audio.parse_transcription(read)
    assert (prompt.model, prompt.stream, prompt.media_tokens) == ("w", True, 500)
    assert prompt.needs == {Capability.TRANSCRIPTION}
    with pytest.raises(BodyError) as caught:
        openai_audio.parse_transcription(decode_form(form(part("model", b"w")), TYPE))
    assert caught.value.param == "file"


def test_two_files_are_two_prompts() -> None:
    pieces = {
        openai_audio.parse_translation(decode_form(form(part("file", data, "a")), TYPE)).pieces for data in (b"1", b"2")
    }
    assert len(pieces) == 2


def test_pictures_to_edit_may_come_as_a_list_and_with_a_mask() -> None:
    body = form(part("image[]", b"1", "a"), part("image[]", b"2", "b"), part("mask", b"3", "c"), part("n", b"2"))
    prompt = openai_images.parse_edit_form(decode_form(body, TYPE))
    assert (len(prompt.pieces), prompt.choices, prompt.media_tokens) == (4, 2, 3 * 765)
