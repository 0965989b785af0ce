"""A made-up load that swings as a day's does, and the clients that send it, whether or not they were answered."""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import orjson

from extproc.adapters.http_client import HttpClient
from extproc.demo.client import Measured, measure
from extproc.demo.traffic import words

_TIMEOUT_S = 60.0
_CONNECT_S = 10.0  # this machine may be busy with its engines
_ASSISTANTS, _SYSTEM_WORDS = 3, 300
_QUESTION_WORDS = (1040, 1160)  # nobody has asked it before: an engine computes all of it
_OUTPUT_TOKENS = (16, 32)


@dataclass(frozen=True, slots=True)
class Swing:
    """Requests a second that go from `least` to `most` and back within a period."""

    least_rps: float
    most_rps: float
    period_s: float

    def rps(self, at_s: float) -> float:
        """The rate so many seconds after a time at which it was least."""
        height = 0.5 - 0.5 * math.cos(2.0 * math.pi * at_s / self.period_s)
        return self.least_rps + (self.most_rps - self.least_rps) * height


@dataclass(slots=True)
class Level:
    """A rate that stays as it is until it is set."""

    level_rps: float

    def rps(self, _at_s: float) -> float:
        """The rate, at any time."""
        return self.level_rps


async def send_load(
    url: str,
    model: str,
    rps: Callable[[float], float],
    on_done: Callable[[Measured], None],
    stop: asyncio.Event,
) -> None:
    """Send requests until `stop`, then wait for the answers that are missing.

    `rps` tells their rate by the seconds since the beginning. They come more evenly than requests of many people would:
    within the short day of a demo, chance would hide how the load swings.
    """
    chance = random.Random(1)
    requests = _requests(model, chance)
    async with HttpClient(_TIMEOUT_S, _CONNECT_S, connections=1000) as client, asyncio.TaskGroup() as answers:

        async def one(body: bytes) -> None:
            on_done(await measure(client, url, body))

        began_s = time.monotonic()
        at_s = 0.0
        while not stop.is_set():
            answers.create_task(one(next(requests)))
            at_s += chance.uniform(0.5, 1.5) / rps(at_s)
            await asyncio.sleep(began_s + at_s - time.monotonic())


def _requests(model: str, chance: random.Random) -> Iterator[bytes]:
    systems = [words(chance, _SYSTEM_WORDS) for _ in range(_ASSISTANTS)]
    while True:
        messages = [
            {"role": "system", "content": chance.choice(systems)},
            {"role": "user", "content": words(chance, chance.randint(*_QUESTION_WORDS))},
        ]
        yield orjson.dumps(
            {
                "model": model,
                "messages": messages,
                "max_tokens": chance.randint(*_OUTPUT_TOKENS),
                "stream": True,
                "stream_options": {"include_usage": True},
            }
        )
