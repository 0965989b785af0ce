"""The service in this process behind a real Envoy, by TLS or a Unix socket, with one engine that records."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from extproc.adapters.yaml_files import dump
from extproc.addresses import Endpoint
from extproc.control.bootstrap import bootstrap, fragment
from extproc.control.settings import EnvoySettings, TlsToService, Upstream
from extproc.core.router import Router
from extproc.demo.ports import free_port
from extproc.observe.live_gauges import Gauges
from extproc.observe.metrics import Metrics
from extproc.observe.observer import Observer
from extproc.server.certificates import Certificates
from extproc.server.service import Service
from extproc.server.shell import Shell
from extproc.stream.rules import Rules
from tests.control.parts import HOST, ScriptedEngine, raw, running_engine
from tests.core.builders import MODEL, instance, router
from tests.e2e.eventually import eventually
from tests.envoy_process import EnvoyProcess

CHAT = b'{"model": "%s", "messages": [{"role": "user", "content": "x"}]}' % MODEL.encode()
PATH = "/v1/chat/completions"
HEALTHY = "cluster.extproc.membership_healthy"


@dataclass(frozen=True)
class Secured:
    """What runs, and how to ask it."""

    envoy: EnvoyProcess
    port: int
    engine: ScriptedEngine
    service: Service
    made: Router
    observer: Observer

    async def ask(self, headers: str = "", body: bytes = CHAT) -> tuple[int, bool]:
        """Status of a completion, and whether it came with a decision."""
        before = len(self.engine.seen)
        status, _, _ = await raw(self.port, "POST", PATH, headers, body)
        seen = self.engine.seen[before:]
        return status, bool(seen) and seen[-1][2].get("x-upstream-cluster") == "pool"

    async def healthy(self) -> None:
        """Wait until Envoy has reached the service."""
        await self.until(HEALTHY, 1)

    async def until(self, name: str, least: int) -> None:
        """Wait until one of Envoy's counters or gauges has grown."""

        async def read() -> int:
            return self.stat(name)

        await eventually(read, lambda value: value >= least, 60.0)

    async def nothing_in_flight(self) -> None:
        """Wait until all reservations are given back: streams end a moment after their answers."""

        async def read() -> dict[str, int]:
            return dict(self.made.ledger.in_flight())

        await eventually(read, lambda open_requests: not open_requests)

    def stat(self, name: str) -> int:
        """One of Envoy's counters or gauges."""
        return self.envoy.stats(name).get(name, 0)


def write_secrets(directory: Path, settings: EnvoySettings) -> None:
    """As an operator does, by `extproc envoy-config --fragment`."""
    directory.mkdir()
    for name in ("ca", "identity"):
        (directory / f"extproc-{name}.yaml").write_text(dump(fragment(f"sds-{name}", settings)))


@asynccontextmanager
async def running(
    folder: Path,
    listen: Endpoint = (HOST, 0),
    certificates: Certificates | None = None,
    tls: TlsToService | None = None,
    max_streams: int = 20_000,
    **changes: Any,
) -> AsyncIterator[Secured]:
    """All of it, ended with the context."""
    async with AsyncExitStack() as stack:
        engine = await stack.enter_async_context(running_engine(ScriptedEngine("a")))
        made = router(instance("a", address=f"{HOST}:{engine.port}", cluster="pool"))
        observer = Observer(Metrics(lambda: Gauges({}, {}, 0.0, {})))
        shell = Shell(
            made, observer, time.monotonic, lambda: 0.5, "x-upstream-cluster", Rules(), max_streams=max_streams
        )
        service = Service(shell)
        port = service.bind(listen, certificates)
        stack.push_async_callback(service.stop, 0.0)
        await service.start()
        settings = EnvoySettings(
            upstreams=(Upstream("a", (HOST, engine.port)),),
            workers=((HOST, port) if port else listen,),
            tls=tls,
            listen=(HOST, free_port()),
            admin=(HOST, free_port()),
            **{"message_timeout_s": 30.0} | changes,
        )
        if tls is not None and tls.sds_directory:
            write_secrets(Path(tls.sds_directory), settings)
        envoy = EnvoyProcess(bootstrap(settings), folder)
        stack.callback(envoy.stop)
        await asyncio.to_thread(envoy.start)
        yield Secured(envoy, settings.listen[1], engine, service, made, observer)
