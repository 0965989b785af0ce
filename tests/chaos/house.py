"""A fleet of which every part can be killed, frozen and started again at the same address, around a real Envoy."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
from prometheus_client.parser import text_string_to_metric_families

from extproc.adapters import yaml_files
from extproc.adapters.http_client import Answer, HttpClient
from extproc.control.bootstrap import bootstrap
from extproc.control.settings import EnvoySettings, TlsToService, XdsSource
from extproc.demo.ports import free_port
from extproc.demo.processes import Child, wait_for_line
from tests.chaos.envoy_log import EnvoyLog, with_log
from tests.e2e.eventually import eventually
from tests.e2e.secure import write_secrets
from tests.envoy_process import EnvoyProcess
from tests.processes import Processes
from tests.redis_server import RedisServer

HOST = "127.0.0.1"
MODEL = "llama-3.1-8b"
LONG_S = 90.0  # never reached by a machine that works
WORKERS = 2
ENGINES = ("a", "b", "c")
SERVE_FILE = "serve.yaml"
SERVE = "serve: {drain_s: 1}\n"
_AUTOSCALE = f"""
autoscale:
  tick_s: 0.5
  pools:
    h100: {{models: [{MODEL}], hardware: h100_sxm, least: 1, most: 8}}
"""


@dataclass(frozen=True, slots=True)
class Part:
    """What one program is called with, so that whoever watches over it in production could start it again."""

    arguments: tuple[str, ...]
    ready: str  # what it prints then
    environment: Mapping[str, str] = field(default_factory=dict)  # more than this process has


@dataclass
class House:
    """The running parts by name: agent, serve, xds, autoscale, and each engine."""

    redis: RedisServer
    processes: Processes
    envoy: EnvoyProcess
    log: EnvoyLog
    http: HttpClient
    port: int  # where clients ask Envoy
    pages_url: str
    autoscaler_url: str
    engine_ports: dict[str, int]
    parts: dict[str, Part]
    running: dict[str, Child] = field(default_factory=dict)
    model: str = MODEL

    def pid(self, name: str) -> int:
        """Of a part; `worker 0` and `worker 1` are the service's."""
        if name.startswith("worker"):
            parent = self.running["serve"].process.pid
            children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
            return int(children[int(name.removeprefix("worker "))])
        return self.running[name].process.pid

    async def start(self, name: str) -> None:
        """Start a part, again or for the first time, and wait until it says that it is there."""
        part = self.parts[name]
        command = part.arguments
        if part.environment:
            pairs = (f"{key}={value}" for key, value in part.environment.items())
            child = await self.processes.start(name, "env", *pairs, sys.executable, "-m", "extproc", *command)
        elif command[0] == sys.executable:
            child = await self.processes.start(name, *command)
        else:
            child = await self.processes.start_extproc(name, *command)
        self.running[name] = child
        await wait_for_line(child, part.ready, LONG_S)

    async def kill(self, name: str) -> None:
        """SIGKILL, to the service's parent alone too: its workers have to notice it by themselves."""
        pid = self.pid(name)
        os.kill(pid, signal.SIGKILL)
        if name in self.running:
            await self.running[name].process.wait()

    def freeze(self, name: str) -> None:
        """SIGSTOP: connections stay open and nothing answers."""
        os.kill(self.pid(name), signal.SIGSTOP)

    def thaw(self, name: str) -> None:
        """End a `freeze`."""
        os.kill(self.pid(name), signal.SIGCONT)

    async def page(self, path: str, url: str = "") -> Any:
        """A page of the service (or of `url`) as JSON; None while nobody answers."""
        answer = await self.http.get(f"{url or self.pages_url}{path}")
        return orjson.loads(answer.body) if isinstance(answer, Answer) and answer.status == 200 else None

    async def samples(self, name: str) -> list[tuple[dict[str, str], float]]:
        """Labels and value of each sample of one of the service's metrics."""
        answer = await self.http.get(f"{self.pages_url}/metrics")
        if not isinstance(answer, Answer):
            return []
        families = text_string_to_metric_families(answer.body.decode())
        return [(each.labels, each.value) for family in families for each in family.samples if each.name == name]

    async def well(self) -> None:
        """Wait until Envoy knows all workers, these know all engines, and nothing is degraded."""

        async def state() -> Any:
            healthy = self.envoy.stats("cluster.extproc.membership_healthy").values()
            rows = await self.page("/fleet") or ()
            ready = {row["id"] for row in rows if row["lifecycle"] == "Ready" and row["age_s"] < 2.0}
            degraded = [labels for labels, value in await self.samples("extproc_degraded") if value]
            return list(healthy), ready, degraded

        await eventually(state, lambda now: now == ([WORKERS], set(self.engine_ports), []), LONG_S)

    async def in_flight(self) -> dict[str, int]:
        """Requests that the service has booked on each instance, over all workers."""
        return {row["id"]: row["in_flight"] for row in await self.page("/fleet") or () if row["in_flight"]}

    async def passed_on(self) -> int:
        """Requests that the service has left to Envoy of its own accord, summed over the workers that live.

        Those that got no decision in time are not among them: how many they are is for the machine to say, and not
        for a test. These are for nothing but the service's own word, so that they can be held to 0.
        """
        samples = await self.samples("extproc_requests_total")
        return int(sum(value for labels, value in samples if labels["action"] == "passed_on"))

    async def idle(self) -> None:
        """Wait until nothing is booked anywhere, and no stream of Envoy's is open."""

        async def left() -> Any:
            open_streams = sum(value for _, value in await self.samples("extproc_in_flight"))
            active = self.envoy.stats("http.llm.downstream_rq_active").values()
            return await self.in_flight(), open_streams, list(active)

        await eventually(left, lambda now: now == ({}, 0.0, [0]), LONG_S)


