"""Encoded messages as plain values in protobuf's JSON form, and nothing that their types do not know.

What `render` makes of a message, but from its encoded form and many times as fast, for files of a thousand clusters.
A field that the message's type does not have is an error here: Envoy would leave it out without a word when it reads a
file. Sources of both forms: https://protobuf.dev/programming-guides/encoding/ and .../json/.
"""

from __future__ import annotations

import struct
from base64 import b64encode
from collections.abc import Iterator
from dataclasses import dataclass, fields
from functools import cache
from types import NoneType
from typing import Any, get_args

from betterproto2 import FieldMetadata, Message
from envoy_data_plane.google.protobuf import Any as AnyMessage
from envoy_data_plane.google.protobuf import Duration
from envoy_data_plane.message_pool import default_message_pool

from extproc.control.render import field_name
from extproc.errors import ExtprocError

_VARINT, _EIGHT_BYTES, _LENGTH, _FOUR_BYTES = 0, 1, 2, 5
_SIGNED = {"int32", "int64"}
_ZIGZAG = {"sint32", "sint64"}
_AS_TEXT = {"int64", "uint64", "sint64", "fixed64", "sfixed64"}  # JSON numbers would lose digits
_FIXED = {"double": "<d", "float": "<f", "fixed32": "<I", "sfixed32": "<i", "fixed64": "<Q", "sfixed64": "<q"}


class FormError(ExtprocError):
    """Bytes that are no message of the type, or have something that the type does not know."""


@dataclass(frozen=True, slots=True)
class _Field:
    name: str  # as Envoy's documentation has it
    kind: str  # protobuf's name of the type
    of: Any  # the class of a message or enumeration
    repeated: bool = False
    wraps: bool = False  # a message that stands for its one value, such as UInt32Value
    key: _Field | None = None  # of a map; then `of` is the _Field of its values


def json_form(body: bytes, message: type[Message]) -> dict[str, Any]:
    """Plain values of an encoded message. Raises FormError."""
    table = _fields_of(message)
    result: dict[str, Any] = {}
    for number, wire, raw in _parts(body, message):
        field = table.get(number)
        if field is None:
            raise FormError(f"{message.__name__} has no field {number}")
        if field.key is not None:
            key, value = _entry(raw, field)
            result.setdefault(field.name, {})[key] = value
        elif not field.repeated:
            result[field.name] = _value(raw, wire, field)
        elif wire == _LENGTH and field.kind not in ("message", "string", "bytes"):
            raise FormError(f"{message.__name__}.{field.name} is packed, which nothing here writes")
        else:
            result.setdefault(field.name, []).append(_value(raw, wire, field))
    return result


def _parts(body: bytes, message: type[Message]) -> Iterator[tuple[int, int, int | bytes]]:
    """Number, wire type and undecoded value of each field."""
    at, end = 0, len(body)
    while at < end:
        try:
            tag, at = _varint(body, at)
            wire = tag & 7
            if wire == _VARINT:
                value, at = _varint(body, at)
                yield tag >> 3, wire, value
                continue
            length, at = _varint(body, at) if wire == _LENGTH else (_WIDTHS[wire], at)
        except (IndexError, KeyError):
            raise FormError(f"broken bytes of a {message.__name__}") from None
        if at + length > end:
            raise FormError(f"a {message.__name__} is cut off")
        yield tag >> 3, wire, body[at : at + length]
        at += length


_WIDTHS = {_EIGHT_BYTES: 8, _FOUR_BYTES: 4}


def _varint(body: bytes, at: int) -> tuple[int, int]:
    """A number of variable length and where it ends. Raises IndexError where it does not."""
    value = shift = 0
    while True:
        byte = body[at]
        value |= (byte & 0x7F) << shift
        at += 1
        if byte < 0x80:
            return value, at
        shift += 7


