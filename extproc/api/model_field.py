"""Another model's name in a JSON body, whose other bytes stay as they are.

Bodies are long and mostly prompt, so they are not written anew: that would change numbers, escapes and the order of
members, and with them what engines and clients compare or sign. What is looked for is found by searches that run in C.

Of several members of one name engines take the last (Python's json, orjson, nlohmann's) or refuse (serde's): all are
changed, so that nobody sees the old name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import orjson

from extproc.core.values.model_site import ModelSite, Span

# These read bodies without escaped quotes (`_masked`): to step over escapes one by one takes ten times as long.
# Possessive: nothing is tried twice, so that time is linear and no stack grows.
_STRING = rb'"[^"]*+"'
_PLAIN = rb'[^"\[\]{}]++|' + _STRING
_FLAT = rb"\{(?:" + _PLAIN + rb")*+\}|\[(?:" + _PLAIN + rb")*+\]"  # holds no array and no object
_SHALLOW = rb"\{(?:" + _PLAIN + rb"|" + _FLAT + rb")*+\}|\[(?:" + _PLAIN + rb"|" + _FLAT + rb")*+\]"
_BRACKET = re.compile(rb"(?:" + _PLAIN + rb"|" + _SHALLOW + rb")*+[\[\]{}]", re.DOTALL)
_MODEL = b'"model"'
_SPACE = rb"[ \t\r\n]*+"
_NAME = re.compile(_SPACE + rb",?+" + _SPACE + rb"(" + _STRING + rb")" + _SPACE + rb":" + _SPACE, re.DOTALL)
_VALUE = re.compile(_STRING + rb"|" + _SHALLOW + rb"|[^][{}\s,]++", re.DOTALL)
_ONLY = re.compile(_MODEL + _SPACE + rb":" + _SPACE + rb'("[^"\\]*+(?:\\.[^"\\]*+)*+")', re.DOTALL)  # not masked
_EMPTY = re.compile(_SPACE + rb"\}")
_FEW = 16  # parts of a body
_CLOSING = frozenset(b"]}")


def with_model(body: bytes, model: str, *, named: bool = False, add: bool = True) -> bytes:
    """A JSON object with this `model`; no other byte differs.

    Without a `model` it gets one, as its first member, or with `add` unset stays the same object. `body` must be
    an object that `api.body.decode` reads. `named`: it is known to have a `model` of its own; mostly spares a scan.
    """
    site = model_site(body, named=named, add=add)
    return replaced(body, site.spans, site.filled(orjson.dumps(model))) if site.spans else body


def model_site(body: bytes, *, named: bool = False, add: bool = True) -> ModelSite:
    """Where such an object names its model, or is to. Arguments as of `with_model`; the name is to be JSON."""
    spans = tuple(model_spans(body, named=named))
    if spans or not add:
        return ModelSite(spans)
    start = body.index(b"{") + 1
    return ModelSite(((start, start),), _MODEL + b":", b"" if _EMPTY.match(body, start) else b",")


def replaced(body: bytes, spans: Sequence[Span], text: bytes) -> bytes:
    """The body with a text in place of these parts of it, which are in order."""
    # Views spare a copy of long parts; of very many, the collector of garbage would look at all again and again.
    view = memoryview(body) if len(spans) <= _FEW else body
    parts, at = list[bytes | memoryview](), 0
    for start, end in spans:
        parts += (view[at:start], text)
        at = end
    return b"".join((*parts, view[at:]))


def model_spans(body: bytes, *, named: bool = False) -> list[Span]:
    """Where the values of the document's own `model` members stand, in order. Arguments as of `with_model`."""
    escaped = b"\\u006" in body  # as each of the five letters may be written
    last = body.rfind(_MODEL)
    if last < 0 and not escaped:
        return []
    # Its name has to be written like this; if that stands in one place only, it is there.
    only = named and not escaped and body.find(_MODEL, 0, last + len(_MODEL) - 1) < 0
    if only and (member := _ONLY.match(body, last)):
        return [member.span(1)]
    return list(_spans(body, len(body) if escaped else last))


def _spans(body: bytes, last: int) -> Iterator[Span]:
    """The same, from a look at all members of the document that begin no later than at `last`."""
    masked = _masked(body)
    at = body.index(b"{") + 1
    while at <= last and (member := _NAME.match(masked, at)):
        at = _end_of_value(masked, member.end())
        name = body[slice(*member.span(1))]
        if name == _MODEL or (b"\\" in name and orjson.loads(name) == "model"):
            yield member.end(), at


def _masked(body: bytes) -> bytes:
    """The body with other bytes in place of escaped quotes and backslashes: no quote in it is part of a string.

    Backslashes stand in strings alone and go in pairs from the left, so that a pair is never taken for two halves.
    """
    return body.replace(rb"\\", b"__").replace(rb"\"", b"__")


def _end_of_value(body: bytes, start: int) -> int:
    """Where the value ends that begins at `start` of a masked body."""
    if value := _VALUE.match(body, start):
        return value.end()
    depth = 0
    for found in _BRACKET.finditer(body, start):
        depth += -1 if body[found.end() - 1] in _CLOSING else 1
        if not depth:
            return found.end()
    raise ValueError("the body is no JSON document")
