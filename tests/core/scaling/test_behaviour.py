"""Down when fewer have been enough for a while and will be: the dwell, what shortens it and what makes it longer."""

from __future__ import annotations

import math

import pytest

from extproc.core.scaling.behaviour import PATIENT, Behaviour, step_down

DWELL_S = 300.0


def after(needs: list[tuple[float, float]]) -> Behaviour:
    made = Behaviour()
    for at_s, need in needs:
        made.needed(at_s, need, DWELL_S)
    return made


def every_ten_s(until_s: float, need: float) -> list[tuple[float, float]]:
    return [(10.0 * step, need) for step in range(int(until_s / 10.0) + 1)]


def test_what_was_needed_within_the_dwell_stays() -> None:
    """Until it is over, and not longer."""
    made = after([*every_ten_s(400.0, 2.0), (410.0, 5.0), (420.0, 2.0)])
    assert made.keep(600.0, DWELL_S, DWELL_S, 0.0, math.inf) == 5.0
    for step in range(30):
        made.needed(430.0 + 10.0 * step, 2.0, DWELL_S)
    assert made.keep(730.0, DWELL_S, DWELL_S, 0.0, math.inf) == 2.0


def test_without_a_dwell_the_need_of_now_is_all_that_is_kept() -> None:
    """At any moment, also one that is no multiple of a bucket."""
    made = Behaviour()
    for step in range(50):
        made.needed(1_700_000_000.0 + 4.9876 * step, 3.0 if step < 49 else 1.0, 0.0)
    assert made.needs == [(made.needs[0][0], 1.0)]
    assert made.keep(1_700_000_000.0 + 4.9876 * 49, 0.0, DWELL_S, 2.0, 2.0) == 2.0


def test_nothing_leaves_before_a_dwell_was_seen() -> None:
    """What was needed before the first look is not known, and how sure a forecast is neither."""
    assert after(every_ten_s(200.0, 2.0)).keep(200.0, DWELL_S, DWELL_S, 0.0, math.inf) == math.inf
    assert after(every_ten_s(200.0, 2.0)).keep(200.0, DWELL_S, DWELL_S, 0.0, 0.0) == math.inf
    assert after(every_ten_s(310.0, 2.0)).keep(310.0, DWELL_S, DWELL_S, 0.0, math.inf) == 2.0


def test_what_was_before_a_gap_does_not_count() -> None:
    """A leader that was away does not know what was needed meanwhile: it waits for a whole dwell."""
    made = after([*every_ten_s(400.0, 2.0), (700.0, 2.0)])
    assert made.keep(700.0, DWELL_S, DWELL_S, 0.0, 0.0) == math.inf


def test_a_sure_forecast_shortens_no_dwell_soon_after_nothing_could_be_seen() -> None:
    """Be it because nobody looked, or because no router told anything."""
    gap = after([*every_ten_s(400.0, 2.0), (700.0, 2.0), *((710.0 + 10 * step, 2.0) for step in range(12))])
    assert gap.keep(820.0, DWELL_S, DWELL_S, 4.0, 2.0) == math.inf
    blind = after(every_ten_s(900.0, 2.0))
    assert blind.keep(900.0, DWELL_S, DWELL_S, 4.0, 2.0) == 2.0
    blind.unseen(910.0)
    assert blind.keep(1000.0, DWELL_S, DWELL_S, 4.0, 2.0) == 4.0
    assert blind.keep(1210.0, DWELL_S, DWELL_S, 4.0, 2.0) == 2.0


def test_what_is_expected_to_be_needed_again_stays() -> None:
    """Even if little was needed for long."""
    assert after(every_ten_s(900.0, 2.0)).keep(900.0, DWELL_S, DWELL_S, 4.5, math.inf) == 4.5


def test_a_sure_forecast_shortens_the_dwell() -> None:
    """A fifth of it is enough where all but certainly fewer will do."""
    made = after([*every_ten_s(400.0, 5.0), *((410.0 + 10.0 * step, 2.0) for step in range(8))])
    assert made.keep(480.0, DWELL_S, DWELL_S, 2.0, math.inf) == 5.0
    assert made.keep(480.0, DWELL_S, DWELL_S, 2.0, 3.0) == 3.0
    assert made.keep(480.0, DWELL_S, DWELL_S, 2.0, 9.0) == 5.0


def test_a_step_down_that_is_regretted_makes_the_dwell_longer() -> None:
    """Twice as long each time, up to eight times, and slowly back to what the operator said."""
    made = after(every_ten_s(900.0, 2.0))
    for at_s in (900.0, 901.0, 902.0, 903.0, 904.0):
        made.went_down(at_s)
        made.went_up(at_s + 0.5, DWELL_S, regret_s=900.0)
    assert made.patience_at(904.5, DWELL_S) == pytest.approx(8.0, rel=0.01)
    assert made.patience_at(904.5 + 24.0 * DWELL_S, DWELL_S) == pytest.approx(4.5, rel=0.01)


