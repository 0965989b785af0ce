"""Bytes with some of them changed; and protobuf messages, whose structure is that of their bytes."""

from __future__ import annotations

import math
import struct
from random import Random

from tests.fuzz.hostile import TEXTS

_VARINT, _FIXED_64, _LENGTH, _FIXED_32 = 0, 1, 2, 5  # wire types of protobuf
_SIZES = {_FIXED_64: 8, _FIXED_32: 4}


def mutated_bytes(random: Random, data: bytes) -> bytes:
    """Stretches cut out, doubled, moved or overwritten; or the end cut off; or something else altogether."""
    if random.random() < 0.04:
        return random.choice((b"", b"\x00", b"\xff" * 64, random.randbytes(random.randint(1, 300))))
    for _ in range(random.choice((1, 1, 1, 2, 4, 8))):
        start = random.randint(0, len(data))
        end = min(len(data), start + random.choice((0, 1, 1, 2, 8, 64)))
        match random.randrange(7):
            case 0:
                put = b""
            case 1:
                put = data[start:end] * 2
            case 2:
                put = random.randbytes(end - start)
            case 3:
                put = bytes(each ^ 1 << random.randrange(8) for each in data[start:end])
            case 4:
                put = random.choice(
                    (b"\xff", b"\x00", b"\x80" * 11, b"\xff\xff\xff\xff\x0f", b"null", b'"', b"}", b"\r\n")
                )
            case 5:
                elsewhere = random.randint(0, len(data))
                put = data[elsewhere : elsewhere + 40]
            case _:
                data, put = data[:start], b""
        data = data[:start] + put + data[end:]
    return data


def mutated_protobuf(random: Random, data: bytes) -> bytes:
    """Fields taken out, doubled, put in another order, or with a number or text in place of their own; at any depth."""
    fields = split_fields(data)
    if not fields:
        return mutated_bytes(random, data)
    for _ in range(random.choice((1, 1, 2, 4))):
        at = random.randrange(len(fields))
        number, kind, value = fields[at]
        match random.randrange(8):
            case 0:
                del fields[at]
            case 1:
                fields.insert(random.randrange(len(fields) + 1), fields[at])
            case 2:
                random.shuffle(fields)
            case 3:
                fields[at] = (random.choice((number, number + 1, 1, 2, 15, 2**29 - 1)), kind, value)
            case _:
                fields[at] = (number, kind, _changed_field(random, kind, value))
        if not fields:
            break
    return b"".join(map(_joined_field, fields))


def _changed_field(random: Random, kind: int, value: bytes) -> bytes:
    if kind == _VARINT:
        return _varint(random.choice((0, 1, 2, 3, 4, 5, 127, 2**31, 2**32 - 1, 2**63, 2**64 - 1)))
    if kind in (_FIXED_64, _FIXED_32):
        if kind == _FIXED_64 and random.random() < 0.8:
            return struct.pack(
                "<d", random.choice((math.nan, math.inf, -math.inf, -1.0, 0.0, 1e308, 5e-324, 2.0**60, 0.5))
            )
        return random.randbytes(len(value))
    match random.randrange(5):
        case 0:
            return random.choice(TEXTS).encode()
        case 1:
            return mutated_bytes(random, value)
        case _:
            return mutated_protobuf(random, value)


def split_fields(data: bytes) -> list[tuple[int, int, bytes]]:
    """Number, wire type and value of each field; none if it is no message (or, by luck, a text that looks like one)."""
    fields, at = [], 0
    try:
        while at < len(data):
            tag, at = _read_varint(data, at)
            kind, start = tag & 7, at
            if kind == _VARINT:
                _, at = _read_varint(data, at)
            elif kind == _LENGTH:
                length, start = _read_varint(data, at)
                at = start + length
            elif kind in _SIZES:
                at += _SIZES[kind]
            else:
                return []
            if not tag >> 3 or at > len(data):
                return []
            fields.append((tag >> 3, kind, data[start:at]))
    except IndexError:
        return []
    return fields


def _joined_field(field: tuple[int, int, bytes]) -> bytes:
    number, kind, value = field
    length = _varint(len(value)) if kind == _LENGTH else b""
    return _varint(number << 3 | kind) + length + value


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        number |= (data[at] & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if data[at - 1] < 0x80:
            return number, at
