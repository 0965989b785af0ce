"""The figures of hand-made runs, against what a pocket calculator says."""

from __future__ import annotations

import json
from math import nan, sqrt

import pytest

from extproc.core.pricing.slo import Slo
from extproc.core.speeds.profile import profile_for
from extproc.core.values.request import RequestClass
from extproc.sim.capacity import power_shares
from extproc.sim.fleet.spec import FleetSpec, InstanceSpec
from extproc.sim.report.figures import as_json, figures
from extproc.sim.report.run import Fate
from extproc.sim.report.slo import DEFAULT_SLOS
from extproc.sim.report.spread import Spread, quantile, spread
from extproc.sim.report.unloaded import fastest_pace, mean_size
from extproc.sim.traffic.arrival import Arrival
from tests.sim.report.runs import TWO, answer, refused, run, samples


def test_times_are_means_and_interpolated_quantiles_of_served_requests() -> None:
    """TTFT 1, 2, 3, 4 s; ten further tokens in 1 s each: TPOT 0.1 s."""
    found = figures(run([*(answer(ttft, ttft + 1.0) for ttft in (4.0, 1.0, 3.0, 2.0)), refused()]))
    assert found.ttft_mean_s == 2.5
    assert found.ttft_p50_s == 2.5
    assert found.ttft_p90_s == pytest.approx(3.7)
    assert found.ttft_p99_s == pytest.approx(3.97)
    assert found.tpot_p50_s == pytest.approx(0.1)
    assert found.e2e_mean_s == 3.5
    assert found.e2e_p99_s == pytest.approx(4.97)


def test_goodput_is_of_all_requests_by_the_slo_of_their_class() -> None:
    """One good of each class, and each way to miss: six of the ten miss."""
    served = [
        answer(2.0, 2.5),
        answer(2.001, 2.5),  # too late
        answer(1.0, 1.51),  # 51 ms between tokens
        answer(10.0, 11.0, request_class=RequestClass.LONG_CONTEXT),
        answer(9.0, 10.1, request_class=RequestClass.LONG_CONTEXT),  # 110 ms between tokens
        answer(0.5, 1.0, request_class=RequestClass.BATCH),
        answer(60.0, 61.0, request_class=RequestClass.BATCH),  # a minute and ten times 70 ms are 60.7 s
        answer(0.1, 0.1, output_tokens=1),  # has no time between tokens
        answer(0.1, 0.2, fate=Fate.FAILED),
        refused(),
    ]
    found = figures(run(served))
    assert (found.requests, found.served, found.refused, found.failed) == (10, 8, 1, 1)
    assert found.goodput == pytest.approx(0.4)
    assert found.goodput_rps == pytest.approx(0.04)
    by_class = {name: one.goodput for name, one in found.by_class.items()}
    assert by_class == {"batch": 0.5, "interactive": pytest.approx(2 / 6), "long_context": 0.5}
    assert found.by_class["interactive"].refused == 1


def test_other_slos_give_other_goodput() -> None:
    """The same answer, before and after the operator asks for more."""
    slow = run([answer(1.0, 1.3)])
    assert figures(slow).goodput == 1.0
    assert figures(slow, {**DEFAULT_SLOS, RequestClass.INTERACTIVE: Slo(ttft_s=0.5)}).goodput == 0.0
    assert figures(slow, {}).goodput == 1.0


def test_a_batch_request_is_measured_against_the_fastest_instance_of_its_fleet() -> None:
    """A minute and ten times what it takes there alone, to the last digit; the slower instance does not soften it."""
    pair = tuple(InstanceSpec(id=kind, models=("model",), hardware=kind) for kind in ("l40s", "h100_sxm"))
    h100 = profile_for("model", "h100_sxm", 1)
    alone_s = h100.prefill_s(100, 0) + 10 * h100.decode_step_s(1, 105.5)
    served = [answer(0.1, 60 + 10 * alone_s * factor, request_class=RequestClass.BATCH) for factor in (0.999, 1.001)]
    assert figures(run(served, fleet=FleetSpec(name="pair", instances=pair))).goodput == 0.5


