"""The computed capacity against the fleet simulator: below it nearly all answers are good, beyond it they are not."""

from __future__ import annotations

from statistics import fmean, pvariance

import pytest

from extproc.core.pricing.slo import Slo
from extproc.core.scaling.batch import Limits
from extproc.core.scaling.capacity import capacity_rps
from extproc.core.scaling.demand import Demand
from extproc.core.speeds.speed import Speed
from extproc.sim.fleet.entries import describe
from extproc.sim.fleet.spec import Conditions, FleetSpec, InstanceSpec
from extproc.sim.report.run import Served
from extproc.sim.setup import Setup, run

SLO = Slo(ttft_s=2.0, tpot_s=0.05)
SMALL, LARGE = "llama-3.1-8b", "llama-3.1-70b"
OVERHEAD_S = 0.004


def spec(number: int, model: str, hardware: str, size: int) -> InstanceSpec:
    return describe(
        id=f"i-{number}",
        models=(model, "model"),
        hardware=hardware,
        tensor_parallel=size,
        max_num_seqs=256,
        max_num_batched_tokens=8192 if hardware == "h100_sxm" else 2048,
        step_overhead_s=OVERHEAD_S,
    )


def served(fleet: FleetSpec, traffic: str, rps: float) -> list[Served]:
    """Requests of some minutes, without the first and the last, in which the fleet fills and empties."""
    requests = int(max(1500.0, 100.0 * rps))
    setup = Setup(
        trace=traffic, traffic=traffic, fleet=fleet, conditions=Conditions(seed=1), rate_rps=rps, requests=requests
    )
    those = sorted(run(setup, "least_request").served, key=lambda each: each.arrived_s)
    return those[len(those) // 10 : len(those) * 85 // 100]


def rate(those: list[Served]) -> float:
    """Requests a second as they came: people who wait for slow answers ask less."""
    return len(those) / (those[-1].arrived_s - those[0].arrived_s)


def good_share(those: list[Served]) -> float:
    return fmean(
        SLO.met(each.ttft_s, each.tpot_s, each.duration_s, 0.0)
        for each in those
        if each.ttft_s is not None and each.duration_s is not None
    )


def demand_of(those: list[Served]) -> Demand:
    """What routers would have counted of them."""
    computed = [each.arrival.prompt_tokens - each.cached_tokens for each in those]
    output = [each.arrival.output_tokens for each in those]
    return Demand(
        requests_s=rate(those),
        prompt_tokens=fmean(each.arrival.prompt_tokens for each in those),
        cached_tokens=fmean(each.cached_tokens for each in those),
        output_tokens=fmean(output),
        computed_cv2=pvariance(computed) / fmean(computed) ** 2,
        output_cv2=pvariance(output) / fmean(output) ** 2,
    )


@pytest.mark.parametrize(
    ("model", "hardware", "size", "traffic", "count"),
    [
        (SMALL, "h100_sxm", 1, "rag", 4),
        (SMALL, "l40s", 1, "rag", 4),
        (SMALL, "l40s", 1, "rag", 1),
        (SMALL, "a100_sxm", 1, "chat", 4),
        (LARGE, "h100_sxm", 4, "rag", 4),
    ],
)
def test_below_its_capacity_a_fleet_is_good_and_beyond_it_is_not(
    model: str, hardware: str, size: int, traffic: str, count: int
) -> None:
    """0.8 times as much as is computed from the sizes counted there, and a good deal more than that.

    What a single instance carries is computed less well: there, a little more may go wrong.
    """
    fleet = FleetSpec(name="some", instances=tuple(spec(n, model, hardware, size) for n in range(count)))
    one = fleet.instances[0]
    speed = Speed(one.profile(), prefill_overhead_s=OVERHEAD_S, decode_overhead_s=OVERHEAD_S)
    limits = Limits(
        max_num_seqs=one.max_num_seqs, kv_tokens=float(one.kv_tokens), step_tokens=one.max_num_batched_tokens
    )

    def capacity(demand: Demand) -> float:
        return count * capacity_rps(speed, demand, limits, SLO, instances=count)

    guess = capacity(Demand(requests_s=0.0, prompt_tokens=3600.0, cached_tokens=2000.0, output_tokens=200.0))
    aim = capacity(demand_of(served(fleet, traffic, 0.8 * guess)))
    below, beyond = served(fleet, traffic, 0.8 * aim), served(fleet, traffic, 1.35 * aim)
    assert 0.6 < rate(below) / capacity(demand_of(below)) < 0.85
    assert good_share(below) >= (0.99 if count > 1 else 0.98)
    assert 1.1 < rate(beyond) / capacity(demand_of(beyond)) < 1.4
    assert good_share(beyond) < 0.975
