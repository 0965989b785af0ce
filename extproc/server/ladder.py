"""Watches the degrade ladder beside the request path: one log line when a rung is entered, one when it is left."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import NoReturn

from extproc.core.fleet.degradation import Degradation, Ladder, degradation
from extproc.core.router import Router
from extproc.observe.live_gauges import Rungs
from extproc.server.kv_feed import KvFeed

_LOOK_EVERY_S = 0.25  # well below the shortest time that a rung takes to be reached

log = logging.getLogger("extproc.degraded")


class LadderWatch:
    """The ladder of one router. It also looks after `feed`, which could not tell by itself that it has died."""

    def __init__(self, router: Router, feed: KvFeed | None = None) -> None:
        self._router = router
        self._feed = feed
        self._ladder = Ladder()

    async def run(self) -> NoReturn:
        """Look again and again until cancelled."""
        while True:
            self.look(time.monotonic())
            await asyncio.sleep(_LOOK_EVERY_S)

    def look(self, now: float) -> None:
        """Look once, and log what has changed."""
        if self._feed is not None:
            self._feed.look()
        seen = self.seen(now)
        for step in self._ladder.steps(seen, now):
            if step.lasted_s is None:
                log.warning("degraded, %s: %s", step.rung, seen.detail(step.rung))
            else:
                log.warning("no longer %s, after %.1f s", step.rung, step.lasted_s)

    def rungs(self, now: float) -> Rungs:
        """What the metrics show of it."""
        return Rungs(self.seen(now).rungs, self._ladder.entered)

    def seen(self, now: float) -> Degradation:
        """How far the router is from live."""
        frozen = self._feed.frozen if self._feed is not None else frozenset()
        return degradation(self._router.fleet, self._router.policy.stale_after_s, now, frozen)
