"""Requests of a given size as bytes: conversations that share beginnings, no two of them alike.

What must differ is a number that is written into bytes made beforehand, so that sending costs little.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import orjson

from extproc.bench.overhead.fleet import MODEL
from extproc.bench.overhead.headers import HOLD_HEADER, STREAM_HEADER

_DIGITS = 20
_MARK = "#" * _DIGITS
_SYSTEM_PROMPTS = 8
_MADE_BYTES = 24 * 1024 * 1024  # of all forms together
_MAX_FORMS = 64
_WORDS = (
    "the router counts seconds not requests while an engine holds the prefix of this conversation and its queue grows "
    'batch token latency prefill decode cache block "quoted" café naïve 漢字 17 3.14 {json} [list] under_score'
).split()


@dataclass(frozen=True, slots=True)
class Form:
    """A request but for its number: what stands before it and after it."""

    before: bytes
    after: bytes

    def numbered(self, number: int) -> tuple[bytes, bytes, bytes]:
        """The whole request in pieces, headers included."""
        return self.before, b"%0*d" % (_DIGITS, number), self.after


def forms(body_bytes: int, seed: int, *, held: bool = False) -> Sequence[Form]:
    """Forms of requests whose bodies have about `body_bytes`.

    Half of a body is one of a few system prompts, the rest a conversation's turns; the number begins the last one.
    Every second asks for a stream. `held`: the upstream will not answer.
    """
    chance = random.Random(seed)
    count = max(4, min(_MAX_FORMS, _MADE_BYTES // body_bytes))
    systems = [_text(chance, body_bytes // 2) for _ in range(min(_SYSTEM_PROMPTS, count // 2))]
    return [_form(chance, systems[number % len(systems)], body_bytes, number, held) for number in range(count)]


def _form(chance: random.Random, system: str, body_bytes: int, number: int, held: bool) -> Form:
    streamed = number % 2 == 1
    rest = max(0, body_bytes - len(system.encode()) - 300)
    turns = max(1, min(16, rest // 1024))
    messages = [{"role": "system", "content": system}]
    for turn in range(turns):
        messages.append({"role": "assistant" if turn % 2 else "user", "content": _text(chance, rest // turns)})
    messages.append({"role": "user", "content": f"{_MARK} and what follows from it?"})
    call = {"model": MODEL, "messages": messages, "max_tokens": chance.choice((64, 256, 1024))}
    body = orjson.dumps(call | {"temperature": 0.7, "stream": streamed, "user": f"user-{number % 10}"})
    lines = ["POST /v1/chat/completions HTTP/1.1", "host: llm.example", "content-type: application/json"]
    lines += ["authorization: Bearer sk-0123456789abcdef", "accept: */*", "user-agent: OpenAI/Python 2.1.0"]
    lines += [f"{STREAM_HEADER}: 1"] if streamed else []
    lines += [f"{HOLD_HEADER}: 1"] if held else []
    head = "\r\n".join([*lines, f"content-length: {len(body)}", "", ""]).encode()
    before, _, after = body.partition(_MARK.encode())
    return Form(head + before, after)


def _text(chance: random.Random, size_bytes: int) -> str:
    """Sentences up to about that many bytes, in paragraphs."""
    sentences, left = [], size_bytes
    while left > 0:
        sentence = chance.choice(_SENTENCES)
        sentences.append(sentence)
        left -= len(sentence.encode())
    return "".join(sentences)


def _sentences() -> list[str]:
    chance = random.Random(0)
    return [
        " ".join(chance.choices(_WORDS, k=chance.randint(4, 24))) + chance.choice((". ", "? ", ".\n\n"))
        for _ in range(1000)
    ]


_SENTENCES = _sentences()
