"""Another model's name in a JSON body: no other byte changes, and what is read is the same document."""

from __future__ import annotations

import json
import random
import time
from typing import Any

import orjson
import pytest

from extproc.api.model_field import model_spans, with_model

NEW = 'qwen3 "8B" é\\'
_TEXTS = (
    "", "model", '"model"', '"model":"x"', '{"model": "y"}', "a\\", '\\"model\\":', "model:", "é\n\t\u2028", "{[", "}]",
    '\\', '"', '\\u006d', "mode", "models", "/", "auto",
)  # fmt: skip
_SPACES = ("", "", "", " ", "\n  ", "\t", "\r\n")


class Writer:
    """Writes random documents in the many ways in which JSON may be written, and notes where `model` stands."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.parts: list[str] = []
        self.spans: list[tuple[int, int]] = []

    def document(self, members: int, models: int) -> bytes:
        """An object with so many members, and `models` more named `model`."""
        self.parts, self.spans = [self.space()], []
        self.object(members, depth=0, models=models)
        self.parts.append(self.space())
        return "".join(self.parts).encode()

    def length(self) -> int:
        return len("".join(self.parts).encode())

    def space(self) -> str:
        return self.random.choice(_SPACES)

    def text(self, text: str) -> str:
        """A string, each of its characters escaped or not."""
        out = []
        for character in text:
            how = self.random.random()
            if how < 0.1 and ord(character) < 0x10000:
                out.append(f"\\u{ord(character):04x}" if how < 0.05 else f"\\u{ord(character):04X}")
            else:
                out.append(json.dumps(character, ensure_ascii=self.random.random() < 0.2)[1:-1])
        return '"' + "".join(out) + '"'

    def object(self, members: int, depth: int, models: int = 0) -> None:
        names = ["model"] * models + [self.random.choice([*_TEXTS, "model" if depth else "m"]) for _ in range(members)]
        if not depth:
            names = [name for name in names[models:] if name != "model"] + names[:models]
        self.random.shuffle(names)
        self.parts.append("{" + self.space())
        for number, name in enumerate(names):
            self.parts.append(("," + self.space() if number else "") + self.text(name))
            self.parts.append(self.space() + ":" + self.space())
            start = self.length()
            self.value(depth + 1)
            if name == "model" and not depth:
                self.spans.append((start, self.length()))
            self.parts.append(self.space())
        self.parts.append("}")

    def array(self, items: int, depth: int) -> None:
        self.parts.append("[" + self.space())
        for number in range(items):
            self.parts.append("," + self.space() if number else "")
            self.value(depth + 1)
            self.parts.append(self.space())
        self.parts.append("]")

    def value(self, depth: int) -> None:
        kind = self.random.randrange(8 if depth < 5 else 5)
        if kind < 3:
            self.parts.append(self.text(self.random.choice(_TEXTS)))
        elif kind < 5:
            self.parts.append(
                self.random.choice(["null", "true", "false", "0", "-1.50e+3", "12345678901234567890", "1.0"])
            )
        elif kind < 7:
            self.object(self.random.randrange(4), depth)
        else:
            self.array(self.random.randrange(4), depth)


def pairs(body: bytes) -> Any:
    """A document with all of its members in order, duplicates too, and its numbers as they are written."""
    return json.loads(body, object_pairs_hook=tuple, parse_float=str, parse_int=str)


@pytest.mark.parametrize("seed", range(40))
def test_whatever_stands_around_it_only_the_documents_own_model_changes(seed: int) -> None:
    """Random documents: nested members of that name, escapes, strings that look like members, spaces, duplicates."""
    writer = Writer(seed)
    for _ in range(60):
        models = writer.random.choice((0, 1, 1, 1, 2, 3))
        body = writer.document(writer.random.randrange(6), models)
        assert model_spans(body) == writer.spans, body
        new = with_model(body, NEW)
        told = pairs(new)
        if not models:
            assert told == (("model", NEW), *pairs(body)), body
            assert orjson.loads(new) == {"model": NEW} | orjson.loads(body)
            continue
        assert with_model(body, NEW, named=True) == new, body
        assert told == tuple((name, NEW if name == "model" else value) for name, value in pairs(body)), body
        assert orjson.loads(new) == orjson.loads(body) | {"model": NEW}
        rest, at = b"", 0
        for start, end in writer.spans:
            rest += body[at:start] + orjson.dumps(NEW)
            at = end
        assert new == rest + body[at:]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b'{"model":"auto"}', b'{"model":"m"}'),
        (b'{ "model" \t:\r\n "auto" }', b'{ "model" \t:\r\n "m" }'),
        (b'{"mod\\u0065l":"auto"}', b'{"mod\\u0065l":"m"}'),
        (b'{"\\u006d\\u006F\\u0064\\u0065\\u006C":"auto"}', b'{"\\u006d\\u006F\\u0064\\u0065\\u006C":"m"}'),
        (b'{"model":"a","model":"b"}', b'{"model":"m","model":"m"}'),
        (b'{"model":"a","mod\\u0065l":"b"}', b'{"model":"m","mod\\u0065l":"m"}'),
        (b'{"model":"model","a":"model"}', b'{"model":"m","a":"model"}'),
        (b'{"a":{"model":"x"},"model":"auto","b":[{"model":1}]}', b'{"a":{"model":"x"},"model":"m","b":[{"model":1}]}'),
        (b'{"a":"\\"model\\":\\"x\\"","model":"auto"}', b'{"a":"\\"model\\":\\"x\\"","model":"m"}'),
        (b'{"a":"\\\\","model":"auto"}', b'{"a":"\\\\","model":"m"}'),
        (b'{"model":null,"a":1}', b'{"model":"m","a":1}'),
        (b'{"model":{"model":{}},"a":1}', b'{"model":"m","a":1}'),
        (b'{"model":[],"model":"auto"}', b'{"model":"m","model":"m"}'),
        (b'{"model":"a\\"b\\\\","a":1}', b'{"model":"m","a":1}'),
        (b"{}", b'{"model":"m"}'),
        (b" { \n } ", b' {"model":"m" \n } '),
        (b' {"a":"model"} ', b' {"model":"m","a":"model"} '),
        (b'{"a":{"model":"x"}}', b'{"model":"m","a":{"model":"x"}}'),
        (b'{"models":1,"Model":2}', b'{"model":"m","models":1,"Model":2}'),
        (b'{"a":["model","model","model"]}', b'{"model":"m","a":["model","model","model"]}'),
    ],
)
def test_the_model_is_found_however_it_is_written(body: bytes, expected: bytes) -> None:
    """One case a line."""
    assert with_model(body, "m") == expected


@pytest.mark.parametrize("value", [b"\xef\xbf\xbd", b"\\ud800", b"\\ud83d\\ude00", "é€😀".encode()])
def test_characters_that_few_codecs_agree_upon_stay(value: bytes) -> None:
    """Lone surrogates, replacement characters, pairs."""
    body = b'{"messages":"%b","model":"auto","user":"%b"}' % (value, value)
    assert with_model(body, "m", named=True) == body.replace(b"auto", b"m")


def test_a_body_of_the_deepest_nesting_is_read() -> None:
    """As deep as orjson reads; nothing recurses."""
    deep = b"[" * 1000 + b"]" * 1000
    body = b'{"model":"auto","a":%b,"model":"auto"}' % deep
    assert with_model(body, "m") == body.replace(b"auto", b"m")


_WHOLE, _TEXT = b'{"a":[%b],"model":"auto"}', b'{"a":"%b","model":"auto"}'


@pytest.mark.parametrize(
    ("frame", "unit"),
    [
        (_TEXT, b"x"), (_TEXT, rb"\\"), (_TEXT, rb"\""), (_TEXT, rb"\"model\":"), (_TEXT, rb"\u0065"),
        (_WHOLE, b'"model",'), (_WHOLE, b'{"model":1},'), (_WHOLE, b'"mod\\u0065l",'), (_WHOLE, b"[[[[]]]],"),
        (_WHOLE, b'{"a":{"b":{"c":{"model":1}}}},'), (_WHOLE, b"1,"),
        (b'{%b"model":"auto"}', b'"model":1,'),
    ],
)  # fmt: skip
def test_no_body_takes_longer_than_its_length_is_worth(frame: bytes, unit: bytes) -> None:
    """Eight times as long a body would take 64 times as long if anything were looked at again and again."""

    def took(size: int) -> float:
        units = unit * (size // len(unit))
        body = frame % (units.rstrip(b",") if b"[" in frame else units)
        best = float("inf")
        for _ in range(3):
            began = time.process_time()
            with_model(body, "m")
            best = min(best, time.process_time() - began)
        return best

    assert took(800_000) < 30 * max(took(100_000), 1e-4)
