"""What a Prometheus beside the fleet knows of it: gauges of all instances, read every few seconds."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from statistics import fmean

from extproc.sim.fleet.engine import Engine
from extproc.sim.scaling.scaler import Gauges

_KEPT_S = 120.0


class Scrapes:
    """Readings of the last two minutes."""

    def __init__(self, engines: Mapping[str, Engine]) -> None:
        self._engines = engines
        self._read: dict[str, deque[tuple[float, int, Gauges]]] = {name: deque() for name in engines}
        self._busy: dict[str, tuple[float, float]] = {}  # by instance id: when it was read last, and seconds busy then

    def read(self, now: float) -> None:
        """Ask every instance whose port is open."""
        for engine in self._engines.values():
            readings = self._read[engine.id]
            while readings and readings[0][0] < now - _KEPT_S:
                readings.popleft()
            busy_s = engine.busy_until(now)
            before_s, busy_before_s = self._busy.get(engine.id, (0.0, 0.0))
            self._busy[engine.id] = now, busy_s
            if engine.takes_requests and now > before_s:
                load = engine.load(now)
                busy = min(1.0, max(0.0, (busy_s - busy_before_s) / (now - before_s)))
                gauges = Gauges(load.running or 0, load.waiting or 0, load.kv_usage or 0.0, busy)
                readings.append((now, engine.incarnation, gauges))

    def of(self, engine: Engine, now: float, window_s: float) -> Gauges | None:
        """Means over a window, the latest reading at the least; None if its process has not been read yet."""
        own = [
            (at_s, gauges) for at_s, incarnation, gauges in self._read[engine.id] if incarnation == engine.incarnation
        ]
        if not own:
            return None
        read = [gauges for at_s, gauges in own if at_s > now - window_s] or [own[-1][1]]
        return Gauges(
            fmean(each.running for each in read),
            fmean(each.waiting for each in read),
            fmean(each.kv_usage for each in read),
            fmean(each.gpu_busy for each in read),
        )
