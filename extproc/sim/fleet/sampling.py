"""Samples of every instance's true load while a run goes on."""

from __future__ import annotations

from collections.abc import Mapping

from extproc.core.values.instance import Lifecycle
from extproc.sim.fleet.clock import Clock
from extproc.sim.fleet.engine import Engine
from extproc.sim.report.run import SAMPLE_S, Sample


class Sampling:
    """Takes one every `SAMPLE_S`."""

    def __init__(self, clock: Clock, engines: Mapping[str, Engine]) -> None:
        self.samples: list[Sample] = []
        self._clock, self._engines = clock, engines

    def take(self) -> None:
        """One now, and the next in time."""
        engines, now = self._engines.values(), self._clock.now_s
        self.samples.append(
            Sample(
                now,
                tuple([engine.scheduler.running for engine in engines]),
                tuple([engine.scheduler.waiting for engine in engines]),
                tuple([engine.kv_usage(now) for engine in engines]),
                tuple([engine.lifecycle is Lifecycle.READY for engine in engines]),
            )
        )
        self._clock.at(now + SAMPLE_S, self.take)
