"""A real Envoy between a client, a service that names instances in order, and three instances that may misbehave."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from extproc.control.bootstrap import bootstrap
from extproc.control.settings import EnvoySettings, Shape, Upstream
from extproc.core.health.verdict import Attempt, Verdict, verdict
from extproc.core.values.outcome import Outcome
from extproc.demo.ports import free_port
from extproc.stream.messages import RouteTo
from tests.control.parts import FEATURES, HOST, naming, raw, running_service
from tests.control.scripted import Act, RawEngine, answers, running_raw
from tests.control.test_envoy_behaviour import CHAT, PATH, _healthy
from tests.envoy_process import EnvoyProcess

WELL = answers("200 OK")
NAMES = ("a", "b", "c", "d")


@dataclass(frozen=True)
class Seen:
    """What came of one request: for the client, at the engines, and in the router's log."""

    status: int
    asked: tuple[int, ...]  # how often each engine was, in the order named
    first: Verdict | None  # what was learned of the first choice, if anything


@dataclass
class Failing:
    """Decisions name `named` of `engines`, in this order; `gone` is an endpoint where nobody listens."""

    shape: Shape
    envoy: EnvoyProcess
    port: int
    engines: list[RawEngine]
    gone: RawEngine
    logged: asyncio.Queue[Any]
    named: list[RawEngine]
    head: bytes = b""
    body: bytes = b""
    log: list[Outcome | Attempt] = field(default_factory=list)

    def acting(self, *acts: Act, early: bool = False) -> None:
        """What each engine does from now on; those without a word are well. `early`: of the first."""
        for number, engine in enumerate(self.engines):
            engine.act = acts[number] if number < len(acts) else WELL
            engine.early = early and not number
            engine.seen.clear()
            engine.heads.clear()

    async def ask(self, body: bytes = CHAT, *, attempts_logged: int = 0, method: str = "POST") -> Seen:
        """One request, whose head and body are kept; waits for its log, and for that many failed attempts in it."""
        before = [len(engine.seen) for engine in self.named]
        status, self.head, self.body = await raw(self.port, method, PATH, body=body)
        self.log = []
        async with asyncio.timeout(30):
            while not self._complete(attempts_logged):
                self.log.append(await self.logged.get())
        asked = tuple(len(engine.seen) - count for engine, count in zip(self.named, before, strict=True))
        return Seen(status, asked, self._learned())

    def _complete(self, attempts: int) -> bool:
        kinds = [type(entry) for entry in self.log]
        return kinds.count(Outcome) == 1 and kinds.count(Attempt) >= attempts

    def _learned(self) -> Verdict | None:
        told = {verdict(each.status, each.flags) for each in self.log if each.address == self.named[0].address}
        told -= {Verdict.NEUTRAL} if len(told) > 1 else set()
        return told.pop() if told else None

    @property
    def route(self) -> RouteTo:
        """What the service replies."""
        addresses = tuple(engine.address for engine in self.named)
        number = next((n for n, each in enumerate((*self.engines, self.gone)) if each is self.named[0]), 0)
        cluster = NAMES[number] if self.shape is Shape.INSTANCE else "pool"
        return RouteTo(cluster, addresses, FEATURES, alternatives=addresses[1:])


@asynccontextmanager
async def failing(
    folder: Path, shape: Shape = Shape.POOL, acts: Sequence[Act] = (), **settings: Any
) -> AsyncIterator[Failing]:
    """Three engines that are well, or do `acts`; all of them named in order."""
    async with AsyncExitStack() as stack:
        engines = [await stack.enter_async_context(running_raw(RawEngine(WELL))) for _ in range(3)]
        gone = RawEngine(WELL, port=free_port())
        logged: asyncio.Queue[Any] = asyncio.Queue()
        setup = Failing(shape, None, 0, engines, gone, logged, list(engines))  # type: ignore[arg-type]
        worker = await stack.enter_async_context(running_service(naming(lambda: setup.route), logged))
        upstreams = [Upstream(name, (HOST, each.port)) for name, each in zip(NAMES, (*engines, gone), strict=True)]
        chosen = EnvoySettings(
            upstreams=tuple(upstreams),
            workers=((HOST, worker),),
            listen=(HOST, free_port()),
            admin=(HOST, free_port()),
            shape=shape,
            **{"message_timeout_s": 30.0} | settings,
        )
        setup.envoy, setup.port = EnvoyProcess(bootstrap(chosen), folder), chosen.listen[1]
        stack.callback(setup.envoy.stop)
        await asyncio.to_thread(setup.envoy.start)
        await _healthy(setup.envoy)
        setup.acting(*acts)
        yield setup
