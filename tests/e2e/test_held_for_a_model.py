"""Through a real Envoy, in every mode of bodies: requests that wait for a model far longer than a message may take."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from extproc.control.bootstrap import bootstrap
from extproc.control.settings import EnvoySettings, RequestBodies, Upstream
from extproc.core.fleet.fleet import Published
from extproc.core.models.cold import ColdPolicy, ColdRule, Way
from extproc.core.router import Router
from extproc.core.snapshot import Policy
from extproc.demo.ports import free_port
from extproc.observe.live_gauges import Gauges
from extproc.observe.metrics import Metrics
from extproc.observe.observer import Observer
from extproc.server.cold_waits import ColdWaits
from extproc.server.service import Service
from extproc.server.shell import Shell
from extproc.stream.rules import Rules
from tests.control.parts import HOST, ScriptedEngine, raw, running_engine
from tests.core.builders import instance, router
from tests.e2e.eventually import eventually
from tests.envoy_process import EnvoyProcess

PATH = "/v1/chat/completions"
BODY = b'{"model": "soon", "messages": [{"role": "user", "content": "x"}]}'
MESSAGE_TIMEOUT_S = 0.2
HELD_S = 1.5  # several times that


@dataclass(frozen=True)
class Waiting:
    port: int
    router: Router
    waits: ColdWaits
    engine: ScriptedEngine
    service: Service

    async def ask(self) -> tuple[int, bytes]:
        status, head, _ = await raw(self.port, "POST", PATH, "content-type: application/json\r\n", BODY)
        return status, head

    async def held(self) -> int:
        return self.router.cold.wishes.waiting["soon"]

    def join(self) -> None:
        """An instance of the model is Ready."""
        new = instance("soon", address=f"{HOST}:{self.engine.port}", models=("soon",))
        self.waits.take(self.router.fleet.apply(Published(instance=new), time.monotonic()))


@asynccontextmanager
async def running(folder: Path, mode: RequestBodies, hold_s: float = 20.0) -> AsyncIterator[Waiting]:
    rules = ColdPolicy(models={"soon": ColdRule(way=Way.HOLD, start_s=hold_s)}, hold_s=hold_s)
    async with AsyncExitStack() as stack:
        engine = await stack.enter_async_context(running_engine(ScriptedEngine("a")))
        made = router(instance("other"), policy=Policy(cold=rules), now=time.monotonic())
        waits = ColdWaits(made)
        observer = Observer(Metrics(lambda: Gauges({}, {}, 0.0, {})))
        shell = Shell(made, observer, time.monotonic, lambda: 0.0, "x-upstream-cluster", Rules(), cold_waits=waits)
        service = Service(shell)
        port = service.bind((HOST, 0))
        stack.push_async_callback(service.stop, 0.0)
        await service.start()
        settings = EnvoySettings(
            upstreams=(Upstream("a", (HOST, engine.port)),),
            workers=((HOST, port),),
            listen=(HOST, free_port()),
            admin=(HOST, free_port()),
            body_mode=mode,
            message_timeout_s=MESSAGE_TIMEOUT_S,
        )
        envoy = EnvoyProcess(bootstrap(settings), folder)
        stack.callback(envoy.stop)
        await asyncio.to_thread(envoy.start)

        async def healthy() -> int:
            return envoy.stats("cluster.extproc.membership_healthy").get("cluster.extproc.membership_healthy", 0)

        await eventually(healthy, lambda number: number >= 1, 60.0)
        yield Waiting(settings.listen[1], made, waits, engine, service)


@pytest.mark.parametrize("mode", list(RequestBodies))
async def test_a_request_waits_far_longer_than_a_message_may_take_and_is_served(
    mode: RequestBodies, tmp_path: Path
) -> None:
    """Whole, by the instance that came; and a client that leaves meanwhile is not waited for."""
    async with running(tmp_path, mode) as waiting:
        asked = [asyncio.create_task(waiting.ask()) for _ in range(3)]
        await eventually(waiting.held, lambda number: number == 3)
        _, leaving = await asyncio.open_connection(HOST, waiting.port)
        length = f"content-length: {len(BODY)}\r\ncontent-type: application/json\r\n"
        leaving.write(f"POST {PATH} HTTP/1.1\r\nhost: x\r\n{length}\r\n".encode() + BODY)
        await eventually(waiting.held, lambda number: number == 4)
        leaving.close()
        await eventually(waiting.held, lambda number: number == 3)
        await asyncio.sleep(HELD_S)
        assert not any(task.done() for task in asked)
        waiting.join()
        assert {status for status, _ in await asyncio.gather(*asked)} == {200}
        assert [body for _, _, _, body in waiting.engine.seen] == [BODY] * 3
        assert {headers["x-upstream-cluster"] for _, _, headers, _ in waiting.engine.seen} == {"pool"}
        await eventually(waiting.held, lambda number: number == 0)


@pytest.mark.parametrize("mode", list(RequestBodies))
async def test_a_request_that_waits_in_vain_is_refused_when_its_time_is_up(mode: RequestBodies, tmp_path: Path) -> None:
    """With what is left to wait."""
    async with running(tmp_path, mode, hold_s=HELD_S) as waiting:
        status, head = await waiting.ask()
        assert status == 503
        assert b"retry-after: 2\r\n" in head
        assert not waiting.engine.seen


@pytest.mark.parametrize("mode", list(RequestBodies))
async def test_who_waits_when_the_service_ends_is_refused(mode: RequestBodies, tmp_path: Path) -> None:
    """As who is held for room is: nothing goes on undecided to engines that have not got the model."""
    async with running(tmp_path, mode) as waiting:
        asked = asyncio.create_task(waiting.ask())
        await eventually(waiting.held, lambda number: number == 1)
        await waiting.service.stop(0.1)
        status, head = await asked
        assert status == 503
        assert b"retry-after: 20\r\n" in head
        assert not waiting.engine.seen
