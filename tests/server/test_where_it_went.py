"""Through a real Envoy: bookings, prefixes, speeds and cool-downs are those of the instance that really answered."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import orjson
import pytest

from extproc.adapters.http_client import Answer, HttpClient
from extproc.control.bootstrap import bootstrap
from extproc.control.settings import EnvoySettings, Shape, Upstream
from extproc.core.router import Router
from extproc.core.values.decision import Reason
from extproc.core.values.instance import Instance, Lifecycle
from extproc.demo.ports import free_port
from extproc.observe.live_gauges import Gauges
from extproc.observe.metrics import Metrics
from extproc.observe.observer import Observer
from extproc.server.service import Service
from extproc.server.shell import Shell
from extproc.stream.exchange import Rules
from tests.control.parts import HOST, ScriptedEngine, running_engine
from tests.control.test_envoy_behaviour import PATH, _healthy
from tests.core.builders import MODEL, instance, router
from tests.core.test_failures import reasons
from tests.e2e.eventually import eventually
from tests.envoy_process import EnvoyProcess

BODY = orjson.dumps({"model": MODEL, "messages": [{"role": "user", "content": "word " * 2000}]})


@dataclass(frozen=True)
class Setup:
    """An Envoy before a service that runs in the test; what Envoy logged of attempts and requests is counted."""

    router: Router
    port: int
    observer: Observer

    async def post(self) -> int:
        """The status of one request, once its stream has ended and its outcome was learned as well."""
        before = await self._finished()
        async with HttpClient(timeout_s=60.0) as client:
            answer = await client.post_json(f"http://{HOST}:{self.port}{PATH}", BODY)
        assert isinstance(answer, Answer), answer
        await eventually(self._finished, lambda count: count > before)
        await eventually(self._in_flight, lambda count: not count)
        return answer.status

    def holders(self) -> set[str]:
        """Ids of the instances that are believed to hold prompts."""
        members = (member.instance for member in self.router.fleet.members())
        return {each.id for each in members if self.router.prefixes.size(each.key)}

    def taught(self) -> set[str]:
        """GPUs whose kind has learned from a request."""
        return {kind.profile.name for kind in self.router.beliefs.speeds.kinds().values() if kind.finished}

    async def _in_flight(self) -> int:
        return len(self.router.ledger.in_flight())

    async def _finished(self) -> int:
        page = self.observer.page().decode()
        lines = [line for line in page.splitlines() if line.startswith("extproc_outcomes_total{")]
        return int(sum(float(line.rpartition(" ")[2]) for line in lines))


@asynccontextmanager
async def running(
    folder: Path, members: Sequence[Instance], shape: Shape = Shape.POOL, known: Sequence[Instance] = ()
) -> AsyncIterator[Setup]:
    """`known`: those that Envoy has in its pool, if not all."""
    async with AsyncExitStack() as stack:
        made = router(*members, now=time.monotonic())
        observer = Observer(Metrics(lambda: Gauges({}, {}, 0.0, {})))
        service = Service(Shell(made, observer, time.monotonic, lambda: 0.0, "x-upstream-cluster", Rules()))
        worker = service.bind((HOST, 0))
        await service.start()
        stack.push_async_callback(service.stop, 0.0)
        addresses = [(each.id, int(each.address.rpartition(":")[2])) for each in known or members]
        settings = EnvoySettings(
            upstreams=tuple(Upstream(name, (HOST, port)) for name, port in addresses),
            workers=((HOST, worker),),
            listen=(HOST, free_port()),
            admin=(HOST, free_port()),
            shape=shape,
            message_timeout_s=30.0,
        )
        envoy = EnvoyProcess(bootstrap(settings), folder)
        stack.callback(envoy.stop)
        await asyncio.to_thread(envoy.start)
        await _healthy(envoy)
        yield Setup(made, settings.listen[1], observer)


def at(name: str, port: int, hardware: str, cluster: str = "pool", lifecycle: Lifecycle = Lifecycle.READY) -> Instance:
    return instance(name, address=f"{HOST}:{port}", hardware=hardware, cluster=cluster, lifecycle=lifecycle)


@pytest.mark.parametrize("status", [None, 503])
async def test_after_a_retry_everything_is_booked_where_the_answer_comes_from(
    status: int | None, tmp_path: Path
) -> None:
    """The faster first choice refuses the connection (None) or the request."""
    async with AsyncExitStack() as stack:
        full = await stack.enter_async_context(running_engine(ScriptedEngine("first", status or 200)))
        second = await stack.enter_async_context(running_engine(ScriptedEngine("second")))
        second.held = asyncio.Event()
        first_port = full.port if status else free_port()
        members = [at("first", first_port, "h100_sxm"), at("second", second.port, "l40s")]
        setup = await stack.enter_async_context(running(tmp_path, members))
        asked = asyncio.create_task(setup.post())
        for _ in range(1200):
            if second.seen:
                break
            await asyncio.sleep(0.05)
        # Nobody has told yet that Envoy went on.
        assert setup.router.ledger.in_flight() == {"first@1": 1}
        second.held.set()
        assert await asked == 200
        assert setup.holders() == {"second"}
        assert setup.taught() == set()  # what was measured began at the first
        left_out = reasons(setup.router, time.monotonic())
        assert left_out == {"first": Reason.PUSHED_BACK if status else Reason.COOLING_DOWN}
        assert await setup.post() == 200
        assert len(full.seen) == (1 if status else 0)
        assert {name for name in ("h100", "l40s") if any(name in each for each in setup.taught())} == {"l40s"}


async def test_where_envoy_balances_by_itself_since_it_knows_none_of_those_named_its_answer_tells_who_served(
    tmp_path: Path,
) -> None:
    """Its list of instances is behind; the one that it has takes nothing new by the registry's word, but answers."""
    async with AsyncExitStack() as stack:
        last = await stack.enter_async_context(running_engine(ScriptedEngine("last")))
        new = at("new", free_port(), "h100_sxm")
        draining = at("last", last.port, "l40s", lifecycle=Lifecycle.DRAINING)
        setup = await stack.enter_async_context(running(tmp_path, [new, draining], known=[draining]))
        assert await setup.post() == 200
        assert len(last.seen) == 1
        assert setup.holders() == {"last"}
        assert setup.taught() == set()
        # Nobody has asked it.
        assert reasons(setup.router, time.monotonic()) == {"last": Reason.NOT_READY}


@pytest.mark.parametrize("answers", [True, False])
async def test_with_a_cluster_an_instance_its_address_tells_who_served(answers: bool, tmp_path: Path) -> None:
    """The header names the cluster alone; Envoy tells the address of its one endpoint, or that there was none."""
    async with AsyncExitStack() as stack:
        engine = await stack.enter_async_context(running_engine(ScriptedEngine("a")))
        port = engine.port if answers else free_port()
        members = [at("a", port, "h100_sxm", "a"), at("b", free_port(), "l40s", "b")]
        setup = await stack.enter_async_context(running(tmp_path, members, Shape.INSTANCE))
        assert await setup.post() == (200 if answers else 503)
        assert setup.holders() == ({"a"} if answers else set())
        assert ("a" in reasons(setup.router, time.monotonic())) is not answers
