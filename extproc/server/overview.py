"""All that the dashboard and `extproc top` show at one moment but the fleet itself, as plain values for JSON."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from extproc import __version__
from extproc.adapters.bookings import Bookings
from extproc.core.fleet.degradation import Rung
from extproc.core.router import Router
from extproc.observe.dashboard.watch import Watch
from extproc.observe.observer import Observer
from extproc.server.advice import Advice
from extproc.server.holding import Holding
from extproc.server.ladder import LadderWatch

_SAME_FOR_S = 0.5
_DECISIONS = 100
_HOT_PREFIXES = 12


@dataclass(slots=True)
class Overview:
    """Reads the state of one router, whose clock is that of `watch`; changes nothing.

    However many look, it is worked out twice a second at the most.
    """

    fleet: str
    router: Router
    observer: Observer
    watch: Watch
    ladder: LadderWatch
    holding: Holding
    bookings: Bookings
    advice: Advice
    _told: dict[str, Any] = field(default_factory=dict)
    _told_at_s: float = float("-inf")

    async def __call__(self) -> dict[str, Any]:
        """All of it. Ages and times are in seconds, rates a second; None is what is not known."""
        if self.watch.clock() - self._told_at_s >= _SAME_FOR_S:
            advice = await self.advice.look()
            self._told_at_s = self.watch.clock()
            self._told = self._at(self._told_at_s) | {"autoscaler": advice}
        return self._told

    def _at(self, now: float) -> dict[str, Any]:
        return {
            "version": __version__,
            "fleet": self.fleet,
            "uptime_s": now - self.watch.since_s,
            "degraded": self._degraded(now),
            "redis_silence_s": _finite(now - self.router.fleet.contact_at_s),
            "peers": {
                "routers": self.bookings.sharing.peers.number,
                "requests": self.bookings.sharing.peers.requests,
            },
            "in_flight": sum(self.router.ledger.in_flight().values()),
            "admission": self.router.policy.admission is not None,
            "held": self.holding.view(),
            "rates": self.watch.lately.rates(now),
            "curves": self.watch.lately.curves(now),
            "decisions": self.observer.rows(_DECISIONS),
            "calibration": self.watch.calibration(),
            "hits": self.watch.hits(),
            "hot_prefixes": self.watch.hot.top(_HOT_PREFIXES, now, self.router.prefixes.matches),
        }

    def _degraded(self, now: float) -> list[dict[str, str]]:
        seen = self.ladder.seen(now)
        return [{"rung": rung, "detail": seen.detail(rung)} for rung in Rung if rung in seen.rungs]


def _finite(value: float) -> float | None:
    return value if value < float("inf") else None
