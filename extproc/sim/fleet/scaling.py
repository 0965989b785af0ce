"""Instances that start and stop while a run goes on: the scaler looks, and the cluster does what it wants.

A pool's instances are the fleet's places for it: one that is not there at the start can be started. A draining
instance is paid for until it stops, which is when it is empty, or when its termination grace is over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from extproc.core.scaling.sight import Sight
from extproc.core.speeds.speed import Speed
from extproc.core.values.instance import COMING, Lifecycle
from extproc.sim.fleet.clock import Clock
from extproc.sim.fleet.engine import Engine
from extproc.sim.fleet.lifecycles import Lifecycles
from extproc.sim.fleet.scrapes import Scrapes
from extproc.sim.fleet.spec import FleetSpec
from extproc.sim.fleet.tally import Tally
from extproc.sim.report.run import Change, Scaled, Start
from extproc.sim.scaling.catalog import scaler_of
from extproc.sim.scaling.scaler import Autoscaling, Bounds, Pod, View
from extproc.sim.traffic.arrival import Arrival

EPOCH_S = 1_800_000_000.0  # when runs begin, for whoever asks the calendar
WATCH_S = 1.0  # between two looks at those that drain; routers have heard of a drain by then


class Scaling:
    """Carries out what a scaler wants. `held` tells how many requests wait in routers, by model.

    `arrivals` are all that come: none but a bound may look at them.
    """

    def __init__(
        self,
        clock: Clock,
        fleet: FleetSpec,
        autoscaling: Autoscaling,
        engines: Mapping[str, Engine],
        lifecycles: Lifecycles,
        held: Callable[[], Mapping[str, int]],
        arrivals: Sequence[Arrival],
    ) -> None:
        self._clock, self._rules, self._engines, self._lifecycles = clock, autoscaling, engines, lifecycles
        self._held = held
        self._pools: dict[str, list[Engine]] = {}
        for engine in engines.values():
            self._pools.setdefault(engine.spec.pool, []).append(engine)
        bounds = {
            name: Bounds(autoscaling.least, len(members), members[0].spec.price_per_hour)
            for name, members in self._pools.items()
        }
        self._scaler = scaler_of(autoscaling, bounds, fleet, arrivals)
        self._scrapes = Scrapes(engines)
        self.tally = Tally(fleet.classes)
        self._asked, self._asked_before = 0, 0
        self._ready_s: dict[str, float] = {engine.id: 0.0 for engine in engines.values() if engine.spec.at_start}
        self._ordered_s: dict[str, float] = {}
        self._draining_s: dict[str, float] = {}  # those that the cluster stops by itself
        self._starts: list[Start] = []
        self._changes: list[Change] = []

    def begin(self) -> None:
        """Put the first looks on the clock."""
        self._note()
        self._clock.at(self._rules.scrape_s, self._scrape)
        self._clock.at(self._scaler.tick_s, self._look)
        self._clock.at(WATCH_S, self._watch)

    def record(self) -> Scaled:
        """What was started and stopped."""
        return Scaled(tuple(self._changes), tuple(self._starts))

    def _scrape(self) -> None:
        self._scrapes.read(self._clock.now_s)
        self._asked, self._asked_before = self.tally.asked, self._asked
        self._clock.at(self._clock.now_s + self._rules.scrape_s, self._scrape)

    def _look(self) -> None:
        now = self._clock.now_s
        wanted = self._scaler.look(self._view(now))
        for name in wanted.resume:
            self._lifecycles.resume(self._engines[name])
        for name in wanted.drain or ():
            self._drain(self._engines[name], named=True)
        for pool, count in wanted.counts.items():
            self._scale(self._pools[pool], count, named=wanted.drain is not None)
        for name in wanted.stop:
            if self._engines[name].lifecycle is Lifecycle.DRAINING:
                self._stop(self._engines[name])
        self._note()
        self._clock.at(now + self._scaler.tick_s, self._look)

    def _scale(self, members: Iterable[Engine], count: int, *, named: bool) -> None:
        """Start what lacks; drain the newest of what is too many, unless the scaler has named them."""
        here = [engine for engine in members if wanted(engine)]
        stopped = [engine for engine in members if engine.lifecycle is Lifecycle.STOPPED]
        for engine in stopped[: max(0, count - len(here))]:
            self._ordered_s[engine.id] = self._clock.now_s
            self._lifecycles.start(engine)
        if named or len(here) <= count:
            return
        # A ReplicaSet deletes those that are not ready first, then those that have been ready for the shortest time.
        newest = sorted(
            here, key=lambda engine: (engine.lifecycle is Lifecycle.READY, -self._ready_s.get(engine.id, 0))
        )
        for engine in newest[: len(here) - count]:
            self._drain(engine, named=False)

    def _drain(self, engine: Engine, *, named: bool) -> None:
        if engine.lifecycle is Lifecycle.READY:
            self._lifecycles.drain(engine)
            if not named:
                self._draining_s[engine.id] = self._clock.now_s
        elif engine.lifecycle in COMING:
            self._stop(engine)

    def _stop(self, engine: Engine) -> None:
        self._lifecycles.stop(engine)
        self._draining_s.pop(engine.id, None)
        self._ordered_s.pop(engine.id, None)

    def _watch(self) -> None:
        """See who is Ready by now, and who has finished."""
        now = self._clock.now_s
        for name, ordered_s in list(self._ordered_s.items()):
            if self._engines[name].lifecycle is Lifecycle.READY:
                ready_s = ordered_s + self._engines[name].spec.start_s
                self._ready_s[name] = ready_s
                self._starts.append(Start(name, ordered_s, ready_s))
                del self._ordered_s[name]
        for name, since_s in list(self._draining_s.items()):
            engine, drained_s = self._engines[name], now - since_s
            if (drained_s >= WATCH_S and engine.empty) or drained_s >= self._rules.drain_s:
                self._stop(engine)
        self._note()
        self._clock.at(now + WATCH_S, self._watch)

    def _note(self) -> None:
        """Keep how many instances are wanted, and how many are paid for, if that has changed."""
        wants = sum(map(wanted, self._engines.values()))
        up = sum(engine.up for engine in self._engines.values())
        ready = sum(engine.lifecycle is Lifecycle.READY for engine in self._engines.values())
        change = Change(self._clock.now_s, wants, up, ready)
        if not self._changes or self._changes[-1][1:] != change[1:]:
            self._changes.append(change)

    def _view(self, now: float) -> View:
        window_s = self._scaler.window_s
        pools = {
            name: tuple([self._pod(engine, now, window_s) for engine in members if wanted(engine)])
            for name, members in self._pools.items()
        }
        return View(
            now_s=now, pools=pools, asked=self._asked, asked_before=self._asked_before, sight=lambda: self._sight(now)
        )

    def _pod(self, engine: Engine, now: float, window_s: float) -> Pod:
        ready = engine.lifecycle is Lifecycle.READY
        return Pod(engine.id, ready, self._scrapes.of(engine, now, window_s) if ready else None)

    def _sight(self, now: float) -> Sight:
        up = [engine for engine in self._engines.values() if engine.up]
        ready_models = {model for engine in up if engine.lifecycle is Lifecycle.READY for model in engine.spec.models}
        starts: dict[str, list[float]] = {}
        for start in self._starts:
            starts.setdefault(self._engines[start.instance_id].spec.pool, []).append(start.ready_s - start.ordered_s)
        return Sight(
            at_s=EPOCH_S + now,
            instances=tuple([engine.record(now) for engine in up]),
            counts=self.tally.counts(),
            held=self._held(),
            speeds={pool: _learned(members[0]) for pool, members in self._pools.items()},
            wanted=self.tally.refused_lately(now) - ready_models,
            starts_s={pool: tuple(seen) for pool, seen in starts.items()},
        )


def wanted(engine: Engine) -> bool:
    """Whether it is one of those that a scaler has asked for."""
    return engine.lifecycle is Lifecycle.READY or engine.lifecycle in COMING or engine.lifecycle is Lifecycle.UNHEALTHY


def _learned(engine: Engine) -> Speed:
    """What routers know of an engine's speed once they have seen some hundred answers of it.

    The simulator's routers may be rivals that learn nothing. What is learned beyond the table is the engine's own time
    in each step.
    """
    overhead_s, scale = engine.spec.step_overhead_s, engine.spec.slowness
    return Speed(engine.spec.profile(), scale, scale, overhead_s * scale, overhead_s * scale)