def test_a_step_up_long_after_one_down_is_no_regret() -> None:
    """Nor is the second one of a rise."""
    made = Behaviour()
    made.went_down(0.0)
    made.went_up(1000.0, DWELL_S, regret_s=900.0)
    made.went_up(1010.0, DWELL_S, regret_s=5000.0)
    assert made.patience_at(1010.0, DWELL_S) == 1.0


@pytest.mark.parametrize(("count", "goal", "expected"), [(3, 1, 2), (20, 4, 15), (20, 18, 18), (2, 2, 2)])
def test_one_or_a_quarter_leaves_in_a_step(count: int, goal: int, expected: int) -> None:
    """And never more than should."""
    assert step_down(count, goal) == expected


def test_steps_down_are_some_time_apart() -> None:
    """What one did must show before the next."""
    made = Behaviour()
    made.went_down(100.0)
    assert not made.may_step(120.0, DWELL_S)
    assert made.may_step(130.0, DWELL_S)


def test_what_one_look_alone_needs_is_chance() -> None:
    """It must be needed at the next look as well; less is believed at once."""
    behaviour = after(every_ten_s(900.0, 2.0))
    for at_s, need, lasting in ((905.0, 2.0, 2.0), (910.0, 30.0, 2.0), (915.0, 5.0, 5.0), (920.0, 1.0, 1.0)):
        assert behaviour.lasting(at_s, need, DWELL_S) == lasting
    assert behaviour.lasting(1000.0, 7.0, DWELL_S) == 7.0


def test_what_was_needed_before_counting_began_again_keeps_nothing_back() -> None:
    """Load that came during an outage would else start machines only a third of a dwell after it."""
    behaviour = after(every_ten_s(900.0, 1.0))
    for at_s in (1300.0, 1305.0):  # looks that could not count yet
        behaviour.lasting(at_s, 1.0, DWELL_S)
        behaviour.unseen(at_s)
    for at_s in (1310.0, 1315.0, 1320.0):
        lasting = behaviour.lasting(at_s, 8.0, DWELL_S)
        behaviour.needed(at_s, lasting, DWELL_S)
    assert lasting == 8.0


def test_what_was_needed_before_a_long_silence_keeps_nothing_back_where_a_first_request_ends_it() -> None:
    """Who was at zero is had at once (`plan`): the look that finds the gap asks for nothing lasting."""
    behaviour = after(every_ten_s(900.0, 1.0))
    behaviour.lasting(905.0, 0.02, DWELL_S)
    behaviour.needed(1500.0, 1.0, DWELL_S)
    for at_s in (1505.0, 1510.0, 1515.0):
        lasting = behaviour.lasting(at_s, 8.0, DWELL_S)
        behaviour.needed(at_s, lasting, DWELL_S)
    assert lasting == 8.0


def test_the_first_requests_start_no_machines() -> None:
    """For the first third of a dwell the least of all looks counts: some requests tell little of the load."""
    behaviour = Behaviour()
    for step in range(21):
        at_s, need = 5.0 * step, 1.0 if step == 2 else 30.0
        assert behaviour.lasting(at_s, need, DWELL_S) == (30.0 if step in (0, 1, 20) else 1.0)
        behaviour.needed(at_s, need, DWELL_S)
    assert behaviour.lasting(105.0, 30.0, DWELL_S) == 30.0


def test_patience_keeps_no_more_than_who_swings() -> None:
    """A burst's instances go after a plain dwell, however often steps down were regretted before."""
    behaviour = after(every_ten_s(900.0, 2.0))
    behaviour.patience, behaviour.patient_at_s = 4.0, 900.0
    behaviour.needed(910.0, 12.0, DWELL_S)
    for step in range(32):
        behaviour.needed(920.0 + 10.0 * step, 2.0, DWELL_S)
    assert behaviour.keep(1230.0, DWELL_S, DWELL_S, 0.0, math.inf) == 2.0 + PATIENT


def test_little_is_held_for_longer_than_a_start_takes() -> None:
    """That would have paid for another. Who swings by one is kept, and before a dwell was seen nobody leaves."""
    made = after([*every_ten_s(400.0, 2.0), (410.0, 9.0), *[(420.0 + 10.0 * step, 2.0) for step in range(19)]])
    assert made.keep(600.0, DWELL_S, 240.0, 0.0, math.inf) == 9.0
    assert made.keep(600.0, DWELL_S, 120.0, 0.0, math.inf) == 2.0 + PATIENT
    assert made.keep(465.0, DWELL_S, 5.0, 0.0, math.inf) == 9.0  # a rate's chance lasts for some time
    assert made.keep(500.0, DWELL_S, 5.0, 0.0, math.inf) == 2.0 + PATIENT
    assert after(every_ten_s(200.0, 2.0)).keep(200.0, DWELL_S, 120.0, 0.0, math.inf) == math.inf
