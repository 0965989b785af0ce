"""What a demand fills of each pool of a group, and when the latest rate counts alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from extproc.core.pricing.slo import Slo
from extproc.core.scaling.correction import Correction, Met
from extproc.core.scaling.demand import Demand, Rate
from extproc.core.scaling.loads import Loads, calm, loads, risen, without_chance
from extproc.core.scaling.recommendation import Forecast
from tests.core.builders import instance
from tests.core.scaling.play import pool

ASKED = Demand(requests_s=40.0, prompt_tokens=1000.0, cached_tokens=0.0, output_tokens=200.0, covers_s=30.0)
SLO = Slo(ttft_s=2.0, tpot_s=0.05)
POOLS = (pool("h100"), pool("a100", hardware="a100_sxm"))
THERE = ((instance("a"),), (instance("b", hardware="a100_sxm"),))


def filled(asked: Demand = ASKED, correction: Correction | None = None) -> Loads:
    return loads(POOLS, THERE, {}, asked, SLO, correction or Correction())


def test_an_instance_of_slower_hardware_has_a_smaller_size() -> None:
    """Sizes are told in instances of the first pool, whatever the load."""
    busy, calm = filled(), filled(replace(ASKED, requests_s=0.0))
    assert busy.sizes[0] == calm.sizes[0] == 1.0
    assert 0.1 < busy.sizes[1] < 0.8
    assert 0.1 < calm.sizes[1] < 0.8
    assert calm.load == 0.0


def test_the_rate_of_an_instance_times_the_load_is_what_is_asked() -> None:
    """So that a backlog of requests becomes seconds of an instance."""
    assert filled().load * filled().capacity_rps == pytest.approx(40.0)


def test_a_full_batch_does_more_than_is_carried_within_the_slo() -> None:
    """Without a limit of time it is all that is carried, and what answers have taught of that limit changes it."""
    assert 1.05 < filled().throughput < 10.0
    assert loads(POOLS, THERE, {}, ASKED, Slo(), Correction()).throughput == pytest.approx(1.0, abs=0.05)
    taught = Correction()
    for step in range(100):
        taught.learn("h100", 10.0 * step, Met(used=0.5, instances=1, judged=100.0, bad_share=0.3))
    less = filled(correction=taught)
    assert less.throughput * less.factor == pytest.approx(filled().throughput)


def test_long_prompts_have_their_own_slo() -> None:
    """The load of the same requests is less where those that are long may take longer."""
    asked = replace(ASKED, prompt_tokens=12_000.0, computed_cv2=1.7, requests_s=4.0)
    strict, lenient = (
        loads(POOLS, THERE, {}, asked, SLO, Correction(), long=long) for long in (None, Slo(ttft_s=10.0, tpot_s=0.1))
    )
    assert lenient.load < 0.95 * strict.load


def test_loads_are_the_same_with_those_of_the_last_look_at_hand() -> None:
    """They are where each pool's capacity is looked for; of a group that had other pools they tell nothing."""
    last = filled(replace(ASKED, requests_s=30.0, prompt_tokens=900.0))
    for known in (last, replace(last, edges=last.edges[:1])):
        again = loads(POOLS, THERE, {}, ASKED, SLO, Correction(), known)
        assert again.load == pytest.approx(filled().load, rel=1e-3)
        assert again.sizes == pytest.approx(filled().sizes, rel=2e-3)


def test_what_answers_have_taught_changes_the_load_and_not_what_is_computed() -> None:
    """A pool that carries less is filled by the same requests sooner; the past of forecasts stays as it was."""
    taught = Correction()
    for step in range(100):
        taught.learn("h100", 10.0 * step, Met(used=0.5, instances=1, judged=100.0, bad_share=0.3))
    less = filled(correction=taught)
    assert less.factor < 0.8
    assert less.computed == pytest.approx(filled().computed)
    assert less.load == pytest.approx(filled().load / less.factor)
    assert less.sizes[1] == pytest.approx(filled().sizes[1] / less.factor)


@pytest.mark.parametrize(("latest", "burst", "expected"), [(46.0, 1.0, 40.0), (60.0, 1.0, 57.55), (60.0, 20.0, 40.0)])
def test_a_rate_beyond_chance_counts_at_once(latest: float, burst: float, expected: float) -> None:
    """Four deviations of requests that come at random, or in bursts where they usually do; one of them is left out."""
    usual = replace(ASKED, burst=burst)
    assert risen(usual, Rate(latest, 10.0)).requests_s == pytest.approx(expected, abs=0.01)


def test_a_rate_that_falls_is_left_to_the_mean() -> None:
    """Nothing is in a hurry then."""
    assert risen(ASKED, Rate(0.0, 10.0)).requests_s == 40.0


def ahead(planned: float) -> Forecast:
    return Forecast(now=3.0, horizon_s=180.0, expected=4.0, planned=planned)


def test_the_noise_of_counting_is_not_planned_for() -> None:
    """Of few requests in a step the count itself varies: 4 instances of 0.4 requests/s, 50 s: 80 requests, 11 %."""
    few = Loads(computed=3.0, factor=1.0, sizes=(1.0,), capacity_rps=0.4)
    chance = 1.645 * 4.0 / 80.0**0.5
    left = without_chance(ahead(4.0 + 2.0 * chance), few, ASKED, 50.0, 0.95)
    assert left.planned == pytest.approx(4.0 + 3.0**0.5 * chance, rel=0.001)
    assert without_chance(ahead(4.0 + 0.9 * chance), few, ASKED, 50.0, 0.95).planned == 4.0


def test_of_many_requests_what_is_planned_is_left_as_it_is() -> None:
    """Their number hardly varies by chance."""
    many = Loads(computed=3.0, factor=1.0, sizes=(1.0,), capacity_rps=4000.0)
    assert without_chance(ahead(5.0), many, ASKED, 50.0, 0.95).planned == pytest.approx(5.0, rel=0.001)


@pytest.mark.parametrize(("level", "expected"), [(2.9, 2.9), (3.2, 3.2), (2.0, 3.0), (0.0, 3.0)])
def test_the_level_counts_unless_what_was_counted_is_beyond_chance(level: float, expected: float) -> None:
    """1,200 requests in 30 s are three instances' work; 2.9 would be chance, 2 would not."""
    three = Loads(computed=3.0, factor=1.0, sizes=(1.0,), capacity_rps=40.0 / 3.0)
    assert calm(three, ASKED, level) == expected