def test_overheads_and_networks_are_part_of_the_unloaded_time() -> None:
    """Eleven steps of 5 ms more, all twice as slow, and 20 ms to and fro."""
    arrival = Arrival(at_s=0.0, prompt_tokens=100, output_tokens=11)
    bare = InstanceSpec(id="a", models=("model",))
    slow = InstanceSpec(id="b", models=("model",), step_overhead_s=0.005, slowness=2.0, network_s=0.02)
    alone_s = fastest_pace(FleetSpec(name="bare", instances=(bare,)), "model").unloaded_s(arrival)
    found_s = fastest_pace(FleetSpec(name="slow", instances=(slow,)), "model").unloaded_s(arrival)
    assert found_s == pytest.approx(2 * (alone_s + 11 * 0.005) + 0.04)


def test_only_instances_with_the_model_set_its_unloaded_time() -> None:
    """The H100 serves another model."""
    l40s = InstanceSpec(id="a", models=("mine",), hardware="l40s")
    h100 = InstanceSpec(id="b", models=("other",))
    both = FleetSpec(name="both", instances=(l40s, h100))
    assert fastest_pace(both, "mine").profile == l40s.profile()
    assert fastest_pace(both, "nobody has it").profile == h100.profile()


def test_cached_share_and_preemptions_are_summed_over_requests() -> None:
    """30 of 100 and 90 of 300 prompt tokens; a refused one adds neither."""
    served = [answer(1, 2, cached_tokens=30, preemptions=1), answer(1, 2, prompt_tokens=300, cached_tokens=90)]
    found = figures(run([*served, refused()]))
    assert found.cached_token_share == pytest.approx(0.3)
    assert found.preemptions == 1


def test_the_queue_is_the_fleets_waiting_requests() -> None:
    """3, 0 and 6 wait."""
    found = figures(run([answer(1, 2)], samples((5, 5), (5, 5), (5, 5), waiting=[(1, 2), (0, 0), (6, 0)])))
    assert found.queue_mean == 3.0
    assert found.queue_max == 6


def test_gpu_seconds_and_money_are_per_thousand_served() -> None:
    """10 s on one GPU and 20 s on two; 90 s at 4 an hour and 180 s at 2: 0.2 in all; for four requests."""
    found = figures(run([answer(1, 2)] * 4))
    assert found.gpu_s_per_1k == pytest.approx(50.0 / 4 * 1000)
    assert found.cost_per_1k == pytest.approx(0.2 / 4 * 1000)


def test_money_is_unknown_if_one_instance_that_was_up_has_no_price() -> None:
    """Half a bill would mislead; an instance that never came up costs nothing."""
    free = InstanceSpec(id="c", models=("model",))
    three = FleetSpec(name="three", instances=(*TWO.instances, free))
    served = [answer(1, 2)] * 4
    assert figures(run(served, fleet=three)).cost_per_1k == pytest.approx(50.0)
    assert figures(run(served, fleet=three, up_s={"a": 90.0, "c": 1.0})).cost_per_1k is None


def test_fairness_is_jains_index_of_the_tenants_mean_pace() -> None:
    """Paces 1 and 1/3, by hand: (4/3)^2 / (2 * 10/9) = 0.8. One tenant alone has none."""
    alone_s = fastest_pace(TWO, "model").unloaded_s(Arrival(at_s=0.0, prompt_tokens=100, output_tokens=11))
    quick, slow = answer(0.01, alone_s, tenant="x"), answer(0.01, 3 * alone_s, tenant="y")
    assert figures(run([quick, slow])).fairness == pytest.approx(0.8)
    assert figures(run([quick, quick])).fairness is None
    assert figures(run([quick, refused(tenant="y")])).fairness == pytest.approx(0.5)


