"""A steady mixture of whole and streamed answers through Envoy, and what each client got."""

from __future__ import annotations

import asyncio
import itertools
import os
import time
from dataclasses import dataclass, field
from typing import Self

import orjson

from extproc.adapters.http_client import Answer, HttpClient
from tests.chaos.envoy_log import ID_HEADER, Logged
from tests.chaos.house import HOST, LONG_S, House

RPS = float(os.environ.get("EXTPROC_CHAOS_RPS", "200"))
DECIDED = 100  # requests that come with a decision, when it is asked whether they do
_MOST_OPEN = 400  # at once; what hangs at a frozen engine must not keep others from being sent
_OUTPUT_TOKENS = 8
_STREAMED_TOKENS = 24
_runs = itertools.count()


@dataclass(frozen=True, slots=True)
class Toll:
    """What a fault cost."""

    sent: int
    good: int
    failed_there: int  # that were at the part that failed when it did
    lost: int  # that failed although they were elsewhere, or were sent later
    undecided: int  # that Envoy balanced by itself
    undecided_s: float  # from the first of these to the last
    retried: int  # good by a second try
    slow: int  # good, but it took more than 2 s
    passed_on: int  # undecided by the service's own choice
    rps: float
    words: tuple[str, ...] = ()  # of those lost

    def __str__(self) -> str:
        """Return what is printed of a test."""
        return (
            f"sent {self.sent} ({self.rps:.0f}/s), good {self.good}, there {self.failed_there}, lost {self.lost}, "
            f"undecided {self.undecided} within {self.undecided_s:.1f} s, passed on {self.passed_on}, "
            f"retried {self.retried}, slow {self.slow}"
        )


@dataclass
class Traffic:
    """Sends until the context is left. What cannot be sent in time is not made up for."""

    house: House
    rps: float = RPS
    failed: dict[str, str] = field(default_factory=dict)  # id to what came instead of the answer
    sent: int = 0
    answered: int = 0
    _took_s: float = 0.0

    async def __aenter__(self) -> Self:
        self._run = next(_runs)
        self._passed_on = await self.house.passed_on()
        self._over = asyncio.Event()
        self._open = asyncio.Semaphore(_MOST_OPEN)
        self._task = asyncio.create_task(self._send())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._over.set()
        await self._task

    async def more(self, number: int) -> None:
        """Wait until so many more have been answered."""
        target = self.answered + number
        async with asyncio.timeout(120):
            while self.answered < target:  # noqa: ASYNC110
                await asyncio.sleep(0.02)

    async def decided(self, since_s: float) -> None:
        """Wait until `DECIDED` requests that came to Envoy after `since_s` (its clock) have gone with a decision.

        By number and not by share: on a starved machine Envoy goes on without an answer after 250 ms, so that half of
        them may go without one though all is well. What the service passes on by itself is told by `Toll.passed_on`.
        """
        async with asyncio.timeout(LONG_S):
            while self._decided(since_s) < DECIDED:
                await self.more(DECIDED // 4)

    def _decided(self, since_s: float) -> int:
        return sum(each.decided and each.began_s > since_s for each in self.house.log.read().values())

    async def seconds(self, number: float) -> None:
        """Wait for what is sent in that many seconds at the rate of this machine."""
        await asyncio.sleep(number)

    async def toll(self, failing: str = "", at_s: float = float("inf")) -> Toll:
        """After the end: what became of all. Those at the engine `failing` at the time `at_s` may have failed."""
        mine = await self._logged()
        port = self.house.engine_ports.get(failing, 0)
        there = {each.id for each in mine.values() if each.host == f"{HOST}:{port}" and each.began_s <= at_s}
        lost = self.failed.keys() - there
        undecided = [each.began_s for each in mine.values() if not each.decided]
        good = [each for name, each in mine.items() if name not in self.failed]
        return Toll(
            self.sent,
            self.sent - len(self.failed),
            len(self.failed) - len(lost),
            len(lost),
            len(undecided),
            max(undecided) - min(undecided) if undecided else 0.0,
            sum(each.tries > 1 for each in good),
            sum(each.took_s > 2.0 for each in good),
            max(0, await self.house.passed_on() - self._passed_on),  # who is killed begins anew at 0
            self.sent / self._took_s,
            tuple(f"{self.failed[name]} {mine.get(name)}" for name in lost)[:5],
        )

    async def _logged(self) -> dict[str, Logged]:
        """Envoy's words, once it has written down all; a request that never came to it has none."""
        for _ in range(100):
            mine = {name: each for name, each in self.house.log.read().items() if name.startswith(f"{self._run}-")}
            if len(mine) >= self.sent:
                break
            await asyncio.sleep(0.1)
        return mine

    async def _send(self) -> None:
        began_s = due_s = time.monotonic()
        http = HttpClient(timeout_s=60.0, connect_timeout_s=30.0, connections=2 * _MOST_OPEN)
        async with http, asyncio.TaskGroup() as requests:
            while not self._over.is_set():
                await self._open.acquire()
                requests.create_task(self._one(http, self.sent))
                self.sent += 1
                now = time.monotonic()
                due_s = max(due_s + 1 / self.rps, now - 0.1)
                await asyncio.sleep(max(0.0, due_s - now))
            self._took_s = time.monotonic() - began_s

    async def _one(self, http: HttpClient, number: int) -> None:
        streamed = bool(number % 2)
        messages = [{"role": "system", "content": f"session {number % 50}"}, {"role": "user", "content": str(number)}]
        body = {"model": self.house.model, "messages": messages, "stream": streamed}
        body["max_tokens"] = _STREAMED_TOKENS if streamed else _OUTPUT_TOKENS
        name = f"{self._run}-{number}"
        url = f"http://{HOST}:{self.house.port}/v1/chat/completions"
        try:
            answer = await http.post_json(url, orjson.dumps(body), headers={ID_HEADER: name})
        finally:
            self._open.release()
        end = b"data: [DONE]" if streamed else b'"chat.completion"'
        if not (isinstance(answer, Answer) and answer.status == 200 and end in answer.body):
            self.failed[name] = f"{answer}"[-160:]
        self.answered += 1
