"""Makes wrong inputs out of right ones: each mutant is a pure function of a form, some valid examples, and a seed.

Every form has its own ways of being wrong, beside those of any bytes: a tree (JSON, MessagePack) gets values of other
types, numbers that nobody counts to, keys twice and depth without end; a page of lines gets lines twice, cut and
scrambled. No mutant is longer than `MAX_BYTES`.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable, Sequence
from enum import StrEnum
from random import Random
from typing import Any

import msgspec
import yaml

MAX_BYTES = 256 * 1024

_VARINT, _FIXED_64, _LENGTH, _FIXED_32 = 0, 1, 2, 5  # wire types of protobuf
_SIZES = {_FIXED_64: 8, _FIXED_32: 4}


class Form(StrEnum):
    """What the bytes of an input are."""

    BINARY = "binary"  # nothing but bytes that count
    JSON = "json"
    MSGPACK = "msgpack"
    LINES = "lines"  # text in which each line stands for itself: metrics pages, headers
    YAML = "yaml"
    PROTOBUF = "protobuf"


DEEP = 3_000
NUMBERS: tuple[Any, ...] = (
    0, -1, 1, 2, 255, 2**31, -(2**31), 2**53 + 1, 2**63 - 1, 2**63, 2**64 - 1, -(2**63), 0.5, -0.0, 1e-320, 1e15, 1e308, -1e308
)  # fmt: skip
TEXTS = (
    "", " ", "x", "0", "-1", "nan", "inf", "-Infinity", "1e999", "9" * 30, "9" * 5000, "²", "٣", "null", "true", "*",
    "\x00", "\n", "\r\n", "a b", "a,b", "a\tb", "🙂", "é" * 300, "\ufeff", "\u202e", "%s%n{}", "../../x", "a@b@c", "@",
    ":", "::", "[", "-", "--", "x" * 20_000, "00-" + "0" * 32 + "-" + "f" * 16 + "-zz", "1.2.3.4:99999", "1ms", "-1s",
)  # fmt: skip
SHAPES: tuple[Any, ...] = (
    None,
    True,
    False,
    [],
    {},
    [[]],
    [None],
    {"": None},
    [0] * 300,
    {"type": "x"},
    ["x", {"y": 1}],
)
# What no JSON encoder would write.
RAW_JSON = (
    b"NaN", b"-Infinity", b"1e999", b"-1e-999", b"9" * 30, b"-" + b"9" * 400, b"9" * 5000, b"0." + b"1" * 400, b"01",
    b"+1", b"0x10", b'"\\ud800"', b'"\\udc00\\ud800"', b'"\\ud83d\\ude00"', b'"\\x"', b'"\xff\xfe"', b'"\xed\xa0\x80"',
    b'"\x00"', b'"', b"", b"[", b"]", b"{", b"nul", b"'x'", b"[1,]", b'{"a":1,}', b"/* */1", b"[" * DEEP + b"]" * DEEP,
    b'{"a":' * DEEP + b"0" + b"}" * DEEP, b"[" * 20_000, b"\xef\xbb\xbf1",
)  # fmt: skip
RAW_MSGPACK = (
    b"\xc1", b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\xdb\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff",
    b"\xc9\xff\xff\xff\xff\x00", b"\xcf" + b"\xff" * 8, b"\xd3\x80" + b"\x00" * 7, b"\xcb\x7f\xf8" + b"\x00" * 6,
    b"\xcb\x7f\xf0" + b"\x00" * 6, b"\xcb\xff\xf0" + b"\x00" * 6, b"\xa1\xff", b"\xd6\xff\x00\x00\x00\x00",
    b"\xd4\x01\x00", b"\xc7\x0c\xff" + b"\xff" * 12, b"\x81\x80\x01", b"\x81\x91\x01\x01", b"\x82\xa1a\x01\xa1a\x02",
    b"\xc0", b"\xc4\x00", b"\x91" * DEEP + b"\x00", b"\x81\xa1a" * DEEP + b"\x00", b"\x91" * 20_000,
)  # fmt: skip
RAW_YAML = (
    "2024-99-99", "2024-01-01T99:99:99", "!!int x", "!!float y", "!!binary '*'", "!!timestamp z", "!!python/object:os.x {}",
    "!unknown 1", "&a [*a]", "*nobody", "{? [1]: 2}", "{? {a: b}: c}", "0b2", "0o9", "1:99:99", "1_000", "._", ".inf", ".nan",
    "-.inf", "~", "<<", "=", "{<<: x}", "{<<: [1]}", "[" * DEEP + "]" * DEEP, "{a: " * DEEP, "|", ">-", "%YAML 9", "---",
    "...", "\t- x", "\x07", '"\\ud800"', '"\\U99999999"', "!!set {a, b}", "!!omap [a: 1]", "!!pairs [a: 1]", "yes", "'",
    "[&a [x,x,x,x,x,x,x,x], &b [*a,*a,*a,*a,*a,*a,*a,*a], &c [*b,*b,*b,*b,*b,*b,*b,*b], &d [*c,*c,*c,*c,*c,*c,*c,*c],"
    " &e [*d,*d,*d,*d,*d,*d,*d,*d], &f [*e,*e,*e,*e,*e,*e,*e,*e], &g [*f,*f,*f,*f,*f,*f,*f,*f], &h [*g,*g,*g,*g,*g,*g,*g,*g],"
    " &i [*h,*h,*h,*h,*h,*h,*h,*h]]",
    "[&a {k: 1}, &b {<<: [*a,*a,*a,*a,*a,*a,*a,*a]}, &c {<<: [*b,*b,*b,*b,*b,*b,*b,*b]}, &d {<<: [*c,*c,*c,*c,*c,*c,*c,*c]},"
    " &e {<<: [*d,*d,*d,*d,*d,*d,*d,*d]}, &f {<<: [*e,*e,*e,*e,*e,*e,*e,*e]}, &g {<<: [*f,*f,*f,*f,*f,*f,*f,*f]},"
    " &h {<<: [*g,*g,*g,*g,*g,*g,*g,*g]}, &i {<<: [*h,*h,*h,*h,*h,*h,*h,*h]}]",
)  # fmt: skip
LINE_VALUES = (
    "NaN", "+Inf", "-Inf", "-1", "1e308", "-1e308", "1e999", "9" * 400, "0", "", "x", "1 2", "1 x", "1e", "0x1p3", "1_0",
    "१", "1.7976931348623157e+308", "5e-324", "18446744073709551616", "\x00", "\ufeff1",
)  # fmt: skip


def mutant(form: Form, examples: Sequence[bytes], seed: str) -> bytes:
    """An input that is probably wrong: one of the examples with some changes. The same for the same arguments."""
    random = Random(seed)
    data = random.choice(examples)
    if random.random() < 0.7 and form is not Form.BINARY:
        data = _MUTATORS[form](random, data)
        if random.random() < 0.8:
            return data[:MAX_BYTES]
    return _bytes(random, data)[:MAX_BYTES]


def _bytes(random: Random, data: bytes) -> bytes:
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


def _json(random: Random, data: bytes) -> bytes:
    tree = _mutated_tree(random, json.loads(data), RAW_JSON, _twice)
    return msgspec.json.encode(tree)


def _msgpack(random: Random, data: bytes) -> bytes:
    tree = _mutated_tree(random, msgspec.msgpack.decode(data), RAW_MSGPACK, lambda each: each)
    return msgspec.msgpack.encode(tree)


def _yaml(random: Random, data: bytes) -> bytes:
    """Half of the time a tree in JSON, which is YAML; else a line or a value replaced in the text as it is written."""
    if random.random() < 0.5:
        tree = _mutated_tree(random, yaml.safe_load(data), tuple(each.encode() for each in RAW_YAML), _twice)
        return msgspec.json.encode(tree)
    lines = data.decode().splitlines()
    at = random.randrange(len(lines))
    key, colon, _ = lines[at].partition(":")
    lines[at] = f"{key}{colon} {random.choice(RAW_YAML)}" if random.random() < 0.7 else random.choice(RAW_YAML)
    return "\n".join(lines).encode("utf-8", "surrogatepass")


def _lines(random: Random, data: bytes) -> bytes:
    lines = data.decode().splitlines()
    for _ in range(random.choice((1, 1, 2, 5))):
        at = random.randrange(len(lines))
        line = lines[at]
        match random.randrange(9):
            case 0:
                lines.insert(random.randrange(len(lines) + 1), line)
            case 1:
                lines[at] = line[: random.randint(0, len(line))]
            case 2 | 3 | 4:
                lines[at] = f"{line.rpartition(' ')[0]} {random.choice(LINE_VALUES)}"
            case 5:
                lines[at] = line.replace('"', random.choice(("", '""', "\\", '\\"', "'")), random.randint(1, 3))
            case 6:
                lines[at] = line.replace(random.choice("{},= "), random.choice(("", "{", "}", "=", "\x00", "  ")), 1)
            case 7:
                lines[at] = random.choice(TEXTS) + line + random.choice(TEXTS)
            case _:
                lines = lines[: at + 1]
    return "\n".join(lines).encode() + b"\n" * random.randrange(2)


def _protobuf(random: Random, data: bytes) -> bytes:
    """Fields taken out, doubled, put in another order, or with a number or text in place of their own; at any depth."""
    fields = split_fields(data)
    if not fields:
        return _bytes(random, data)
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
            return _bytes(random, value)[:MAX_BYTES]
        case _:
            return _protobuf(random, value)


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


_MUTATORS: dict[Form, Callable[[Random, bytes], bytes]] = {
    Form.JSON: _json,
    Form.MSGPACK: _msgpack,
    Form.LINES: _lines,
    Form.YAML: _yaml,
    Form.PROTOBUF: _protobuf,
}


def _twice(raw: bytes) -> bytes:
    return b'{"a":%b,"a":%b}' % (raw, raw)


def _mutated_tree(random: Random, tree: Any, raws: Sequence[bytes], twice: Callable[[bytes], bytes]) -> Any:
    """The tree with one to four of its places changed."""
    for _ in range(random.choice((1, 1, 1, 2, 4))):
        places = [*_places(tree)]
        if not places:
            return _value(random, tree, raws, twice)
        numbers = [(holder, key) for holder, key in places if type(holder[key]) in (int, float)]
        holder, key = random.choice(numbers if numbers and random.random() < 0.4 else places)
        match random.randrange(10):
            case 0:
                del holder[key]
            case 1 if isinstance(holder, dict):  # under another name
                holder[random.choice((*TEXTS[:8], f"{key}_"))] = holder.pop(key)
            case 1:
                holder.insert(key, holder[key])
            case 2:
                holder[key] = [holder[key]] * random.choice((1, 2, 40))
            case 3:
                other, name = random.choice(places)
                holder[key] = _copied(other.get(name) if isinstance(other, dict) else None)
            case _:
                holder[key] = _value(random, holder[key], raws, twice)
    return tree


def _value(random: Random, was: Any, raws: Sequence[bytes], twice: Callable[[bytes], bytes]) -> Any:
    """Something in the place of a value; in that of a number most often another number."""
    if isinstance(was, int | float) and not isinstance(was, bool) and random.random() < 0.6:
        return random.choice(NUMBERS)
    match random.randrange(5):
        case 0:
            return random.choice(NUMBERS)
        case 1:
            return random.choice(TEXTS)
        case 2:
            return _copied(random.choice(SHAPES))
        case 3:
            return msgspec.Raw(random.choice(raws))
        case _:
            return msgspec.Raw(twice(random.choice(raws)))


def _places(tree: Any) -> list[tuple[Any, Any]]:
    """All places of a tree, as what holds them and where they are in it."""
    found: list[tuple[Any, Any]] = []
    waiting = [tree]
    while waiting and len(found) < 3000:
        holder = waiting.pop()
        if isinstance(holder, dict | list):
            keys = list(holder) if isinstance(holder, dict) else range(len(holder))
            found += [(holder, key) for key in keys]
            waiting += [holder[key] for key in keys]
    return found


def _copied(tree: Any) -> Any:
    """A copy, so that no tree holds itself."""
    if isinstance(tree, dict):
        return {key: _copied(value) for key, value in tree.items()}
    return [_copied(each) for each in tree] if isinstance(tree, list) else tree
