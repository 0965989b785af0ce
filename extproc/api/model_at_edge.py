"""The model of a large JSON body that nobody has read: looked for at its end and its beginning, where clients write it.

Only the document's own member counts. Its depth is told by the brackets between it and the edge.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

import orjson

from extproc.api.body import MAX_MODEL_CHARS, Chunk
from extproc.api.pieces import size_of
from extproc.core.values.model_site import ModelSite

_EDGE_BYTES = 64 * 1024
_MODEL = re.compile(rb'[{,][ \t\r\n]*"model"[ \t\r\n]*:[ \t\r\n]*("[^"\\]{1,%d}")' % MAX_MODEL_CHARS)
_STRING = re.compile(rb'"[^"]*+"')  # without escapes: else a quote that is never closed is looked for again and again
_MOST = 100  # members of that name that are looked at: in a millisecond
_TOP = 1  # depth of the document's own members


@dataclass(frozen=True, slots=True)
class Named:
    """A model's name, and where it stands."""

    model: str
    site: ModelSite


def model_at_edge(chunks: Sequence[Chunk]) -> Named | None:
    """The last model named at the body's end, else the first at its beginning."""
    end = _end(chunks)
    found = _last(end)
    if found is not None:
        return _named(found, size_of(chunks) - len(end))
    found = _first(_beginning(chunks))
    return None if found is None else _named(found, 0)


def _named(found: re.Match[bytes], offset: int) -> Named | None:
    start, end = found.span(1)
    try:
        return Named(str(orjson.loads(found[1])), ModelSite(((offset + start, offset + end),)))
    except orjson.JSONDecodeError:
        return None


def _last(text: bytes) -> re.Match[bytes] | None:
    """The document's last member of that name in its end."""
    depth, end = 0, len(text)
    for found in reversed(deque(_MODEL.finditer(text), _MOST)):
        depth -= _opened(text[found.end() : end])
        if depth == _TOP:
            return found
        depth -= _opened(found[0])
        end = found.start()
    return None


def _first(text: bytes) -> re.Match[bytes] | None:
    """The document's first member of that name in its beginning."""
    depth = at = 0
    for found in islice(_MODEL.finditer(text), _MOST):
        depth += _opened(text[at : found.end()])
        if depth == _TOP:
            return found
        at = found.end()
    return None


def _opened(text: bytes) -> int:
    """How many more arrays and objects a text opens than it closes that begins and ends outside of strings."""
    bare = _STRING.sub(b"", text.replace(rb"\\", b"").replace(rb"\"", b""))
    return bare.count(b"{") + bare.count(b"[") - bare.count(b"}") - bare.count(b"]")


def _beginning(chunks: Sequence[Chunk]) -> bytes:
    return bytes(chunks[0][:_EDGE_BYTES]) if chunks else b""


def _end(chunks: Sequence[Chunk]) -> bytes:
    """A body's end, which may have come in small chunks."""
    parts: list[Chunk] = []
    missing_bytes = _EDGE_BYTES
    for chunk in reversed(chunks):
        parts.append(chunk[-missing_bytes:])
        missing_bytes -= len(parts[-1])
        if missing_bytes <= 0:
            break
    return b"".join(reversed(parts))
