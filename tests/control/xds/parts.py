"""A real Envoy that follows `extproc xds`: Redis, engines, the control plane as a process, a service that decides."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from extproc.adapters.registry import Registry
from extproc.control.bootstrap import bootstrap
from extproc.control.settings import OWN_SUFFIX, EnvoySettings, Shape, XdsSource
from extproc.core.values.instance import Instance, Lifecycle
from extproc.demo.ports import free_port
from extproc.demo.processes import Child, wait_for_line
from tests.control.parts import HOST, ScriptedEngine, naming_service, raw, running_engine
from tests.envoy_process import EnvoyProcess
from tests.processes import Processes
from tests.redis_server import RedisServer

CHAT = b'{"model": "m", "messages": []}'
CHAT_PATH = "/v1/chat/completions"
LONG_S = 600.0  # a record's life; nobody publishes again in these tests


@dataclass(frozen=True)
class Variant:
    """How Envoy and the control plane talk, and about what."""

    shape: Shape
    delta: bool
    aggregated: bool = True

    @property
    def name(self) -> str:
        """Of a test."""
        streams = "one stream" if self.aggregated else "separate streams"
        return f"{self.shape}, {'delta' if self.delta else 'state of the world'}, {streams}"


VARIANTS = [Variant(shape, delta) for shape in Shape for delta in (True, False)]
VARIANTS += [Variant(Shape.POOL, True, aggregated=False), Variant(Shape.INSTANCE, False, aggregated=False)]


@dataclass
class Setup:
    """Everything that runs. Decisions always name the instance b."""

    variant: Variant
    envoy: EnvoyProcess
    port: int
    engines: dict[str, ScriptedEngine]
    registry: Registry
    redis: RedisServer
    processes: Processes
    xds_port: int
    xds: Child

    async def publish(self, name: str, lifecycle: Lifecycle = Lifecycle.READY) -> None:
        """What an agent does."""
        await self.registry.publish(
            Instance(
                id=name,
                incarnation="1",
                address=self.address(name),
                cluster=name if self.variant.shape is Shape.INSTANCE else "pool",
                models=("m",),
                lifecycle=lifecycle,
            ),
            LONG_S,
        )

    def address(self, name: str) -> str:
        """Of an engine."""
        return f"{HOST}:{self.engines[name].port}"

    async def decided(self) -> tuple[int, str]:
        """Status of a request for which the service names b, and the engine that answered."""
        return await self._ask("POST", CHAT_PATH, CHAT)

    async def balanced(self) -> tuple[int, str]:
        """The same of a request without a decision."""
        return await self._ask("GET", "/v1/models")

    async def _ask(self, method: str, path: str, body: bytes = b"") -> tuple[int, str]:
        status, head, _ = await raw(self.port, method, path, body=body)
        engine = re.search(rb"x-engine: (\w+)", head)
        return status, engine[1].decode() if engine else ""

    async def known(self) -> dict[str, str]:
        """Health flags of the pool's endpoints in Envoy's eyes, by engine; with `cluster b` for one of its own.

        An AssertionError if Envoy shows nothing, which would pass for a world without instances.
        """
        page = await asyncio.to_thread(self.envoy.page, "/clusters")
        assert page, "Envoy does not show its clusters"
        names = {self.address(name): name for name in self.engines}
        flags = re.findall(r"^([\w/]+)::([\d.:]+)::health_flags::(.*)$", page, re.MULTILINE)
        return {
            names[address] if cluster == "pool" else f"cluster {cluster.removesuffix(OWN_SUFFIX)}": text
            for cluster, address, text in flags
            if address in names
        }

    async def start_xds(self) -> None:
        """Start the control plane (again) where Envoy looks for it."""
        self.xds = await start_xds(self.processes, self.variant.shape, self.xds_port, self.redis.url)

    async def refusals(self) -> dict[str, int]:
        """Envoy's counts of updates that were refused or empty, as far as there are any."""
        stats = await asyncio.to_thread(self.envoy.stats, "cluster")
        return {name: n for name, n in stats.items() if n and re.search(r"update_(rejected|empty)$", name)}


async def start_xds(processes: Processes, shape: Shape, port: int, redis_url: str) -> Child:
    """The control plane as a process, ready to be called."""
    listen = ("--listen", f"{HOST}:{port}", "--metrics-listen", f"{HOST}:0")
    child = await processes.start_extproc(
        "xds", "xds", *listen, "--shape", shape, "--settle-s", "0", "--redis-url", redis_url
    )
    await wait_for_line(child, "serving xDS", timeout_s=60)
    return child


@asynccontextmanager
async def following(folder: Path, variant: Variant, *published: str) -> AsyncIterator[Setup]:
    """An Envoy that has learned of the engines `published`, of a, b and c that run."""
    async with AsyncExitStack() as stack:
        engines = {
            name: await stack.enter_async_context(running_engine(ScriptedEngine(name))) for name in ("a", "b", "c")
        }
        redis = stack.enter_context(RedisServer("valkey", folder))
        registry = await stack.enter_async_context(Registry(redis.url))
        cluster = "b" if variant.shape is Shape.INSTANCE else "pool"
        worker = await stack.enter_async_context(naming_service(cluster, [f"{HOST}:{engines['b'].port}"]))
        processes = await stack.enter_async_context(Processes(folder))
        xds_port = free_port()
        xds = await start_xds(processes, variant.shape, xds_port, redis.url)
        source = XdsSource(servers=((HOST, xds_port),), delta=variant.delta, aggregated=variant.aggregated)
        settings = EnvoySettings(
            xds=source,
            workers=((HOST, worker),),
            listen=(HOST, free_port()),
            admin=(HOST, free_port()),
            message_timeout_s=30.0,
            shape=variant.shape,
        )
        envoy = EnvoyProcess(bootstrap(settings), folder)
        stack.callback(envoy.stop)
        setup = Setup(variant, envoy, settings.listen[1], engines, registry, redis, processes, xds_port, xds)
        for name in published:
            await setup.publish(name)
        await asyncio.to_thread(envoy.start)
        yield setup
