"""From the live fleet to what is published: looks when something may have changed, and publishes what did."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from typing import NoReturn, Protocol

from extproc.control.config_source import Transport
from extproc.control.xds.membership import Membership
from extproc.control.xds.resources import Resources, Snapshot
from extproc.core.fleet.fleet import Change, Fleet
from extproc.observe.xds_metrics import XdsMetrics

SETTLE_S = 5.0  # an empty registry may have lost everything: the first to be back are not all
_PAUSE_S = 0.02  # between two looks, so that a burst of changes makes few pushes
_LOOK_AT_LEAST_EVERY_S = 1.0  # for those that are forgotten by time alone

log = logging.getLogger("extproc.xds")


class Publisher(Protocol):
    """Takes what is published, whole each time."""

    def publish(self, snapshots: Mapping[Transport, Snapshot]) -> None:
        """Replace what was published before. Raises what keeps it from doing so; it is asked again then."""


class Keeper:
    """Keeps `discovery` in step with `fleet`. `first_published` is set with the first publication."""

    def __init__(
        self,
        fleet: Fleet,
        membership: Membership,
        resources: Resources,
        discovery: Publisher,
        metrics: XdsMetrics,
        settle_s: float = SETTLE_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.first_published = asyncio.Event()
        self._fleet, self._membership, self._resources = fleet, membership, resources
        self._discovery, self._metrics = discovery, metrics
        self._settle_s, self._clock = settle_s, clock
        self._publish_from_s: float | None = None  # None: the registry was not read, or was empty
        self._read = False
        self._due = False  # something has changed that was not published yet
        self._news = asyncio.Event()
        self._unusable: frozenset[str] = frozenset()

    def take(self, change: Change) -> None:
        """For `Registry.watch`."""
        if self._membership.touched(change):
            self._news.set()

    async def run(self) -> NoReturn:
        """Look again and again until cancelled, from the first word of the registry on."""
        await self._news.wait()
        while True:
            self._news.clear()
            try:
                self.look(self._clock())
            except Exception:
                log.exception("what is published stays as it was")
            await asyncio.sleep(_PAUSE_S)
            try:
                async with asyncio.timeout(_LOOK_AT_LEAST_EVERY_S):
                    await self._news.wait()
            except TimeoutError:
                pass

    def look(self, now: float) -> None:
        """Look once, and publish if something has changed."""
        self._due = self._membership.update(self._fleet, now) or self._due
        self._tell_unusable()
        if self._publish_from_s is None and self._membership.endpoints:
            self._publish_from_s = now + self._settle_s if self._read else now
        self._read = True
        if not self._due or self._publish_from_s is None or now < self._publish_from_s:
            return
        self._discovery.publish(self._resources.snapshots(self._membership.endpoints))
        self._due = False
        self._metrics.published(self._clock() - now)
        self.first_published.set()

    def _tell_unusable(self) -> None:
        unusable = self._membership.unusable
        for name in unusable - self._unusable:
            log.warning("%s is left out: its address is none, or its cluster's name is taken", name)
        self._unusable = unusable
