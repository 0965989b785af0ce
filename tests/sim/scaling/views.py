"""What an autoscaler sees, made by hand."""

from __future__ import annotations

from collections.abc import Sequence

from extproc.core.scaling.sight import Sight
from extproc.sim.scaling.scaler import Autoscaling, Bounds, Gauges, Pod, Scaler, View

POOL = "l40s"
POOLS = {POOL: Bounds(1, 20)}
RULES = Autoscaling(scaler="")


def gauges(in_flight: float = 0.0, waiting: float = 0.0, kv: float = 0.0, busy: float = 0.0) -> Gauges:
    """Of one instance with so many requests in its batch."""
    return Gauges(in_flight, waiting, kv, busy)


def view(now_s: float, ready: Sequence[Gauges | None], starting: int = 0, asked: int = 0, before: int = 0) -> View:
    """A pool with such gauges of its Ready instances, None where there are none yet, and some that start."""
    pods = [Pod(f"{POOL}-{number + 1}", True, each) for number, each in enumerate(ready)]
    pods += [Pod(f"{POOL}-{len(ready) + number + 1}", False, None) for number in range(starting)]
    return View(
        now_s=now_s,
        pools={POOL: tuple(pods)},
        asked=asked,
        asked_before=before,
        sight=lambda: Sight(at_s=now_s, instances=()),
    )


def counts(scaler: Scaler, views: Sequence[View]) -> list[int]:
    """What it wants at each look."""
    return [scaler.look(each).counts[POOL] for each in views]
