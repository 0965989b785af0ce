"""Values that nobody expects: numbers, texts, shapes, and bytes that no encoder would write."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

DEEP = 3_000
NUMBERS: tuple[Any, ...] = (
    0, -1, 1, 2, 255, 2**31, -(2**31), 2**53 + 1, 2**63 - 1, 2**63, 2**64 - 1, -(2**63),
    0.5, -0.0, 1e-320, 1e15, 1e308, -1e308,
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
_LEVELS = tuple("abcdefghi")
# Each level holds the one before it eight times: as values, and as keys that are merged in.
_BOMB = f"[&a [{'x,' * 8}], " + ", ".join(f"&{name} [{f'*{before},' * 8}]" for before, name in pairwise(_LEVELS)) + "]"
_MERGES = (
    "[&a {k: 1}, " + ", ".join(f"&{name} {{<<: [{f'*{before},' * 8}]}}" for before, name in pairwise(_LEVELS)) + "]"
)
RAW_YAML = (
    "2024-99-99", "2024-01-01T99:99:99", "!!int x", "!!float y", "!!binary '*'", "!!timestamp z",
    "!!python/object:os.x {}",
    "!unknown 1", "&a [*a]", "*nobody", "{? [1]: 2}", "{? {a: b}: c}", "0b2", "0o9", "1:99:99", "1_000", "._", ".inf",
    ".nan",
    "-.inf", "~", "<<", "=", "{<<: x}", "{<<: [1]}", "[" * DEEP + "]" * DEEP, "{a: " * DEEP, "|", ">-", "%YAML 9",
    "---",
    "...", "\t- x", "\x07", '"\\ud800"', '"\\U99999999"', "!!set {a, b}", "!!omap [a: 1]", "!!pairs [a: 1]", "yes", "'",
    _BOMB, _MERGES,
)  # fmt: skip
LINE_VALUES = (
    "NaN", "+Inf", "-Inf", "-1", "1e308", "-1e308", "1e999", "9" * 400, "0", "", "x", "1 2", "1 x", "1e", "0x1p3",
    "1_0",
    "१", "1.7976931348623157e+308", "5e-324", "18446744073709551616", "\x00", "\ufeff1",
)  # fmt: skip
