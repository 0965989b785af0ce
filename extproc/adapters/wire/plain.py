"""Protobuf's wire format of messages that hold texts and messages alone, written without an object for each.

Source of the format: https://protobuf.dev/programming-guides/encoding/. A message may also come in pieces: those that
follow each other are merged, so that what never differs can be serialised beforehand.
"""

from __future__ import annotations

from google.protobuf.struct_pb2 import Struct, Value  # type: ignore[import-untyped]

_LENGTH_DELIMITED = 2


def tag_of(message: type, field: str) -> int:
    """First byte of a field of texts, bytes or messages. Its number must be below 16, so that there is no second."""
    number: int = message.DESCRIPTOR.fields_by_name[field].number  # type: ignore[attr-defined]
    assert number < 16
    return number << 3 | _LENGTH_DELIMITED


def part(tag: int, content: bytes) -> bytes:
    """One field with its content."""
    length = len(content)
    if length < 0x80:
        return bytes((tag, length)) + content
    if length < 0x4000:
        return bytes((tag, length & 0x7F | 0x80, length >> 7)) + content
    head = [tag]
    while length >= 0x80:
        head.append(length & 0x7F | 0x80)
        length >>= 7
    return bytes((*head, length)) + content


_FIELDS = tag_of(Struct, "fields")
_ENTRY_KEY, _ENTRY_VALUE = (tag_of(Struct.FieldsEntry, name) for name in ("key", "value"))
_TEXT, _STRUCT = (tag_of(Value, name) for name in ("string_value", "struct_value"))


def key_of(name: str) -> bytes:
    """A name as `text` and `struct` want it."""
    return part(_ENTRY_KEY, name.encode())


def text(key: bytes, value: bytes) -> bytes:
    """One entry of a Struct: a text, as UTF-8."""
    return part(_FIELDS, key + part(_ENTRY_VALUE, part(_TEXT, value)))


def struct(key: bytes, entries: bytes) -> bytes:
    """One entry of a Struct: another one that has those entries."""
    return part(_FIELDS, key + part(_ENTRY_VALUE, part(_STRUCT, entries)))