def test_faster_than_unloaded_thanks_to_a_cache_is_not_unfair_to_the_others() -> None:
    """A pace is at most 1."""
    alone_s = fastest_pace(TWO, "model").unloaded_s(Arrival(at_s=0.0, prompt_tokens=100, output_tokens=11))
    served = [answer(0.01, alone_s, tenant="x"), answer(0.001, alone_s / 5, tenant="y")]
    assert figures(run(served)).fairness == pytest.approx(1.0)


def test_imbalance_is_the_mean_variation_of_load_by_power() -> None:
    """Equal instances: even (0), then all on one of two (1): 0.5 in the mean."""
    equal = FleetSpec(name="equal", instances=tuple(InstanceSpec(id=name, models=("model",)) for name in "ab"))
    found = figures(run([answer(1, 2)], samples((10, 10), (20, 0)), fleet=equal))
    assert found.imbalance == pytest.approx(0.5)


def test_an_instance_with_more_power_may_hold_more() -> None:
    """Loads in proportion to power are even; equal loads are not. One that is not ready does not count."""
    mixed = FleetSpec(
        name="mixed",
        instances=tuple(InstanceSpec(id=kind, models=("model",), hardware=kind) for kind in ("h100_sxm", "l40s")),
    )
    served = [answer(1, 2)]
    power = power_shares(mixed, *mean_size([one.arrival for one in served]))
    assert sum(power) == pytest.approx(1.0)
    assert power[0] > 2 * power[1]
    loads = tuple(round(10_000 * share) for share in power)
    assert figures(run(served, samples(loads), fleet=mixed)).imbalance == pytest.approx(0.0, abs=1e-3)
    assert (figures(run(served, samples((100, 100)), fleet=mixed)).imbalance or 0.0) > 0.3
    alone = samples((100, 0), ready=(True, False))
    assert figures(run(served, alone, fleet=mixed)).imbalance == 0.0


def test_all_on_one_of_many_is_the_worst_imbalance() -> None:
    """sqrt(n - 1) for n equal instances."""
    five = FleetSpec(name="five", instances=tuple(InstanceSpec(id=name, models=("model",)) for name in "abcde"))
    found = figures(run([answer(1, 2)], samples((50, 0, 0, 0, 0)), fleet=five))
    assert found.imbalance == pytest.approx(sqrt(4))


def test_a_run_in_which_nothing_was_served_has_figures_too() -> None:
    """What cannot be said is null in the JSON, never NaN and never 0."""
    found = as_json(figures(run([refused(), refused()], ended_s=0.0)))
    assert found["goodput"] == 0.0
    assert found["goodput_rps"] is None
    for name in ("ttft_mean_s", "e2e_p99_s", "cost_per_1k", "gpu_s_per_1k", "cached_token_share", "oscillation"):
        assert found[name] is None
    json.dumps(found, allow_nan=False)
    assert as_json(figures(run([])))["goodput"] == 0.0


def test_the_json_has_every_name_of_the_suite_and_no_number_that_json_lacks() -> None:
    """A figure that came out as NaN is null."""
    found = as_json(figures(run([answer(nan, 2.0)], samples((5, 5)))))
    assert found["ttft_mean_s"] is None
    json.dumps(found, allow_nan=False)
    wanted = "ttft_mean_s ttft_p50_s ttft_p99_s tpot_p99_s e2e_mean_s goodput cached_token_share oscillation"
    assert set(wanted.split()) | {"preemptions", "cost_per_1k"} <= set(found)


def test_quantiles_interpolate_between_neighbours() -> None:
    """One value is every quantile; none has none."""
    assert quantile([1.0, 2.0, 10.0], 0.75) == 6.0
    assert [quantile([7.0], q) for q in (0.0, 0.5, 1.0)] == [7.0, 7.0, 7.0]
    assert quantile([1.0, 2.0], 1.0) == 2.0
    assert spread([]) == Spread(None, None, None, None)
