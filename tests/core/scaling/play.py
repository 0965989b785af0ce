"""A fleet in a few lines for tests of the scaler: instances start, serve and leave as they are told.

Requests are a fluid: an instance works off at most `SERVES` times what it carries within its SLO, the rest waits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from random import Random

from extproc.core.pricing.classes import ClassPolicy
from extproc.core.scaling.recommendation import Recommendation
from extproc.core.scaling.rules import PoolRules, ScalingRules
from extproc.core.scaling.scaler import Scaler
from extproc.core.scaling.sight import Counts, Sight
from extproc.core.values.instance import Instance, Lifecycle, Load
from tests.core.builders import MODEL, instance

SERVES = 1.1
CARRIES_RPS = 21.0  # of the builders' instance at the sizes below, as `core.scaling.capacity` has it
PROMPT, OUTPUT = 1000.0, 200.0


def pool(name: str = "h100", **changes: object) -> PoolRules:
    values: dict[str, object] = {"name": name, "models": (MODEL,), "hardware": "h100_sxm", "least": 1, "most": 20}
    return PoolRules(**(values | changes))  # type: ignore[arg-type]


@dataclass
class Being:
    """One simulated instance."""

    id: str
    pool: PoolRules
    ready_at_s: float
    drained_at_s: float | None = None


@dataclass
class Fleet:
    """Plays requests a second over time against a scaler that is obeyed at once."""

    rules: ScalingRules
    carries_rps: Mapping[str, float]  # by pool: what an instance carries within its SLO
    rps: Callable[[float], float]
    starts_s: Mapping[str, float]
    begin: Mapping[str, int]
    noise: bool = True
    seed: int = 1
    at_s: float = 0.0
    scaler: Scaler = field(init=False)
    beings: list[Being] = field(default_factory=list)
    waiting: float = 0.0
    counts: Counts = field(default_factory=Counts)
    hours: float = 0.0  # instance-hours paid
    hours_of: dict[str, float] = field(default_factory=dict)  # of them, by pool
    late: float = 0.0
    served: float = 0.0
    log: list[tuple[Recommendation, ...]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.scaler = Scaler(self.rules, ClassPolicy())
        self.random = Random(self.seed)
        self.number = 0
        for each in self.rules.pools:
            for _ in range(self.begin.get(each.name, 0)):
                self.start(each, self.at_s)

    def start(self, of: PoolRules, ready_at_s: float) -> None:
        self.number += 1
        self.beings.append(Being(f"{of.name}-{self.number}", of, ready_at_s))

    def sight(self) -> Sight:
        serving = self.serving() or self.beings
        share = self.waiting / max(1, len(serving))
        return Sight(
            at_s=self.at_s,
            instances=tuple(self._instance(each, share if each in serving else 0.0) for each in self.beings),
            counts={MODEL: self.counts},
            held={} if self.beings else {MODEL: int(self.waiting)},
            starts_s={name: (start_s,) for name, start_s in self.starts_s.items()},
        )

    def serving(self) -> list[Being]:
        return [each for each in self.beings if each.ready_at_s <= self.at_s and each.drained_at_s is None]

    def step(self) -> tuple[Recommendation, ...]:
        """One look later."""
        made = self.scaler.look(self.passed())
        self.log.append(made)
        for each in made:
            self.obey(each)
        return made

    def passed(self) -> Sight:
        """What is seen one tick later, before anybody obeys."""
        tick_s = self.rules.tick_s
        mean = self.rps(self.at_s) * tick_s
        came = max(0.0, self.random.gauss(mean, mean**0.5)) if self.noise else mean
        room = sum(self.carries_rps[each.pool.name] for each in self.serving()) * tick_s
        before = self.waiting
        served = min(self.waiting + came, SERVES * room)
        self.waiting += came - served
        wait_s = (before + self.waiting) / 2 / (SERVES * room / tick_s) if room else 60.0
        late = served if wait_s > 2.0 else 0.0
        self.late += late
        self.served += served
        old = self.counts
        self.counts = Counts(
            requests=old.requests + came,
            prompt_tokens=old.prompt_tokens + came * PROMPT,
            answers=old.answers + served,
            output_tokens=old.output_tokens + served * OUTPUT,
            judged=old.judged + served,
            late=old.late + late,
        )
        self.hours += len(self.beings) * tick_s / 3600.0
        for each in self.beings:
            self.hours_of[each.pool.name] = self.hours_of.get(each.pool.name, 0.0) + tick_s / 3600.0
        self.at_s += tick_s
        return self.sight()

    def play(self, for_s: float) -> None:
        end_s = self.at_s + for_s
        while self.at_s < end_s:
            self.step()

    def obey(self, told: Recommendation) -> None:
        of = next(each for each in self.rules.pools if each.name == told.pool)
        for each in list(self.beings):
            if each.id in told.stop:
                self.beings.remove(each)
            elif each.id in told.drain:
                each.drained_at_s = self.at_s
            elif each.id in told.resume:
                each.drained_at_s = None
        here = [each for each in self.beings if each.pool is of and each.drained_at_s is None]
        for _ in range(told.desired - len(here)):
            self.start(of, self.at_s + self.starts_s[of.name])

    def desired(self, name: str) -> list[int]:
        return [each.desired for made in self.log for each in made if each.pool == name]

    def _instance(self, each: Being, waiting: float) -> Instance:
        state = Lifecycle.READY if each.ready_at_s <= self.at_s else Lifecycle.LOADING
        if each.drained_at_s is not None:
            state = Lifecycle.DRAINING
        running = 0 if state is Lifecycle.DRAINING and self.at_s - (each.drained_at_s or 0.0) > 20.0 else 4
        return instance(
            each.id,
            lifecycle=state,
            hardware=each.pool.hardware,
            load=Load(running=running if state is not Lifecycle.LOADING else 0, waiting=int(waiting), kv_usage=0.3),
        )


def turns(desired: list[int]) -> int:
    """How often the direction changed."""
    steps = [b - a for a, b in pairwise(desired) if b != a]
    return sum((a > 0) != (b > 0) for a, b in pairwise(steps))
