"""Autoscalers that people use today, held against what their documentation says."""

from __future__ import annotations

from itertools import pairwise

import pytest

from extproc.errors import ConfigError
from extproc.sim.fleet.spec import FleetSpec
from extproc.sim.scaling.aibrix import aibrix_apa, aibrix_kpa
from extproc.sim.scaling.catalog import CATALOG, CLAIRVOYANT, OURS, scaler_of
from extproc.sim.scaling.hpa import Behaviour, hpa_gpu, hpa_queue, hpa_queue_slow
from extproc.sim.scaling.keda import Keda
from extproc.sim.scaling.scaler import Autoscaling, Bounds, Scaler
from tests.sim.scaling.views import POOL, POOLS, RULES, counts, gauges, view


@pytest.mark.parametrize(
    ("busy", "replicas"),
    [
        ([0.8] * 4, 4),  # at the target
        ([0.88] * 4, 4),  # within 10 %
        ([0.89] * 4, 5),  # ceil(4 * 0.89 / 0.8)
        ([1.0, 1.0, 1.0, 1.0], 5),
        ([1.0, 0.2, 1.0, 1.0], 4),  # means, not the busiest
        ([0.5] * 4, 4),  # fewer, but not within 300 s
    ],
)
def test_an_hpa_multiplies_by_the_ratio_beyond_its_tolerance(busy: list[float], replicas: int) -> None:
    """desired = ceil(current * metric / target)."""
    began = view(0.0, [gauges(busy=0.8)] * 4)
    scaler = hpa_gpu(RULES, POOLS, target=0.8)
    assert counts(scaler, [began, view(15.0, [gauges(busy=each) for each in busy])])[1] == replicas


@pytest.mark.parametrize(
    ("ready", "starting", "replicas"),
    [
        ([gauges(waiting=6.0)] * 2, 0, 4),
        ([gauges(waiting=6.0)] * 2, 1, 4),  # 12 / 3 pods, 2 is the target's: ratio 4/3
        ([gauges(waiting=6.0)] * 2, 2, 4),  # the two that start count as 0: right at the target
        ([gauges(waiting=6.0)] * 2, 4, 6),  # they turn the ratio around: nothing changes
        ([gauges(waiting=6.0), None], 0, 2),  # one that has no metric yet counts as 0: at the target
    ],
)
def test_pods_that_start_count_as_idle_on_the_way_up(ready: list, starting: int, replicas: int) -> None:
    """As `calcPlainMetricReplicas` has it."""
    scaler = hpa_queue(RULES, POOLS, target=3.0)
    assert counts(scaler, [view(0.0, ready, starting)]) == [replicas]


def test_a_pod_without_a_metric_counts_as_at_its_target_on_the_way_down() -> None:
    """One idle pod and one that is unknown: half of the target is needed, which is one pod of two."""
    scaler = hpa_queue(RULES, POOLS, target=3.0)
    looks = [view(15.0 * n, [gauges(waiting=0.0), None]) for n in range(21)]
    assert counts(scaler, looks)[-1] == 1


def test_an_hpa_goes_down_to_the_most_of_five_minutes_and_then_at_once() -> None:
    """Stabilisation window 300 s, policy 100 % in 15 s."""
    busy = [view(15.0 * n, [gauges(busy=0.8)] * 8) for n in range(4)]
    idle = [view(60.0 + 15.0 * n, [gauges(busy=0.1)] * 8) for n in range(20)]
    found = counts(hpa_gpu(RULES, POOLS, target=0.8), busy + idle)
    assert set(found[:-1]) == {8}
    assert found[-1] == 1


def test_a_slow_hpa_gives_back_one_pod_a_minute() -> None:
    """However much too many there are."""
    scaler, pods, found = hpa_queue_slow(RULES, POOLS, target=3.0), 8, []
    for look in range(40):
        pods = counts(scaler, [view(15.0 * look, [gauges()] * pods)])[0]
        found.append(pods)
    assert found[:20] == [8] * 20
    assert found[20] == 7
    steps = [look for look in range(1, 40) if found[look] < found[look - 1]]
    assert all(found[look - 1] - found[look] == 1 for look in steps)
    assert all(later - earlier >= 4 for earlier, later in pairwise(steps))


@pytest.mark.parametrize(("current", "wanted", "allowed"), [(1, 30, 5), (4, 30, 8), (6, 30, 12), (6, 9, 9)])
def test_an_hpa_goes_up_by_four_pods_or_twice_as_many_in_15_s(current: int, wanted: int, allowed: int) -> None:
    """Whatever is more."""
    assert Behaviour(Bounds(1, 100)).settle(wanted, current, 0.0) == allowed


