"""Forms (multipart/form-data, RFC 7578): fields as text, files as views of the body, without copying them.

Our own parser, because the kept libraries (python-multipart, multipart, the standard library's email) feed callbacks or
files chunk by chunk and copy on the way; here the whole body is in memory and has to be looked at once. It takes what
browsers, httpx, requests, aiohttp and curl send: CRLF line ends, one header block a part, no nesting.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from extproc.api.body import Body, BodyError
from extproc.api.model_field import replaced
from extproc.core.values.model_site import ModelSite

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
    form = Form()
    view = memoryview(body)
    for part in _parts(body, b"--" + _boundary(content_type)):
        name, start, end = part.name, part.start, part.end
        if part.filename is not None:
            form.files.append((name.removesuffix("[]"), File(part.filename, view[start:end])))
        elif end - start > MAX_FIELD_BYTES:
            raise BodyError(f"'{name[:100]}' must not be longer than {MAX_FIELD_BYTES} bytes.", name[:100])
        else:
            form.fields[name] = body[start:end].decode("utf-8", "replace")
    return form


def with_field(body: bytes, content_type: str, name: str, value: str, *, add: bool = True) -> bytes:
    """The form with this value of a field; no other byte differs. Raises BodyError as `decode_form` does.

    Fields of that name are all changed. If there is none, one is added before all others, unless `add` is unset.
    Names are ASCII.
    """
    site = field_site(body, content_type, name, add=add)
    return replaced(body, site.spans, site.filled(value.encode())) if site.spans else body


def field_site(body: bytes, content_type: str, name: str, *, add: bool = True) -> ModelSite:
    """Where a form says a field's value, or is to. Arguments as of `with_field`."""
    delimiter = b"--" + _boundary(content_type)
    parts = _parts(body, delimiter)
    spans = tuple([(part.start, part.end) for part in parts if part.name == name and part.filename is None])
    if spans or not add:
        return ModelSite(spans)
    start = _first_delimiter(body, delimiter)
    head = b'%b\r\nContent-Disposition: form-data; name="%b"' % (delimiter, name.encode())
    return ModelSite(((start, start),), head + _HEAD_END, b"\r\n")


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


@dataclass(frozen=True, slots=True)
class _Part:
    """What a part is named, and where in the body its content stands. `filename`: None if it is no file."""

    name: str
    filename: str | None
    start: int
    end: int


def _parts(body: bytes, delimiter: bytes) -> Iterator[_Part]:
    at = _after_delimiter(body, _first_delimiter(body, delimiter) + len(delimiter))
    for _ in range(MAX_FORM_PARTS):
        if at is None:
            return
        part = _part(body, at, b"\r\n" + delimiter)
        yield part
        at = _after_delimiter(body, part.end + 2 + len(delimiter))
    if at is not None:
        raise BodyError(f"The form must not have more than {MAX_FORM_PARTS} parts.")


def _first_delimiter(body: bytes, delimiter: bytes) -> int:
    """Where it begins; a preamble before it is skipped."""
    if body.startswith(delimiter):
        return 0
    found = body.find(b"\r\n" + delimiter)
    if found < 0:
        raise BodyError("The form's boundary does not occur in the body.")
    return found + 2


def _after_delimiter(body: bytes, at: int) -> int | None:
    """Start of the part that follows a delimiter which ends at `at`; None after the last one."""
    if body.startswith(b"--", at):
        return None
    end = body.find(b"\r\n", at, at + 200)
    if end < 0 or body[at:end].strip(b" \t"):
        raise BodyError("The form is broken after a boundary.")
    return end + 2


def _part(body: bytes, start: int, delimiter: bytes) -> _Part:
    """The part whose head begins at `start`."""
    head_end = body.find(_HEAD_END, start, start + MAX_PART_HEAD_BYTES)
    if head_end < 0:
        raise BodyError("A part of the form has no head, or one that is too long.")
    content = head_end + len(_HEAD_END)
    end = body.find(delimiter, content)
    if end < 0:
        raise BodyError("The form ends before its last boundary.")
    return _Part(*_disposition(body[start:head_end]), content, end)


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