def engine_part(name: str, port: int) -> Part:
    """A simulated engine."""
    flags = ("--id", name, "--model", MODEL, "--hardware", "h100_sxm", "--port", str(port))
    return Part(("engine", *flags), r"listening on [\d.]+:(\d+)")


def parts_of(
    folder: Path, redis_url: str, engines: Mapping[str, int], kind: str, tls: Sequence[str]
) -> dict[str, Part]:
    """Everything but engines, Envoy and Redis; `tls` are flags of what Envoy connects to."""
    backends = [
        {"url": f"http://{HOST}:{port}", "id": name, "engine": kind, "hardware": "h100_sxm"}
        for name, port in engines.items()
    ]
    (folder / "backends.yaml").write_text(yaml_files.dump(backends))
    (folder / "autoscale.yaml").write_text(_AUTOSCALE)
    (folder / SERVE_FILE).write_text(SERVE)
    door, plane, pages, scaler, other = _doors(), *(f"{HOST}:{free_port()}" for _ in range(4))
    registry = ("--redis-url", redis_url)
    agent = ("agent", "--backends", str(folder / "backends.yaml"), "--period-s", "0.2", *registry)
    serve = ("serve", "--listen", f"{HOST}:{door}", "--metrics-listen", pages, "--workers", str(WORKERS))
    xds = ("xds", "--listen", plane, "--metrics-listen", other, "--settle-s", "0.5")
    scale = ("autoscale", "--metrics-listen", scaler, "--config", str(folder / "autoscale.yaml"))
    return {
        "agent": Part(agent, ""),
        "serve": Part((*serve, "--config", str(folder / SERVE_FILE), *tls, *registry), "workers serve ext_proc on"),
        "xds": Part((*xds, *tls, *registry), "serving xDS on port"),
        "autoscale": Part((*scale, "--settle-s", "0.5", "--lease-s", "1.5", *registry), "pages on port"),
    }


@asynccontextmanager
async def running_house(
    folder: Path,
    *,
    redis: RedisServer | None = None,
    environments: Mapping[str, Mapping[str, str]] | None = None,
    tls: tuple[Sequence[str], TlsToService] | None = None,
    engines: Mapping[str, Part] | None = None,
    kind: str = "vllm",
    model: str = MODEL,
) -> AsyncIterator[House]:
    """All parts, well, and ended with the context.

    `redis`: one that was not started yet, if not a plain Valkey. `environments`: of parts, by name, which then run in
    an interpreter of their own. `tls`: flags of the service and the control plane, and how Envoy is to speak to them.
    `engines`: others than three simulated ones, by name, whose last argument is their port.
    """
    async with AsyncExitStack() as stack:
        ports = {name: int(part.arguments[-1]) for name, part in engines.items()} if engines else {}
        ports = ports or {name: free_port() for name in ENGINES}
        engines = engines or {name: engine_part(name, port) for name, port in ports.items()}
        server = stack.enter_context(redis or RedisServer("valkey", folder))
        flags, to_service = tls or ((), None)
        parts = {**engines, **parts_of(folder, server.url, ports, kind, flags)}
        for name, environment in (environments or {}).items():
            parts[name] = Part(parts[name].arguments, parts[name].ready, environment)
        door, plane = _port(parts["serve"], "--listen"), _port(parts["xds"], "--listen")
        settings = EnvoySettings(
            xds=XdsSource(servers=((HOST, plane),)),
            workers=tuple((HOST, door + number) for number in range(WORKERS)),
            tls=to_service,
            listen=(HOST, free_port()),
            admin=(HOST, free_port()),
        )
        if to_service is not None:
            write_secrets(Path(to_service.sds_directory), settings)
        log = EnvoyLog(folder / "requests.log")
        envoy = EnvoyProcess(with_log(bootstrap(settings), log.path), folder, "--file-flush-interval-msec", "100")
        processes = await stack.enter_async_context(Processes(folder))
        http = await stack.enter_async_context(HttpClient(timeout_s=5.0))
        pages = f"http://{HOST}:{_port(parts['serve'], '--metrics-listen')}"
        scaler = f"http://{HOST}:{_port(parts['autoscale'], '--metrics-listen')}"
        house = House(server, processes, envoy, log, http, settings.listen[1], pages, scaler, ports, parts, model=model)
        await asyncio.gather(*(house.start(name) for name in parts))
        stack.callback(envoy.stop)
        await asyncio.to_thread(envoy.start)
        await house.well()
        yield house


def _doors() -> int:
    """The first of as many free ports in a row as there are workers."""
    first = free_port()
    while free_port() != first + 1:
        first = free_port()
    return first


def _port(part: Part, flag: str) -> int:
    return int(part.arguments[part.arguments.index(flag) + 1].rpartition(":")[2])
