"""What the cells share: a registry, one `extproc serve` that is a process of its own, and scripted engines.

Each shape has its own instances, of models of its own, so that one service can decide for both. `first` costs less
than `second`, which says that it has much to do. What is not decided upon goes to `open`, which no decision names.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from extproc.adapters.http_client import Answer, HttpClient
from extproc.adapters.registry import Registry
from extproc.control.settings import Shape
from extproc.core.values.instance import Instance, Lifecycle, Load
from extproc.demo.ports import free_port
from extproc.demo.processes import Child, Processes, ended, wait_for_line
from extproc.errors import RegistryError
from tests.e2e.eventually import eventually
from tests.e2e.matrix.clients import HOST
from tests.e2e.matrix.engines import Engine
from tests.redis_server import RedisServer

BODY_LIMIT_BYTES = 24 * 2**20
_READY_S = 60.0


@dataclass
class Family:
    """The engines of one shape."""

    shape: Shape
    first: Engine
    second: Engine
    open: Engine
    incarnation: int = 0

    @property
    def engines(self) -> tuple[Engine, Engine, Engine]:
        """All of them."""
        return self.first, self.second, self.open

    @property
    def model(self) -> str:
        """Served by `first` and `second`."""
        return f"m-{self.shape}"

    @property
    def sole_model(self) -> str:
        """Served by `first` alone, so that nothing that was learned meanwhile makes it go elsewhere."""
        return f"sole-{self.shape}"

    @property
    def full_model(self) -> str:
        """Of an instance that takes nothing more."""
        return f"full-{self.shape}"

    @property
    def unknown_model(self) -> str:
        """Of an instance of which Envoy has not heard yet."""
        return f"unknown-{self.shape}"

    def cluster(self, engine: Engine) -> str:
        """Whose name a decision for this engine gives."""
        return "decided" if self.shape is Shape.POOL else engine.name

    def instances(self) -> Iterator[Instance]:
        """As their agents would publish them."""
        start = str(self.incarnation)
        common: dict[str, Any] = {"lifecycle": Lifecycle.READY, "incarnation": start}
        busy = Load(running=8, waiting=500)
        both, idle = (self.model,), Load(running=0, waiting=0)
        for engine, kind, load, models in (
            (self.first, "h100_sxm", idle, (*both, self.sole_model)),
            (self.second, "l40s", busy, both),
        ):
            yield Instance(
                id=engine.name,
                address=engine.address,
                cluster=self.cluster(engine),
                models=models,
                hardware=kind,
                load=load,
                **common,
            )
        nobody = f"{HOST}:1"  # where nobody has to be
        yield Instance(
            id=f"full-{self.shape}",
            address=nobody,
            cluster="full",
            models=(self.full_model,),
            load=busy,
            max_num_seqs=8,
            tags={"max_queued": "2"},
            **common,
        )
        cluster = "decided" if self.shape is Shape.POOL else "unknown"
        yield Instance(
            id=f"unknown-{self.shape}", address=nobody, cluster=cluster, models=(self.unknown_model,), **common
        )


@dataclass
class House:
    """The running parts."""

    folder: Path
    redis: RedisServer
    registry: Registry
    processes: Processes
    http: HttpClient
    families: dict[Shape, Family]
    renamer_port: int
    port: int = field(default_factory=free_port)  # of the service
    pages_port: int = field(default_factory=free_port)
    service: Child | None = None

    async def start_service(self) -> None:
        """Start the service, on the same ports as before, and wait until it knows all instances."""
        self.service = await self.processes.start_extproc(
            "serve", "serve", "--listen", f"{HOST}:{self.port}", "--metrics-listen", f"{HOST}:{self.pages_port}",
            "--redis-url", self.redis.url, "--body-limit-bytes", str(BODY_LIMIT_BYTES), "--drain-s", "2",
        )  # fmt: skip
        await wait_for_line(self.service, r"serving ext_proc on port", _READY_S)

        async def known() -> int:
            assert self.service is not None
            ended(self.service)  # fails with what it said, if it has
            return len(await self.fleet())

        await eventually(known, lambda count: count == 8, _READY_S)

    async def publish(self, family: Family) -> None:
        """Tell the registry of a family's instances."""
        for instance in family.instances():
            await self.registry.publish(instance)

    async def keep_publishing(self) -> None:
        """Once a second, as agents do, until cancelled; a Redis that is late for once is asked again."""
        while True:
            with suppress(RegistryError):
                for family in self.families.values():
                    await self.publish(family)
            await asyncio.sleep(1.0)

    async def renew(self, family: Family) -> None:
        """Forget what was seen, and if an engine has hurt somebody let all have new incarnations, of which nothing
        bad is known.

        Envoy tells what went wrong by address, and a moment later: so that is waited for.
        """
        hurt = any(engine.hurt for engine in family.engines)
        for engine in family.engines:
            engine.seen.clear()
            engine.hurt = False
        if not hurt:
            return
        await asyncio.sleep(0.3)
        family.incarnation += 1
        await self.publish(family)
        keys = {f"{instance.id}@{instance.incarnation}" for instance in family.instances()}

        def known(rows: dict[str, Any]) -> bool:
            return keys <= {f"{row['id']}@{row['incarnation']}" for row in rows.values()}

        await eventually(self.fleet, known, _READY_S)

    async def fleet(self) -> dict[str, Any]:
        """The service's view of the instances by id; {} if it does not answer."""
        rows = await self._page("fleet")
        return {row["id"]: row for row in orjson.loads(rows)} if rows else {}

    async def in_flight(self, family: Family) -> int:
        """Open requests of a family, as the service counts them, once it answers."""
        rows = await eventually(self.fleet, bool)
        return sum(int(rows[instance.id]["in_flight"]) for instance in family.instances())

    async def metric(self, name: str, **labels: str) -> float:
        """Sum of the samples of a metric that have these labels."""
        total = 0.0
        for line in (await self._page("metrics")).decode().splitlines():
            found = re.fullmatch(rf"{name}(?:{{(.*)}})? (\S+)", line)
            if found and labels.items() <= dict(re.findall(r'(\w+)="([^"]*)"', found[1] or "")).items():
                total += float(found[2])
        return total

    async def _page(self, name: str) -> bytes:
        answer = await self.http.get(f"http://{HOST}:{self.pages_port}/{name}")
        return answer.body if isinstance(answer, Answer) else b""
