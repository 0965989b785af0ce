"""Starts, drains and stops of instances: agents tell each such change at once."""

from __future__ import annotations

from collections.abc import Callable

from extproc.core.values.instance import Lifecycle
from extproc.sim.fleet.clock import Clock
from extproc.sim.fleet.engine import Engine
from extproc.sim.fleet.news import News


class Lifecycles:
    """Changes of engines' lifecycles on the virtual clock. `lose` ends all requests on an engine."""

    def __init__(self, clock: Clock, news: News, lose: Callable[[Engine], None]) -> None:
        self._clock, self._news, self._lose = clock, news, lose

    def start(self, engine: Engine) -> None:
        """Begin to load: it is paid for from now on, and Ready after its `start_s`."""
        engine.load_model(self._clock.now_s)
        self._news.lifecycle_changed(engine)
        self._clock.at(self._clock.now_s + engine.spec.start_s, self._ready, engine, engine.incarnation)

    def drain(self, engine: Engine) -> None:
        """It takes nothing new from now on."""
        self._become(engine, Lifecycle.READY, Lifecycle.DRAINING)

    def resume(self, engine: Engine) -> None:
        """It takes new requests again."""
        self._become(engine, Lifecycle.DRAINING, Lifecycle.READY)

    def crash(self, engine: Engine) -> None:
        """It is gone at once with all it holds; nobody has noticed yet."""
        engine.crash(self._clock.now_s)
        self._lose(engine)

    def stop(self, engine: Engine) -> None:
        """Its machine is given back; what still runs on it is lost."""
        engine.lifecycle = Lifecycle.STOPPED
        self._news.lifecycle_changed(engine)
        engine.stop(self._clock.now_s)
        self._lose(engine)

    def _ready(self, engine: Engine, incarnation: int) -> None:
        if engine.incarnation == incarnation:
            self._become(engine, Lifecycle.LOADING, Lifecycle.READY)

    def _become(self, engine: Engine, before: Lifecycle, after: Lifecycle) -> None:
        """Change the lifecycle, if it is the one that such a change begins with."""
        if engine.lifecycle is before:
            engine.lifecycle = after
            self._news.lifecycle_changed(engine)
