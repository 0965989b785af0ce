"""Two workers behind a real Envoy: which of them is told of an answer, and the death of one under load."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from extproc.adapters.registry import Registry
from extproc.control.bootstrap import bootstrap
from extproc.control.settings import EnvoySettings, Upstream
from extproc.demo.ports import free_port
from extproc.demo.processes import wait_for_line
from tests.control.parts import HOST, ScriptedEngine, raw, running_engine
from tests.core.builders import instance
from tests.e2e.eventually import eventually
from tests.e2e.secure import CHAT, HEALTHY, PATH
from tests.envoy_process import EnvoyProcess
from tests.redis_server import RedisServer
from tests.server.test_workers import LONG_S, Service, serving

pytestmark = pytest.mark.chaos  # four seconds of CPU for the start alone

_AT_ONCE = 8


@dataclass(frozen=True)
class Routed:
    """What runs, and how to ask it."""

    service: Service
    envoy: EnvoyProcess
    engine: ScriptedEngine
    port: int

    async def ask(self) -> int:
        """Status of one completion."""
        status, _, _ = await raw(self.port, "POST", PATH, "content-type: application/json\r\n", CHAT)
        return status


@asynccontextmanager
async def routed(folder: Path) -> AsyncIterator[Routed]:
    """Two workers, an engine and an Envoy that has found both."""
    with RedisServer("valkey", folder) as server:
        async with running_engine(ScriptedEngine("a")) as engine, Registry(server.url) as registry:
            await registry.publish(instance("a", address=f"{HOST}:{engine.port}", cluster="pool"), ttl_s=1000.0)
            async with serving(folder, server.url) as service:
                settings = EnvoySettings(
                    upstreams=(Upstream("a", (HOST, engine.port)),),
                    workers=tuple((HOST, port) for port in service.ports),
                    listen=(HOST, free_port()),
                    admin=(HOST, free_port()),
                    message_timeout_s=5.0,
                )
                envoy = EnvoyProcess(bootstrap(settings), folder)
                await asyncio.to_thread(envoy.start)
                try:

                    async def healthy() -> int:
                        return envoy.stats(HEALTHY).get(HEALTHY, 0)

                    await eventually(healthy, lambda number: number == 2, LONG_S)
                    yield Routed(service, envoy, engine, settings.listen[1])
                finally:
                    envoy.stop()


async def test_both_workers_decide_and_each_is_told_what_became_of_its_own_requests(tmp_path: Path) -> None:
    """Each thread of Envoy tells but one of them."""
    async with routed(tmp_path) as stack:
        assert [await stack.ask() for _ in range(20)] == [200] * 20
        decided = [await stack.service.page(f"/decisions?worker={number}") for number in (0, 1)]
        assert sum(map(len, decided)) == 20
        assert all(decided)

        async def untold() -> list[str]:
            asked = [each["request"] for each in await stack.service.page("/decisions")]
            return [name for name in asked if (await stack.service.page(f"/decisions/{name}"))["outcome"] is None]

        await eventually(untold, lambda names: not names, LONG_S)


async def test_a_worker_killed_under_load_costs_no_client_an_answer(tmp_path: Path) -> None:
    """Its streams fail open, new ones go to the other, and it is back without anybody's help."""
    async with routed(tmp_path) as stack:
        answers: Counter[int] = Counter()
        over = asyncio.Event()

        async def client() -> None:
            while not over.is_set():
                answers[await stack.ask()] += 1

        async with asyncio.TaskGroup() as clients:
            for _ in range(_AT_ONCE):
                clients.create_task(client())
            for victim in (0, 1, 0):
                before = answers.total()
                while answers.total() < before + 100:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
                told = stack.service.child.output().count("serves again")
                os.kill(stack.service.workers()[victim], signal.SIGKILL)
                await wait_for_line(stack.service.child, rf"(?s)(serves again.*){{{told + 1}}}", LONG_S)
                before = answers.total()
                while answers.total() < before + 100:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            over.set()
        assert set(answers) == {200}
        decisions = sum(1 for _, _, headers, _ in stack.engine.seen if "x-upstream-cluster" in headers)
        assert decisions > answers.total() * 0.9