def _value(raw: int | bytes, wire: int, field: _Field) -> Any:
    kind = field.kind
    try:
        if isinstance(raw, int):
            return _number(raw, field)
        if kind == "message" and wire == _LENGTH:
            return _message(raw, field)
        if kind == "string" and wire == _LENGTH:
            return raw.decode()
        if kind == "bytes" and wire == _LENGTH:
            return b64encode(raw).decode()
        value = struct.unpack(_FIXED[kind], raw)[0]
    except (KeyError, ValueError, struct.error):
        raise FormError(f"the value of {field.name} is no {kind}") from None
    return str(value) if kind in _AS_TEXT else value


def _number(raw: int, field: _Field) -> Any:
    kind = field.kind
    if kind == "bool":
        return bool(raw)
    if kind == "enum":
        member = field.of(raw)
        if member not in _members(field.of):
            raise FormError(f"{field.name} has no value {raw}")
        return member.name
    if kind in _SIGNED and raw >> 63:
        raw -= 1 << 64
    elif kind in _ZIGZAG:
        raw = (raw >> 1) ^ -(raw & 1)
    elif kind not in ("uint32", "uint64", *_SIGNED):
        raise FormError(f"the value of {field.name} is no {kind}")
    return str(raw) if kind in _AS_TEXT else raw


@cache
def _members(enumeration: Any) -> frozenset[int]:
    return frozenset(enumeration)


def _message(raw: bytes, field: _Field) -> Any:
    if field.of is AnyMessage:
        return _any(raw)
    if field.of is Duration:
        return _duration(raw)
    if field.wraps:
        (inner,) = _fields_of(field.of).values()
        value = json_form(raw, field.of)
        return value.get(inner.name, _ZERO.get(inner.kind, 0))
    return json_form(raw, field.of)


_ZERO: dict[str, Any] = {"bool": False, "string": "", "bytes": "", "double": 0.0, "float": 0.0}
_ZERO |= dict.fromkeys(_AS_TEXT, "0")


def _any(raw: bytes) -> dict[str, Any]:
    """A packed message beside the URL of its type."""
    url, packed = "", b""
    for number, _, value in _parts(raw, AnyMessage):
        if number == 1 and isinstance(value, bytes):
            url = value.decode("utf-8", "replace")
        elif number == 2 and isinstance(value, bytes):
            packed = value
        else:
            raise FormError(f"Any has no field {number}")
    message = default_message_pool.url_to_type.get(url)
    if message is None:
        raise FormError(f"nothing is known of the type '{url}'")
    return {"@type": url, **json_form(packed, message)}


def _duration(raw: bytes) -> str:
    value = json_form(raw, Duration)
    seconds, nanos = int(value.get("seconds", 0)), int(value.get("nanos", 0))
    sign = "-" if seconds < 0 or nanos < 0 else ""
    fraction = f".{abs(nanos):09d}".rstrip("0").ljust(4, "0") if nanos else ""
    return f"{sign}{abs(seconds)}{fraction}s"


def _entry(raw: int | bytes, field: _Field) -> tuple[str, Any]:
    """Key and value of one entry of a map."""
    if not isinstance(raw, bytes) or field.key is None:
        raise FormError(f"the value of {field.name} is no map")
    key, value = "", None
    for number, wire, part in _parts(raw, Message):
        if number == 1:
            key = str(_value(part, wire, field.key))
        elif number == 2:
            value = _value(part, wire, field.of)
        else:
            raise FormError(f"an entry of {field.name} has no field {number}")
    return key, value


@cache
def _fields_of(message: type[Message]) -> dict[int, _Field]:
    """What a message's type knows, by number."""
    table = {}
    for each in fields(message):  # type: ignore[arg-type]  # every message is a dataclass
        meta = FieldMetadata.get(each)
        types = [hint for hint in get_args(message._type_hint(each.name)) if hint is not NoneType]
        name = field_name(each.name)
        if meta.map_meta is not None:
            keys, values = (_Field(name, part.proto_type, of) for part, of in zip(meta.map_meta, types, strict=True))
            table[meta.number] = _Field(name, "map", values, key=keys)
            continue
        of = meta.unwrap() if meta.unwrap else types[0] if types else message._type_hint(each.name)
        wraps = meta.unwrap is not None and of is not Duration
        table[meta.number] = _Field(name, meta.proto_type, of, bool(meta.repeated), wraps)
    return table
