"""Protobuf's wire format of messages that hold texts and messages alone, written without an object for each.

Source of the format: https://protobuf.dev/programming-guides/encoding/. A message may also come in pieces: those that
follow each other are merged, so that what never differs can be serialised beforehand.
"""

from __future__ import annotations

from collections.abc import Sequence

from google.protobuf.struct_pb2 import Struct, Value  # type: ignore[import-untyped]

_LENGTH_DELIMITED = 2


def tag_of(message: type, field: str) -> bytes:
    """First byte of a field of texts, bytes or messages. Its number must be below 16, so that there is no second."""
    number: int = message.DESCRIPTOR.fields_by_name[field].number  # type: ignore[attr-defined]
    assert number < 16
    return bytes([number << 3 | _LENGTH_DELIMITED])


def _written(length: int) -> bytes:
    """A length as a varint: seven bits a byte, the lowest first, all but the last marked."""
    head = []
    while length >= 0x80:
        head.append(length & 0x7F | 0x80)
        length >>= 7
    return bytes((*head, length))


_SHORT = tuple(map(_written, range(2048)))


def _length(number: int) -> bytes:
    return _SHORT[number] if number < 2048 else _written(number)


def part(tag: bytes, content: bytes) -> bytes:
    """One field with its content."""
    return tag + _length(len(content)) + content


def opened(tags: Sequence[bytes], content_bytes: int) -> bytes:
    """How fields in each other begin, from the outside, the innermost of which is to have so many bytes."""
    head = b""
    for tag in reversed(tags):
        head = tag + _length(content_bytes + len(head)) + head
    return head


_FIELDS = tag_of(Struct, "fields")
_ENTRY_KEY, _ENTRY_VALUE = (tag_of(Struct.FieldsEntry, name) for name in ("key", "value"))
_TEXT, _STRUCT = (tag_of(Value, name) for name in ("string_value", "struct_value"))


def key_of(name: str) -> bytes:
    """A name as `text` and `struct` want it."""
    return part(_ENTRY_KEY, name.encode()) + _ENTRY_VALUE


def text(key: bytes, value: bytes) -> bytes:
    """One entry of a Struct: a text, as UTF-8."""
    return _entry(key, _TEXT, value)


def struct(key: bytes, entries: bytes) -> bytes:
    """One entry of a Struct: another one that has those entries."""
    return _entry(key, _STRUCT, entries)


def _entry(key: bytes, kind: bytes, content: bytes) -> bytes:
    """Fields in each other, from the inside: the content, the Value that holds it, and the entry with its key."""
    length = _length(len(content))
    value_bytes = 1 + len(length) + len(content)
    value_length = _length(value_bytes)
    entry_length = _length(len(key) + len(value_length) + value_bytes)
    return b"".join((_FIELDS, entry_length, key, value_length, kind, length, content))
