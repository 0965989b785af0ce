"""Forms (multipart/form-data, RFC 7578): fields as text, files as views of the body, without copying them.

Our own parser, because the kept libraries (python-multipart, multipart, the standard library's email) feed callbacks or
files chunk by chunk and copy on the way; here the whole body is in memory and has to be looked at once. It takes what
browsers, httpx, requests, aiohttp and curl send: CRLF line ends, one header block a part, no nesting.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from extproc.api.body import Body, BodyError

MAX_FORM_PARTS = 1000
MAX_PART_HEAD_BYTES = 8192
MAX_FIELD_BYTES = 1 << 20  # of one field that is no file

_BOUNDARY = re.compile(r""";\s*boundary=(?:"([^"]{1,200})"|([^\s;,"]{1,200}))""", re.IGNORECASE)
_PARAMETER = re.compile(rb';\s*(name|filename\*?)=(?:"((?:[^"\\]|\\.)*)"|([^\s;"]*))', re.IGNORECASE)
_HEAD_END = b"\r\n\r\n"


@dataclass(frozen=True, slots=True)
class File:
    """One uploaded file; `data` is a view of the body."""

    name: str
    data: memoryview


@dataclass(frozen=True, slots=True)
class Form:
    """A form's fields by name, the last of a name winning, and its files in their order, by name without "[]"."""

    fields: Body = field(default_factory=dict)
    files: list[tuple[str, File]] = field(default_factory=list)

    def files_named(self, *names: str) -> list[File]:
        """Files of these fields."""
        return [file for name, file in self.files if name in names]


def decode_form(body: bytes, content_type: str) -> Form:
    """Parse a form. Raises BodyError for whatever is none, is cut off, or is beyond the limits."""
    delimiter = b"--" + _boundary(content_type)
    form = Form()
    view = memoryview(body)
    at = _first_part(body, delimiter)
    parts = 0
    while at is not None:
        parts += 1
        if parts > MAX_FORM_PARTS:
            raise BodyError(f"The form must not have more than {MAX_FORM_PARTS} parts.")
        at = _take_part(form, body, view, at, b"\r\n" + delimiter)
    return form


def is_form(content_type: str) -> bool:
    """Whether a content type announces a form."""
    return content_type[:19].lower() == "multipart/form-data"


def _boundary(content_type: str) -> bytes:
    if not is_form(content_type):
        raise BodyError("The request body must be multipart/form-data.")
    found = _BOUNDARY.search(content_type)
    if found is None:
        raise BodyError("The content type multipart/form-data names no boundary.")
    return (found[1] or found[2]).encode("utf-8", "surrogateescape")


def _first_part(body: bytes, delimiter: bytes) -> int | None:
    """Where the first part's head begins; a preamble before it is skipped."""
    if body.startswith(delimiter):
        return _after_delimiter(body, len(delimiter))
    found = body.find(b"\r\n" + delimiter)
    if found < 0:
        raise BodyError("The form's boundary does not occur in the body.")
    return _after_delimiter(body, found + 2 + len(delimiter))


def _after_delimiter(body: bytes, at: int) -> int | None:
    """Start of the part that follows a delimiter which ends at `at`; None after the last one."""
    if body.startswith(b"--", at):
        return None
    end = body.find(b"\r\n", at, at + 200)
    if end < 0 or body[at:end].strip(b" \t"):
        raise BodyError("The form is broken after a boundary.")
    return end + 2


def _take_part(form: Form, body: bytes, view: memoryview, start: int, delimiter: bytes) -> int | None:
    """Add the part that begins at `start`; returns where the next one begins, None if it was the last."""
    head_end = body.find(_HEAD_END, start, start + MAX_PART_HEAD_BYTES)
    if head_end < 0:
        raise BodyError("A part of the form has no head, or one that is too long.")
    content = head_end + len(_HEAD_END)
    end = body.find(delimiter, content)
    if end < 0:
        raise BodyError("The form ends before its last boundary.")
    name, filename = _disposition(body[start:head_end])
    if filename is not None:
        form.files.append((name.removesuffix("[]"), File(filename, view[content:end])))
    elif end - content > MAX_FIELD_BYTES:
        raise BodyError(f"'{name[:100]}' must not be longer than {MAX_FIELD_BYTES} bytes.", name[:100])
    else:
        form.fields[name] = body[content:end].decode("utf-8", "replace")
    return _after_delimiter(body, end + len(delimiter))


def _disposition(head: bytes) -> tuple[str, str | None]:
    """A part's field name, and its file name if it is a file. Raises BodyError if it has no field name."""
    name = filename = None
    for line in head.split(b"\r\n"):
        if line[:20].lower() != b"content-disposition:":
            continue
        for key, quoted, plain in _PARAMETER.findall(line):
            value = (quoted or plain).decode("utf-8", "replace")
            if key.lower() == b"name":
                name = value
            else:
                filename = value
    if not name:
        raise BodyError("A part of the form has no name.")
    return name, filename
