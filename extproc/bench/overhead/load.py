"""A process that sends requests and times their answers, by rounds that it is told of on its standard input.

Each line is a `Round` as JSON, and is answered by a line with its `Answers`. Open loop: each request has a time when it
is due, by a Poisson process, and its latency counts from then on, whenever it could be sent; how late it was sent is
told too. Closed loop: so many clients send their next request when they have the answer to the last.
"""

from __future__ import annotations

import asyncio
import random
import sys
import time
from collections import Counter, deque
from typing import Any

import msgspec
import uvloop

from extproc.bench.overhead.bodies import Form, forms
from extproc.bench.overhead.load_client import Client
from extproc.bench.overhead.timer import Timer

_UNANSWERED_S = 10.0  # after the last request was due
_MAX_CONNECTIONS = 2048
_BEGIN_S = 0.01


class Round(msgspec.Struct, frozen=True, kw_only=True):
    """What to send, and where to."""

    port: int
    body_bytes: int
    seconds: float
    rate_rps: float | None = None  # None: closed loop
    clients: int = 16  # of a closed loop
    max_requests: int | None = None
    decided: bool = False  # an answer that came without a decision is an error
    seed: int = 0


class Answers(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a round."""

    sent: int
    elapsed_s: float  # to the last answer, and the whole round of an open loop
    latencies_s: list[float]  # of what was answered well, ascending
    errors: dict[str, int]
    late_s: list[float]  # open loop: how long after it was due each was sent, ascending


class Hold(msgspec.Struct, frozen=True):
    """Open so many requests that are not answered, and keep them until the next line."""

    port: int
    body_bytes: int
    hold: int
    rate_rps: float


class _Run:
    """One round under way."""

    def __init__(self, what: Round, made: list[Form], idle: deque[Client]) -> None:
        self._what, self._made, self._idle = what, made, idle
        self._loop = asyncio.get_running_loop()
        self._open = set(idle)
        self._waiting: deque[float] = deque()  # due, and no connection was free
        self._under_way = 0
        self._connecting = 0
        self._number = what.seed * 1_000_000_000
        self._latencies_s: list[float] = []
        self._late_s: list[float] = []
        self._errors: Counter[str] = Counter()
        self._sent = 0
        self._last_s = 0.0
        self._all_due = False
        self._until_s = 0.0
        self._over = asyncio.Event()

    async def run(self) -> Answers:
        what = self._what
        began_s = time.monotonic() + _BEGIN_S
        if what.rate_rps is None:
            await self._closed(began_s)
        else:
            await self._opened(began_s)
        return Answers(
            sent=self._sent,
            elapsed_s=max(self._last_s - began_s, self._shortest_s()),
            latencies_s=sorted(self._latencies_s),
            errors=dict(self._errors),
            late_s=sorted(self._late_s),
        )

    def _shortest_s(self) -> float:
        """What a round lasts at the least: an open one does not end with its last answer, but when no more is due."""
        whole = self._what.rate_rps is not None and self._what.max_requests is None
        return self._what.seconds if whole else 1e-9

    async def _opened(self, began_s: float) -> None:
        what, chance = self._what, random.Random(self._what.seed)
        assert what.rate_rps is not None
        due, at_s = deque[float](), 0.0
        while (at_s := at_s + chance.expovariate(what.rate_rps)) < what.seconds:
            if what.max_requests is not None and len(due) >= what.max_requests:
                break
            due.append(began_s + at_s)

        def fire() -> None:
            now_s = time.monotonic()
            while due and due[0] <= now_s:
                self._ask(due.popleft())
            if due:
                timer.at(due[0])
            else:
                self._all_due = True
                self._look()

        timer = Timer(self._loop, fire)
        timer.at(due[0] if due else began_s)
        end_s = (due[-1] if due else began_s) + _UNANSWERED_S
        try:
            await self._until_over(end_s)
        finally:
            timer.close()

    async def _closed(self, began_s: float) -> None:
        what = self._what
        self._until_s = began_s + what.seconds
        await asyncio.sleep(_BEGIN_S)
        for _ in range(what.clients):
            self._ask(time.monotonic())
        await self._until_over(self._until_s + _UNANSWERED_S)

    async def _until_over(self, end_s: float) -> None:
        try:
            async with asyncio.timeout(end_s - time.monotonic()):
                await self._over.wait()
        except TimeoutError:
            self._errors["unanswered"] += self._under_way + len(self._waiting)
            self._last_s = time.monotonic()
            for client in [client for client in self._open if client.busy]:
                client.busy = False
                client.close()

    def _ask(self, due_s: float) -> None:
        self._sent += 1
        while self._idle:
            client = self._idle.pop()
            if not client.gone:
                self._send(client, due_s)
                return
        self._waiting.append(due_s)
        if len(self._waiting) > self._connecting and self._connecting + self._under_way < _MAX_CONNECTIONS:
            self._connecting += 1
            self._loop.create_task(self._connect())

    async def _connect(self) -> None:
        try:
            _, client = await self._loop.create_connection(
                lambda: Client(self._done, self._what.decided), "127.0.0.1", self._what.port
            )
        except OSError:
            self._connecting -= 1
            if self._waiting:
                self._waiting.popleft()
                self._failed("no connection")
            return
        self._connecting -= 1
        self._open.add(client)
        self._free(client)

    def _send(self, client: Client, due_s: float) -> None:
        self._under_way += 1
        self._number += 1
        client.serve(self._done, self._what.decided)
        client.send(self._made[self._number % len(self._made)].numbered(self._number), due_s)
        if self._what.rate_rps is not None:
            self._late_s.append(time.monotonic() - due_s)

    def _done(self, client: Client, wrong: str) -> None:
        now_s = time.monotonic()
        self._under_way -= 1
        self._last_s = now_s
        if wrong:
            self._errors[wrong] += 1
        else:
            self._latencies_s.append(now_s - client.due_s)
        self._free(client)
        self._go_on(now_s)

    def _failed(self, wrong: str) -> None:
        self._errors[wrong] += 1
        self._last_s = time.monotonic()
        self._go_on(self._last_s)

    def _go_on(self, now_s: float) -> None:
        what = self._what
        if what.rate_rps is None:
            if now_s < self._until_s and (what.max_requests is None or self._sent < what.max_requests):
                self._ask(time.monotonic())
                return
            self._all_due = True
        self._look()

    def _free(self, client: Client) -> None:
        if client.gone:
            return
        if self._waiting:
            self._send(client, self._waiting.popleft())
        else:
            self._idle.append(client)

    def _look(self) -> None:
        if self._all_due and not self._under_way and not self._waiting:
            self._over.set()


class Load:
    """Runs rounds one after another; connections and bodies are kept from one to the next."""

    def __init__(self) -> None:
        self._made: dict[tuple[int, bool], list[Form]] = {}
        self._idle: dict[int, deque[Client]] = {}
        self._held: list[Client] = []

    async def run(self, what: Round) -> Answers:
        """Send a round and wait for its answers."""
        idle = self._idle.setdefault(what.port, deque())
        return await _Run(what, self._forms(what.body_bytes, held=False), idle).run()

    async def hold(self, what: Hold) -> dict[str, int]:
        """Open requests that stay open; those held before are given up."""
        for client in self._held:
            client.busy = False
            client.close()
        self._held, made = [], self._forms(what.body_bytes, held=True)
        ended = Counter[str]()
        loop, began_s = asyncio.get_running_loop(), time.monotonic()
        for number in range(what.hold):
            await asyncio.sleep(max(0.0, began_s + number / what.rate_rps - time.monotonic()))
            _, client = await loop.create_connection(
                lambda: Client(lambda _client, wrong: ended.update([wrong or "answered"]), False),
                "127.0.0.1",
                what.port,
            )
            client.send(made[number % len(made)].numbered(number), 0.0)
            self._held.append(client)
        await asyncio.sleep(1.0)
        return dict(ended)

    def close(self) -> None:
        """Hang up everywhere."""
        for client in [*self._held, *(client for idle in self._idle.values() for client in idle)]:
            client.busy = False
            client.close()

    def _forms(self, body_bytes: int, *, held: bool) -> list[Form]:
        key = (body_bytes, held)
        if key not in self._made:
            self._made[key] = list(forms(body_bytes, seed=body_bytes, held=held))
        return self._made[key]


async def main() -> None:
    """Answer line by line until the input ends."""
    load, loop = Load(), asyncio.get_running_loop()
    lines = asyncio.StreamReader(limit=1 << 20)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    while line := await lines.readline():
        if b'"hold"' in line:
            answer: Any = await load.hold(msgspec.json.decode(line, type=Hold))
        else:
            answer = await load.run(msgspec.json.decode(line, type=Round))
        sys.stdout.buffer.write(msgspec.json.encode(answer) + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    uvloop.run(main())
