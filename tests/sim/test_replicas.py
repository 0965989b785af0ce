"""Several routers that tell each other of their choices route as well as one (known fault L4)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean

import pytest

from extproc.sim.capacity import capacity_rps
from extproc.sim.fleet.builtin import mixed
from extproc.sim.fleet.replay import replay
from extproc.sim.fleet.spec import Conditions, FleetSpec
from extproc.sim.policies.ours import Ours
from extproc.sim.policies.policy import Factory
from extproc.sim.report.run import Run
from extproc.sim.traffic.arrival import Traffic
from extproc.sim.traffic.sources import traffic_at

SEEDS = (1, 2)


class Apart(Ours):
    """A router that tells the others nothing."""

    def news(self) -> Sequence[object]:
        super().news()
        return ()


def fleet() -> FleetSpec:
    """Half of the suite's mixed fleet."""
    return replace(mixed(), instances=mixed().instances[::2])


def runs(factory: Factory, replicas: int, *, state_delay_s: float = 0.2, seeds: Sequence[int] = SEEDS) -> list[Run]:
    """The same traffic at 85 % of what the fleet can serve, once for each seed."""
    made = []
    for seed in seeds:
        text = f"rag?requests=600&seed={seed}"
        traffic = traffic_at(text, 0.85 * capacity_rps(traffic_at(text, 10.0), fleet()))
        named = [replace(arrival, model=fleet().instances[0].models[0]) for arrival in traffic.arrivals]
        traffic = Traffic(name="rag", arrivals=tuple(named), block_size_tokens=traffic.block_size_tokens)
        conditions = Conditions(replicas=replicas, state_delay_s=state_delay_s, seed=seed)
        made.append(replay(traffic, fleet(), conditions, "extproc", factory))
    return made


def mean_s(made: list[Run]) -> tuple[float, float]:
    """TTFT and whole time of a request."""
    served = [one for run in made for one in run.served]
    return fmean(one.ttft_s or 0.0 for one in served), fmean(one.duration_s or 0.0 for one in served)


@pytest.fixture(scope="module")
def alone() -> tuple[float, float]:
    """What one router makes of it."""
    return mean_s(runs(Ours, 1))


@pytest.mark.parametrize("replicas", [2, 4])
def test_several_routers_are_as_good_as_one(alone: tuple[float, float], replicas: int) -> None:
    """Within a tenth, on the first token and on the whole answer.

    Beyond that they wait for what collides: half of this traffic comes sooner after other than peers can tell of it.
    """
    ttft_s, e2e_s = mean_s(runs(Ours, replicas))
    assert ttft_s < 1.1 * alone[0] + 2 * Conditions().peer_delay_s
    assert e2e_s < 1.1 * alone[1]


def test_routers_that_tell_each_other_nothing_are_worse() -> None:
    """Otherwise the test before would show nothing: late reports alone do not replace what peers say."""
    together, apart = (mean_s(runs(each, 4, state_delay_s=2.0, seeds=SEEDS[:1])) for each in (Ours, Apart))
    assert apart[0] > 1.2 * together[0]