def test_keda_divides_the_sum_by_its_threshold_as_if_pods_that_start_served_already() -> None:
    """An external metric has no pods that are not ready."""
    scaler = Keda(RULES, POOLS, target=10.0)
    assert counts(scaler, [view(0.0, [gauges(22.0)] * 2)]) == [5]
    assert counts(scaler, [view(15.0, [gauges(22.0)] * 2, starting=3)]) == [5]
    assert counts(scaler, [view(30.0, [gauges(20.0, waiting=1.0)] * 2, starting=2)]) == [4]  # within 10 %: as it is


def test_keda_leaves_nothing_after_300_s_without_activity_and_wakes_with_a_request() -> None:
    """Only where the pool may be empty; it asks every 30 s."""
    empty = Autoscaling(scaler="", least=0)
    scaler = Keda(empty, {POOL: Bounds(0, 20)}, target=10.0)
    idle = [view(15.0 * n, [gauges()], asked=5, before=5 if n else 0) for n in range(22)]
    found = counts(scaler, idle)
    assert found[:20] == [1] * 20
    assert found[20:] == [0, 0]
    assert counts(scaler, [view(330.0, []), view(360.0, [], asked=6, before=5)]) == [0, 1]
    stays = Keda(RULES, POOLS, target=10.0)
    assert set(counts(stays, idle)) == {1}


@pytest.mark.parametrize(
    ("kv", "pods", "replicas"),
    [(0.5, 4, 4), (0.54, 4, 4), (0.6, 4, 5), (1.0, 2, 4), (0.9, 1, 2), (0.46, 4, 4)],
)
def test_apa_changes_beyond_its_tolerance_and_at_most_doubles(kv: float, pods: int, replicas: int) -> None:
    """10 % up and down, rates of 2."""
    assert counts(aibrix_apa(RULES, POOLS, target=0.5), [view(0.0, [gauges(kv=kv)] * pods)]) == [replicas]


def test_apa_halves_at_most_and_only_after_its_cooldown() -> None:
    """Eight idle pods are eight for 300 s, then four."""
    found = counts(aibrix_apa(RULES, POOLS), [view(0.0, [gauges(kv=0.5)] * 8)])
    assert found == [8]
    scaler = aibrix_apa(RULES, POOLS)
    found = counts(scaler, [view(10.0 * n, [gauges(kv=0.5 if not n else 0.0)] * 8) for n in range(31)])
    assert found == [8] * 30 + [4]


def test_apa_counts_pending_pods_as_idle_on_the_way_up() -> None:
    """Two at twice their target are enough once two more are on their way."""
    scaler = aibrix_apa(RULES, POOLS, target=0.4)
    assert counts(scaler, [view(0.0, [gauges(kv=0.8)] * 2)]) == [4]
    assert counts(scaler, [view(10.0, [gauges(kv=0.8)] * 2, starting=2)]) == [4]


def test_kpa_panics_at_twice_the_pods_and_does_not_go_down_meanwhile() -> None:
    """A burst of 10 s decides although the stable window of a minute has not seen it yet."""
    scaler = aibrix_kpa(RULES, POOLS, target=10.0)
    calm = [view(10.0 * n, [gauges(10.0)] * 2) for n in range(6)]
    assert counts(scaler, calm) == [2] * 6
    assert counts(scaler, [view(60.0, [gauges(30.0)] * 2)]) == [4]  # stable alone: ceil((5 * 20 + 60) / 6 / 10) = 3
    assert counts(scaler, [view(70.0, [gauges(2.0)] * 4)]) == [4]


@pytest.mark.parametrize("name", [name for name in CATALOG if name not in (OURS, CLAIRVOYANT)])
def test_every_autoscaler_keeps_to_the_bounds(name: str) -> None:
    """Whatever it sees, however often."""
    scaler: Scaler = scaler_of(Autoscaling(scaler=name), {POOL: Bounds(2, 5)}, FleetSpec(name="", instances=()))
    full = [view(15.0 * n, [gauges(100.0, 50.0, 1.0, 1.0)] * 5) for n in range(30)]
    idle = [view(450.0 + 15.0 * n, [gauges()] * 5) for n in range(30)]
    found = counts(scaler, full + idle)
    if name != "fixed":
        assert set(found) <= {2, 3, 4, 5}
        assert found[29] == 5
        assert found[-1] < 5


@pytest.mark.parametrize("text", ["nobody", "hpa_gpu?target=much", "hpa_gpu?aim=3", "keda_requests?target"])
def test_a_text_that_names_no_autoscaler_is_refused(text: str) -> None:
    """With what is wrong about it."""
    with pytest.raises(ConfigError, match="autoscaler"):
        scaler_of(Autoscaling(scaler=text), POOLS, FleetSpec(name="", instances=()))
