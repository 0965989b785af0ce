"""How long to wait until the next look at a backend: shorter while things move, longer while nothing does. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from extproc.core.values.instance import Lifecycle, Load

_CALM_LOOKS = 3  # idle and unchanged in a row, before the period grows
_GROWTH = 1.5
_EAGER_LOOKS = 60  # at a backend that is not ready and does not change, before it counts as down for long
_KV_STEP = 0.05  # a change of KV usage that counts as one


@dataclass(frozen=True, slots=True)
class Periods:
    """Bounds in seconds, `shortest_s` <= `usual_s` <= `longest_s`."""

    shortest_s: float
    usual_s: float
    longest_s: float


class Pace:
    """Follows one backend's looks."""

    def __init__(self, periods: Periods) -> None:
        self._periods = periods
        self._seen: tuple[Lifecycle, Load] | None = None
        self._same = 0  # looks in a row that found nothing new
        self.period_s = periods.shortest_s

    def use(self, periods: Periods) -> None:
        """Keep to other bounds from the next look on."""
        self._periods = periods
        self.period_s = min(self.period_s, periods.longest_s)

    def after(self, lifecycle: Lifecycle, load: Load) -> float:
        """Take what a look found and return the seconds until the next, before any jitter."""
        periods = self._periods
        same = self._seen is not None and self._seen[0] is lifecycle and not _moved(self._seen[1], load)
        self._same = self._same + 1 if same else 0
        if not same:
            self._seen = (lifecycle, load)
        if lifecycle is not Lifecycle.READY:
            self.period_s = periods.shortest_s if self._same < _EAGER_LOOKS else periods.usual_s
        elif not same:
            self.period_s = periods.shortest_s
        elif load.running == 0 and load.waiting == 0 and self._same >= _CALM_LOOKS:
            self.period_s = min(periods.longest_s, max(periods.usual_s, self.period_s) * _GROWTH)
        else:
            self.period_s = min(periods.usual_s, self.period_s * _GROWTH)
        return self.period_s


def _moved(before: Load, now: Load) -> bool:
    if (before.running, before.waiting) != (now.running, now.waiting):
        return True
    if before.kv_usage is None or now.kv_usage is None:
        return before.kv_usage is not now.kv_usage
    return abs(before.kv_usage - now.kv_usage) >= _KV_STEP
