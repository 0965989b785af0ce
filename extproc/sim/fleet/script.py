"""What happens to a fleet while it runs, as its file tells: crashes, drains, additions, slow nodes, outages."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from extproc.core.values.instance import Lifecycle
from extproc.sim.fleet.clock import Clock
from extproc.sim.fleet.engine import Engine
from extproc.sim.fleet.lifecycles import Lifecycles
from extproc.sim.fleet.news import News
from extproc.sim.fleet.spec import Event, FleetSpec, Happening

NOTICE_S = 0.2  # until an agent finds its engine gone


class Script:
    """Makes the events of a fleet happen. `go_on` begins the next step of an engine."""

    def __init__(
        self,
        clock: Clock,
        fleet: FleetSpec,
        engines: Mapping[str, Engine],
        news: News,
        lifecycles: Lifecycles,
        go_on: Callable[[Engine], None],
    ) -> None:
        self._clock, self._fleet, self._engines, self._news = clock, fleet, engines, news
        self._lifecycles, self._go_on = lifecycles, go_on

    def begin(self) -> None:
        """Put all events on the clock."""
        for event in self._fleet.events:
            engines = [self._engines[event.instance]] if event.instance else list(self._engines.values())
            self._clock.at(event.at_s, self._happen, event, engines)

    def _happen(self, event: Event, engines: list[Engine]) -> None:
        if event.what is Happening.REDIS_OUTAGE:
            self._news.silence(event.value)
            return
        for engine in engines:
            self._happen_to(engine, event)

    def _happen_to(self, engine: Engine, event: Event) -> None:
        now = self._clock.now_s
        match event.what:
            case Happening.CRASH:
                if engine.lifecycle is Lifecycle.STOPPED:
                    return  # it was not added yet: there is nothing to break
                self._lifecycles.crash(engine)
                self._clock.at(now + NOTICE_S, self._lifecycles.start, engine)
            case Happening.ADD:
                if engine.lifecycle is Lifecycle.STOPPED:
                    self._lifecycles.start(engine)
            case Happening.DRAIN:
                self._lifecycles.drain(engine)
            case Happening.RESUME:
                self._lifecycles.resume(engine)
            case Happening.SLOW:
                engine.slow_down(event.value, now)
                self._go_on(engine)
            case Happening.NETWORK_DELAY:
                engine.network_s = engine.spec.network_s + event.value
            case Happening.RESET_CACHE:
                engine.reset_cache()
                self._news.caches_changed(engine)
