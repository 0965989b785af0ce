"""The eight cells: body mode × shape of the destination × HTTP version of the client.

One Envoy serves the two cells of a mode and a shape. Beside the listener that clients would use it has one for each
state in which the service may be, or another choice of the operator; see `Door`.
"""

from __future__ import annotations

import asyncio
import copy
import hashlib
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

import orjson

from extproc.control.bootstrap import bootstrap
from extproc.control.settings import EXTPROC_CLUSTER, EnvoySettings, RequestBodies, Shape, Upstream
from extproc.demo.ports import free_port
from tests.e2e.eventually import eventually
from tests.e2e.matrix.clients import HOST, Ask, Got, Http, send
from tests.e2e.matrix.engines import Engine, Seen
from tests.e2e.matrix.house import BODY_LIMIT_BYTES, Family, House
from tests.envoy_process import EnvoyProcess

_NOBODY = "nobody"  # the cluster of a service that is not there
_RENAMER = "renamer"  # the cluster of `renamer`, and the listener before it


class Door(StrEnum):
    """A listener, and what the service and the operator are to it."""

    MAIN = "main"  # unhurried: a decision may take half a minute, so that no busy machine decides a test
    MAIN_CLOSED = "main-closed"  # and the operator chose --fail-closed
    QUICK = "quick"  # the service must answer within a quarter of a second
    DOWN = "down"  # no service
    DOWN_CLOSED = "down-closed"  # no service, and the operator chose --fail-closed
    QUICK_CLOSED = "quick-closed"


@dataclass(frozen=True)
class Building:
    """The Envoy of one mode and shape."""

    mode: RequestBodies
    family: Family
    house: House
    envoy: EnvoyProcess
    ports: dict[Door, int]
    renaming: int  # port

    async def healthy(self, wanted: bool = True, cluster: str = EXTPROC_CLUSTER) -> None:
        """Wait until Envoy's check finds the service as is wanted."""

        async def healthy_workers() -> int:
            stats = await asyncio.to_thread(self.envoy.stats, f"cluster.{cluster}.membership_healthy")
            return stats.get(f"cluster.{cluster}.membership_healthy", -1)

        await eventually(healthy_workers, lambda count: count == int(wanted), 60.0)


