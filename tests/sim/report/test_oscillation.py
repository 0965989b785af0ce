"""The oscillation index tells a herd from noise, and noise from a steady spread."""

from __future__ import annotations

from math import sqrt

import pytest

from extproc.sim.report.oscillation import NOISE_BAND, oscillation
from tests.sim.report.runs import herded, samples


@pytest.mark.parametrize("load", [(8, 8, 8, 8), (30, 2, 2, 2), (0, 20, 0, 0)])
def test_a_constant_split_does_not_oscillate_however_uneven_it_is(load: tuple[int, ...]) -> None:
    """A lasting difference is imbalance, not oscillation."""
    assert oscillation(samples(*[load] * 100)) == 0.0


def test_the_rise_and_fall_of_the_whole_traffic_is_no_oscillation() -> None:
    """All instances together go from 10 to 100 requests and back, again and again."""
    assert oscillation(samples(*[(10 * k, 10 * k) for k in [*range(1, 11), *range(10, 0, -1)] * 5])) == 0.0


def test_a_swing_counts_by_what_it_exceeds_the_noise() -> None:
    """Two instances, 200 requests that go over and back twice: four swings of two fair shares each in 4 s."""
    there, back = (200, 0), (0, 200)
    band = NOISE_BAND / sqrt(100) * sqrt(2)
    instance_minutes = 4 * 2 / 60
    found = oscillation(samples(there, back, there, back, there))
    assert found == pytest.approx(2 * 4 * (2 - band) / instance_minutes)


def test_a_slow_swing_counts_once_from_end_to_end() -> None:
    """Ten small steps in one direction are one swing; so are two large ones."""
    small = samples(*[(200 - 20 * k, 20 * k) for k in range(11)])
    large = samples(*[(200, 0)] * 5, (100, 100), *[(0, 200)] * 5)
    assert oscillation(small) == pytest.approx(oscillation(large))


def test_what_small_counts_do_by_chance_is_left_out() -> None:
    """Four requests on each of two instances, more or less two, stay within two standard deviations."""
    assert oscillation(samples(*[(6, 2), (2, 6)] * 20)) == 0.0


@pytest.mark.parametrize(("instances", "mean"), [(4, 6), (8, 8), (8, 32), (16, 16)])
def test_a_herd_oscillates_most_then_random_choice_then_round_robin_then_least_request(
    instances: int, mean: float
) -> None:
    """The order of the rules that are known to herd and not to, under Poisson arrivals."""
    rules = ("herd", "random", "round_robin", "least_request")
    herd, random, turns, least = (
        oscillation(herded(rule, instances=instances, mean=mean, minutes=10)) or 0.0 for rule in rules
    )
    assert herd > 3 * random
    assert random > turns >= least
    assert least < 0.1


def test_more_requests_do_not_make_an_even_handed_rule_oscillate() -> None:
    """Neither a longer run nor more traffic raises the index of round robin."""
    short = oscillation(herded("round_robin", instances=8, mean=8, minutes=5)) or 0.0
    long = oscillation(herded("round_robin", instances=8, mean=8, minutes=20)) or 0.0
    busy = oscillation(herded("round_robin", instances=8, mean=64, minutes=5)) or 0.0
    assert max(short, long, busy) < 0.5
    assert busy <= short


def test_a_herd_is_as_bad_in_a_long_run_as_in_a_short_one() -> None:
    """The index is per minute."""
    short = oscillation(herded("herd", instances=8, mean=16, minutes=5)) or 0.0
    long = oscillation(herded("herd", instances=8, mean=16, minutes=20)) or 0.0
    assert long == pytest.approx(short, rel=0.2)


def test_load_that_moves_because_an_instance_leaves_is_no_swing() -> None:
    """Its share goes to the others at once, and comes back with it."""
    with_it = samples(*[(90, 90, 90)] * 5, ready=(True, True, True))
    without = samples(*[(135, 135, 0)] * 5, ready=(True, True, False))
    assert oscillation([*with_it, *without, *with_it]) == 0.0


@pytest.mark.parametrize("over_time", [(), samples((5, 5)), samples(*[(1, 0, 0, 0)] * 50)])
def test_too_little_load_to_tell_is_unknown(over_time: tuple[object, ...]) -> None:
    """Nothing, a single sample, or fewer requests than instances: None, not 0."""
    assert oscillation(over_time) is None  # type: ignore[arg-type]
