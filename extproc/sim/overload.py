"""The suite `overload`: what becomes of a fleet that is asked for more than it can serve, and of whom.

Rates are shares of what the fleet can serve of that kind of request (`sim.capacity`), worked out once for each kind and
fleet: 105 % of chat is the same number of requests a second whatever else comes beside it. Every run lasts as long as
`SPAN_S`, and is judged by the requests that arrive once the fleet is full.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

from extproc.sim.capacity import capacity_rps
from extproc.sim.fleet.builtin import SUITE
from extproc.sim.fleet.spec import Conditions, Event, FleetSpec, Happening
from extproc.sim.setup import Setup, workload

SPAN_S, SETTLED_S = 45.0, 15.0  # of a run; and from when on it is judged, which is also when floods and failures begin
ALONE_LOADS = (0.6, 0.7, 0.8, 0.9, 1.0, 1.1)
INTERACTIVE_LOADS = (1.05, 1.5, 2.0, 3.0)
STEADY_LOAD = 0.4  # of all tenants but the flood
FLOOD_LOADS = (2.0, 5.0)
LATER_S = 30.0  # from when on a flood that goes on is judged: the answers of its first rush are over
PRIORITIES_LOAD = 1.5
FAILURE_LOAD = 0.85
ROUTERS = 4
TRACE = "mooncake-conversation"
WEIGHTED = "extproc_weighted"  # the one policy that gives tenants different weights
_SAMPLE_REQUESTS = 3000  # that a capacity is worked out from


class Kind(StrEnum):
    """What a scenario shows."""

    ALONE = "alone"  # interactive requests at loads a fleet can bear: what the others are measured by
    INTERACTIVE = "interactive"
    CLASSES = "classes"
    FLOOD = "flood"
    PRIORITIES = "priorities"
    FAILURES = "failures"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One workload on one fleet; `setup.trace` is its name, the same for every seed."""

    kind: Kind
    workload: str  # that the requests are like, and whose part of the suite it is
    load: float  # of the fleet's capacity for what is shown: of a flood its own, 0 without it
    setup: Setup
    policies: tuple[str, ...] = ()  # that it is for; (): all that are asked for


def overload(traces: Mapping[str, Path], seed: int, *, quick: bool = False) -> Iterator[Scenario]:
    """All scenarios of a seed. `quick`: chat on the mixed fleet alone, and few of them. Raises ConfigError."""
    for name in ("mixed",) if quick else sorted(SUITE):
        chats = _Fleet(SUITE[name](), "chat", "chat", seed)
        yield from _alone(chats, (0.7, 0.9) if quick else ALONE_LOADS)
        yield from _interactive(chats, (2.0,) if quick else INTERACTIVE_LOADS)
        yield from _of_chat(chats, quick)
        if TRACE in traces and not quick:
            recorded = _Fleet(SUITE[name](), TRACE, str(traces[TRACE]), seed)
            yield from _alone(recorded, ALONE_LOADS)
            yield from _interactive(recorded, INTERACTIVE_LOADS)
            yield recorded.scenario(
                Kind.CLASSES,
                "100% and batch 100%",
                1.0,
                *recorded.beside_batch(),
            )