@dataclass(frozen=True)
class Cell:
    """One of the eight."""

    building: Building
    http: Http

    @property
    def number(self) -> int:
        """Among the four of its mode, 0 to 3."""
        return 2 * list(Shape).index(self.family.shape) + list(Http).index(self.http)

    @property
    def house(self) -> House:
        """What all cells share."""
        return self.building.house

    @property
    def family(self) -> Family:
        """The engines of its shape."""
        return self.building.family

    @property
    def holds_bodies(self) -> bool:
        """Whether Envoy keeps a body until the decision is there, and can go on without one."""
        return self.building.mode is RequestBodies.BUFFERED

    def chat(self, size: int = 0, model: str = "") -> bytes:
        """A chat body that only the first engine can serve, or another model's; of `size` bytes if it needs no more."""
        model = model or self.family.sole_model
        frame = {"model": model, "messages": [{"role": "user", "content": ""}], "stream": True}
        room = max(0, size - len(orjson.dumps(frame)))
        frame["messages"] = [{"role": "user", "content": (_COUNTED * (room // len(_COUNTED) + 1))[:room]}]
        return orjson.dumps(frame)

    async def ask(self, pieces: Sequence[bytes] | None = None, door: Door = Door.MAIN, **ask: Any) -> Got:
        """Send a request; by default a small chat."""
        wanted = Ask(pieces=[self.chat()] if pieces is None else pieces, **ask)
        return await send(self.http, self.building.ports[door], wanted)

    async def ask_renamer(self, pieces: Sequence[bytes], **ask: Any) -> Got:
        """Send a request to where an alias stands for a model."""
        return await send(self.http, self.building.renaming, Ask(pieces=pieces, **ask))

    async def script(self, script: str, door: Door = Door.MAIN, model: str = "") -> Got:
        """Send a small chat whose engine is to follow a script; by default one that has a second choice."""
        return await self.ask([self.chat(model=model or self.family.model)], door, headers=[("x-script", script)])

    def took(self, *engines: Engine) -> list[Seen]:
        """What these engines got since last asked; no others may have got anything."""
        others = [engine for engine in self.family.engines if engine not in engines and engine.seen]
        assert not others, f"{[engine.name for engine in others]} got {[engine.seen for engine in others]}"
        seen = [each for engine in engines for each in engine.seen]
        for engine in engines:
            engine.seen.clear()
        return seen

    def decided(self) -> Seen:
        """The one request that came since last asked, to the instance that a decision had to choose."""
        (seen,) = self.took(self.family.first)
        assert seen.headers.get("x-upstream-cluster") == self.family.cluster(self.family.first)
        return seen

    def undecided(self) -> Seen:
        """The one request that came since last asked, sent by Envoy alone."""
        (seen,) = self.took(self.family.open)
        assert "x-upstream-cluster" not in seen.headers
        return seen

    async def until_decided(self) -> None:
        """Wait until requests are decided upon again, and their engines at rest."""

        async def decided() -> bool:
            got = await self.ask()
            engines = [engine for engine in self.family.engines if engine.seen]
            self.took(*self.family.engines)
            return got.status == 200 and engines == [self.family.first]

        await eventually(decided, bool, 60.0)
        await self.until_idle()

    async def until_idle(self) -> None:
        """Wait until no request of the cell is in flight, in the service's eyes."""

        async def count() -> int:
            return await self.house.in_flight(self.family)

        await eventually(count, lambda count: count == 0, 60.0)


_COUNTED = "".join(map("{:06x}".format, range(2**15)))


def same(seen: Seen, body: bytes) -> bool:
    """Whether a request reached an engine byte by byte."""
    return (seen.length, seen.digest) == (len(body), hashlib.sha256(body).hexdigest())


@asynccontextmanager
async def open_building(house: House, mode: RequestBodies, shape: Shape, folder: Path) -> AsyncIterator[Building]:
    """A running Envoy whose check has found the service."""
    family = house.families[shape]
    settings = EnvoySettings(
        upstreams=(
            Upstream(family.open.name, (HOST, family.open.port), "open"),
            Upstream(family.first.name, (HOST, family.first.port), "decided"),
            Upstream(family.second.name, (HOST, family.second.port), "decided"),
        ),
        workers=((HOST, house.port),),
        listen=(HOST, free_port()),
        admin=(HOST, free_port()),
        shape=shape,
        body_mode=mode,
        body_limit_bytes=BODY_LIMIT_BYTES,
        message_timeout_s=30.0,
    )
    ports = {door: free_port() for door in Door}
    values = _with_doors(settings, ports)
    renaming = free_port()
    _add_renamer(values, settings, renaming, house.renamer_port)
    envoy = EnvoyProcess(values, folder)
    try:
        await asyncio.to_thread(envoy.start)
        building = Building(mode, family, house, envoy, ports, renaming)
        await building.healthy()
        await building.healthy(cluster=_RENAMER)
        yield building
    finally:
        await asyncio.to_thread(envoy.stop)


def _with_doors(settings: EnvoySettings, ports: dict[Door, int]) -> dict[str, Any]:
    """A bootstrap with a listener for each door."""
    values = bootstrap(settings)
    listeners = values["static_resources"]["listeners"] = []
    for door, port in ports.items():
        closed = door in (Door.DOWN_CLOSED, Door.QUICK_CLOSED, Door.MAIN_CLOSED)
        timeout_s = settings.message_timeout_s if door in (Door.MAIN, Door.MAIN_CLOSED) else 0.25
        changed = replace(settings, listen=(HOST, port), fail_closed=closed, message_timeout_s=timeout_s)
        service = _NOBODY if door in (Door.DOWN, Door.DOWN_CLOSED) else EXTPROC_CLUSTER
        listeners.append(_listener(changed, str(door), service))
    _add_service(values, _NOBODY, free_port())
    return values


def _add_renamer(values: dict[str, Any], settings: EnvoySettings, port: int, renamer_port: int) -> None:
    """A listener whose service knows aliases."""
    changed = replace(settings, listen=(HOST, port))
    values["static_resources"]["listeners"].append(_listener(changed, _RENAMER, _RENAMER))
    _add_service(values, _RENAMER, renamer_port)


def _listener(settings: EnvoySettings, name: str, service: str) -> dict[str, Any]:
    """The listener of these settings, before the service of another cluster."""
    (listener,) = bootstrap(settings)["static_resources"]["listeners"]
    changed: dict[str, Any] = json.loads(json.dumps(listener).replace(f'"{EXTPROC_CLUSTER}"', f'"{service}"'))
    return changed | {"name": name}


def _add_service(values: dict[str, Any], name: str, port: int) -> None:
    """A cluster like that of the service, of this port."""
    clusters = values["static_resources"]["clusters"]
    (made,) = (copy.deepcopy(cluster) for cluster in clusters if cluster["name"] == EXTPROC_CLUSTER)
    made["name"] = made["load_assignment"]["cluster_name"] = name
    for group in made["load_assignment"]["endpoints"]:
        for host in group["lb_endpoints"]:
            host["endpoint"]["address"]["socket_address"]["port_value"] = port
    clusters.append(made)
