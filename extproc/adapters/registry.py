"""The registry in Redis or Valkey: publish instances, give orders, and follow the fleet by push.

Keys and messages are described in docs/registry-schema.md.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any, NoReturn, Self

import msgspec

from extproc.adapters.destinations import Destinations, Gate
from extproc.adapters.leader import leader_key
from extproc.adapters.persistence import persist
from extproc.adapters.redis_link import Link
from extproc.adapters.redis_scripts import Script
from extproc.adapters.redis_settings import DEFAULT_URL, RedisSettings
from extproc.core.fleet.events import (
    DEFAULT_TTL_S,
    Event,
    Published,
    Record,
    State,
    Unusable,
    decode_event,
    decode_instance,
)
from extproc.core.values.instance import Instance, Lifecycle
from extproc.errors import RegistryError

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterable

    from extproc.core.fleet.fleet import Change, Fleet

# Agents that say nothing for this long may have a server that takes no writes. Shorter than a fleet's recovery and the
# age at which instances count as stale: the server must be doubted before they are.
_SUSPICIOUS_SILENCE_S = 3.0

# What many agents publish in this time is taken in by one turn of the event loop. A change that comes alone is not
# kept waiting: the rest follows a message.
_GATHER_S = 0.03

log = logging.getLogger("extproc.registry")


class Registry:
    """One fleet's records in a Redis-protocol server.

    Every method but `watch` raises RegistryError, with one readable line, when the server cannot be reached
    in time or refuses.
    """

    def __init__(
        self, link: Link | RedisSettings | str = DEFAULT_URL, fleet_name: str = "default", gate: Gate | None = None
    ) -> None:
        self.link = link if isinstance(link, Link) else Link(link)
        """The deployment; closed with the registry."""
        self.fleet_name = fleet_name
        self._gate = gate or Gate(Destinations())
        self.base = f"{self.link.settings.prefix}:{{{fleet_name}}}"
        """What every key of the fleet begins with; the braces put them all into one slot of a cluster."""
        self._record = f"{self.base}:instance:"
        self._ids, self._orders, self._seq = f"{self.base}:ids", f"{self.base}:orders", f"{self.base}:seq"
        self._channel = f"{self.base}:events"
        self._publish, self._order = Script("publish.lua"), Script("order.lua")
        self._remove, self._state = Script("remove.lua"), Script("state.lua")

    async def __aenter__(self) -> Self:
        """Return itself; leaving the context closes all connections."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close all connections."""
        await self.aclose()

    async def aclose(self) -> None:
        """Close all connections."""
        await self.link.aclose()

    async def publish(self, instance: Instance, ttl_s: float = DEFAULT_TTL_S) -> None:
        """Write an instance's record, to live for `ttl_s`, and push it to every router."""
        keys = [self._record + instance.id, self._ids, self._seq, self._orders]
        arguments = (self._channel, instance.id, msgspec.json.encode(instance), max(1, round(ttl_s * 1000)))
        await self.link.run(self._publish, keys, arguments)

    async def order(self, instance_id: str, lifecycle: Lifecycle | None, fence: int | None = None) -> bool:
        """Let an instance count as `lifecycle`, or as what it is (None). False if it is not known.

        With a `fence`, the number of the autoscaler that leads, RegistryError is raised if another one does by now.
        """
        keys = [self._record + instance_id, self._orders, self._seq]
        arguments = [self._channel, instance_id, lifecycle or ""]
        if fence is not None:
            keys.append(leader_key(self.base))
            arguments.append(str(fence))
        done = int(await self.link.run(self._order, keys, arguments))
        if done < 0:
            raise RegistryError("another replica leads by now")
        return bool(done)

    async def remove(self, instance_id: str) -> bool:
        """Delete an instance and any order for it; False if it is not known. A live agent publishes it anew."""
        keys = [self._record + instance_id, self._ids, self._orders, self._seq]
        return bool(await self.link.run(self._remove, keys, [self._channel, instance_id]))

    async def state(self) -> State:
        """Read the whole fleet in one step; records that cannot or must not be used are left out with a warning."""
        keys = [self._ids, self._orders, self._seq]
        seq, records, orders = await self.link.run(self._state, keys, [self._record])
        return State(int(seq) if seq is not None else None, self._allowed(_records(records)), _orders(orders))

    def _allowed(self, records: Iterable[Record]) -> tuple[Record, ...]:
        return tuple(record for record in records if self._gate.admits(record.instance))

    def _event(self, data: bytes) -> Event:
        event = decode_event(data)
        if isinstance(event, Unusable):
            log.warning("registry: an event cannot be used: %s", event.why)
        elif isinstance(event, Published) and not self._gate.admits(event.instance):
            return Unusable(why="its instance is not allowed", seq=event.seq)
        return event

    async def watch(
        self,
        fleet: Fleet,
        on_change: Callable[[Change], None] = lambda change: None,
        *,
        synced: asyncio.Event | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> NoReturn:
        """Keep `fleet` equal to the registry until cancelled; never raises, whatever becomes of the server.

        `on_change` is called after every step, `synced` is set once the whole state was read.
        """

        async def live(in_touch: Callable[[], None]) -> None:
            def step(change: Change) -> None:
                in_touch()
                if synced is not None:
                    synced.set()
                on_change(change)

            await self._follow(fleet, step, clock)

        await persist("registry", self.link.where, live, fleet.lost)

    async def _follow(self, fleet: Fleet, step: Callable[[Change], None], clock: Callable[[], float]) -> None:
        """Live through one connection: subscribe, read the whole state, take events until something breaks."""
        async with self.link.follow(self._channel, gather_s=_GATHER_S) as subscription:
            state = await self.state()
            step(fleet.resync(state, clock()))
            told_at_s, doubted = clock(), False
            async for message in subscription:
                if message is not None:
                    told_at_s, doubted = clock(), False
                    change = fleet.apply(self._event(message.payload), told_at_s)
                    step(change)
                    if change.gap:
                        if state.seq is not None:  # else nobody had published, and the count begins with this event
                            log.info("registry: an event was missed; reading the whole state")
                        state = await self.state()
                        step(fleet.resync(state, clock()))
                elif clock() - told_at_s < _SUSPICIOUS_SILENCE_S or await self.link.takes_writes():
                    step(fleet.resync(await self.state(), clock()) if doubted else fleet.heard(clock()))
                    doubted = False
                elif not doubted:
                    doubted = True
                    log.warning("registry: %s takes no writes; going on with what is known", self.link.where)
                    fleet.lost()


def _records(flat: list[Any]) -> tuple[Record, ...]:
    records = []
    for name, data, ttl_ms, age_ms in zip(*[iter(flat)] * 4, strict=True):
        try:
            instance = decode_instance(data)
        except ValueError as error:
            log.warning("registry: the record of %s cannot be used: %s", name.decode(errors="replace"), error)
            continue
        records.append(Record(instance, age_ms / 1000, ttl_ms / 1000 if ttl_ms >= 0 else float("inf")))
    return tuple(records)


def _orders(flat: list[bytes]) -> dict[str, Lifecycle]:
    orders = {}
    for name, lifecycle in zip(flat[::2], flat[1::2], strict=True):
        try:
            orders[name.decode()] = Lifecycle(lifecycle.decode())
        except ValueError as error:
            log.warning("registry: an order cannot be used: %s", error)
    return orders
