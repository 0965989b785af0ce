"""Answers of the simulated engine: how long they are, and plain words to fill them with."""

from __future__ import annotations

import random

from extproc.sim.engine.tokenizer import TOKEN_BYTES

# Each is one token with the space that follows it; the last one of an answer ends with a full stop instead.
_WORDS = (
    "the and for you not are but had was all any can her one our out day get has him his how man new now old see "
    "two way who boy did its let put say she too use air arm art ask bed big box car cup cut dog dry eat end eye"
)


class Babbler:
    """Makes answers: plain words that are one token each, drawn with a seed, so cheap that length does not matter."""

    def __init__(self, seed: int, supply_tokens: int = 1 << 16) -> None:
        self._random = random.Random(seed)
        self._supply = "".join(f"{word} " for word in self._random.choices(_WORDS.split(), k=supply_tokens)).encode()

    def answer(self, tokens: int) -> bytes:
        """ASCII text of exactly `tokens` tokens, 4 bytes each, at least one; needs no escape in JSON."""
        start = TOKEN_BYTES * self._random.randrange(len(self._supply) // TOKEN_BYTES)
        length = TOKEN_BYTES * tokens
        text = self._supply[start : start + length]
        while len(text) < length:
            text += self._supply[: length - len(text)]
        return text[:-1] + b"."

    def length(self, mean_tokens: float, limit_tokens: int) -> int:
        """Draw an answer's length for a client that names none: exponential, 1 to `limit_tokens`."""
        return max(1, min(limit_tokens, round(self._random.expovariate(1 / mean_tokens))))