class _Fleet:
    """A fleet, a workload, and how much of it the fleet can serve."""

    def __init__(self, fleet: FleetSpec, name: str, traffic: str, seed: int) -> None:
        self.fleet, self.name, self.traffic, self.seed = fleet, name, traffic, seed
        self.rps = self._capacity_rps(traffic)

    def scenario(
        self,
        kind: Kind,
        name: str,
        load: float,
        traffic: str,
        rate_rps: float,
        *,
        routers: int = 1,
        judged_from_s: float | None = None,
        policies: tuple[str, ...] = (),
    ) -> Scenario:
        """A run of so many requests a second of a traffic, judged from `SETTLED_S` on if nothing else is said."""
        setup = Setup(
            trace=f"{self.name}: {name}",
            traffic=traffic,
            fleet=self.fleet,
            conditions=Conditions(replicas=routers, seed=self.seed),
            rate_rps=rate_rps,
            requests=round(rate_rps * SPAN_S),
            window_s=(SETTLED_S if judged_from_s is None else judged_from_s, SPAN_S),
        )
        return Scenario(kind=kind, workload=self.name, load=load, setup=setup, policies=policies)

    def beside_batch(self) -> tuple[str, float]:
        """The recording and batch jobs, each at the fleet's capacity for it, and the rate of both."""
        batch_rps = self.batch_rps()
        whole_rps = self.rps + batch_rps
        share = 100.0 * self.rps / whole_rps
        recorded = f"{share:.3f}% {self.traffic}?requests={round(1.1 * self.rps * SPAN_S)}"
        batches = f"{100.0 - share:.3f}% batch?requests={round(1.1 * batch_rps * SPAN_S)}&seed={self.seed}"
        return f"{recorded} + {batches}", whole_rps

    def batch_rps(self) -> float:
        """What the fleet can serve of batch jobs."""
        return self._capacity_rps("batch")

    def _capacity_rps(self, traffic: str) -> float:
        sample = Setup(
            trace="",
            traffic=traffic,
            fleet=self.fleet,
            conditions=Conditions(),
            rate_rps=50.0,
            requests=_SAMPLE_REQUESTS,
        )
        return capacity_rps(workload(sample), self.fleet)


def _alone(part: _Fleet, loads: tuple[float, ...]) -> Iterator[Scenario]:
    for load in loads:
        yield part.scenario(Kind.ALONE, f"alone at {load:.0%}", load, part.traffic, load * part.rps)


def _interactive(part: _Fleet, loads: tuple[float, ...]) -> Iterator[Scenario]:
    for load in loads:
        yield part.scenario(Kind.INTERACTIVE, f"{load:.0%}", load, part.traffic, load * part.rps)


def _of_chat(part: _Fleet, quick: bool) -> Iterator[Scenario]:
    """Classes, tenants, priorities and failures."""
    classes = f"classes?batches={part.batch_rps() / part.rps:.4f}&long=0"
    steady_rps = STEADY_LOAD * part.rps
    for routers in (1,) if quick else (1, ROUTERS):
        told = "" if routers == 1 else f", {routers} routers"
        yield part.scenario(Kind.CLASSES, f"100% and batch 100%{told}", 1.0, classes, part.rps, routers=routers)
        for load in (0.0, FLOOD_LOADS[-1]) if quick else (0.0, *FLOOD_LOADS):
            flood = f"flood?times={load / STEADY_LOAD:g}&begins_s={SETTLED_S:g}"
            name = (f"a flood of {load:.0%} beside" if load else "nothing beside") + f" {STEADY_LOAD:.0%}{told}"
            yield part.scenario(Kind.FLOOD, name, load, flood, steady_rps, routers=routers)
            if routers == 1 and load in (0.0, FLOOD_LOADS[-1]):
                later = f"{name}, later"
                yield part.scenario(Kind.FLOOD, later, load, flood, steady_rps, judged_from_s=LATER_S)
            if routers == 1 and not quick:
                weighted = f"{name}, weight 3"
                yield part.scenario(Kind.FLOOD, weighted, load, flood, steady_rps, policies=(WEIGHTED,))
    load = PRIORITIES_LOAD
    yield part.scenario(Kind.PRIORITIES, f"priorities at {load:.0%}", load, "priorities", load * part.rps)
    if len({spec.hardware for spec in part.fleet.instances}) > 1:
        yield _half_fails(part.scenario(Kind.FAILURES, "half fails at 85%", 0.85, "chat", FAILURE_LOAD * part.rps))


def _half_fails(scenario: Scenario) -> Scenario:
    """The same where every second instance crashes; none is back before the end."""
    fleet = scenario.setup.fleet
    crashes = [Event(at_s=SETTLED_S, what=Happening.CRASH, instance=spec.id) for spec in fleet.instances[::2]]
    return replace(scenario, setup=replace(scenario.setup, fleet=replace(fleet, events=tuple(crashes))))
