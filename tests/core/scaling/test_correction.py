"""How much of a computed capacity turns out to be true."""

from __future__ import annotations

import msgspec
import pytest

from extproc.core.scaling.correction import LEAST, MOST, Correction, Met

LOOK_S = 5.0


def after(
    correction: Correction,
    used: float,
    bad_share: float,
    *,
    minutes: float = 60.0,
    begins_s: float = 0.0,
    **more: float,
) -> float:
    """Return the factor after so many minutes of looks that all show the same."""
    met = Met(
        used=used,
        bad_share=bad_share,
        instances=int(more.get("instances", 4)),
        judged=more.get("judged", 200.0),
        judged_s=more.get("judged_s", 120.0),
    )
    for number in range(int(minutes * 60 / LOOK_S)):
        correction.learn("p", begins_s + LOOK_S * number, met)
    return correction.factor("p")


@pytest.mark.parametrize(
    ("used", "bad_share", "expected"),
    [
        (0.6, 0.2, 0.6),  # bad where there should be room
        (1.2, 0.0, 1.2),  # good where there should be none
        (0.6, 0.0, 1.0),  # good where there is room: nothing new
        (1.2, 0.5, 1.0),  # bad where there is none
        (0.6, 0.03, 1.0),  # neither good nor bad
        (0.1, 0.9, LEAST),  # whatever this is, it is not the load
        (3.0, 0.0, MOST),
    ],
)
def test_the_factor_goes_to_the_load_that_says_something(used: float, bad_share: float, expected: float) -> None:
    """After an hour, but for what is always forgotten."""
    assert after(Correction(), used, bad_share) == pytest.approx(expected, abs=0.04)


def test_it_learns_slowly() -> None:
    """Of two bad minutes little stays, and none of the first."""
    assert after(Correction(), 0.6, 0.3, minutes=1.0) == 1.0
    assert 0.85 < after(Correction(), 0.6, 0.3, minutes=3.0) < 0.95


def test_bad_answers_of_a_time_with_too_much_load_say_nothing_as_long_as_they_are_judged() -> None:
    """They are those of two minutes, and were bad before the load fell."""
    correction = Correction()
    after(correction, 1.5, 0.5, minutes=3.0)
    assert after(correction, 0.4, 0.4, minutes=2.9, begins_s=180.0) == 1.0
    assert after(correction, 0.4, 0.4, minutes=3.0, begins_s=360.0) < 0.95


def test_bad_answers_are_judged_for_longer_where_they_are_few() -> None:
    """Those of ten minutes may all be of the time with too much load, though it was over eight minutes ago."""
    correction = Correction()
    after(correction, 1.5, 0.5, minutes=3.0)
    assert after(correction, 0.4, 0.4, minutes=10.9, begins_s=180.0, judged_s=600.0) == 1.0
    assert after(correction, 0.4, 0.4, minutes=3.0, begins_s=840.0, judged_s=600.0) < 0.95


def test_few_answers_say_nothing() -> None:
    """Nor does a pool without an instance."""
    assert after(Correction(), 0.6, 0.5, judged=5.0) == 1.0
    assert after(Correction(), 0.6, 0.5, instances=0) == 1.0


def test_a_backlog_being_worked_off_says_nothing() -> None:
    """After too much load, answers are late for a while though there is room."""
    correction = Correction()
    after(correction, 1.5, 0.6, minutes=5.0)
    assert after(correction, 0.6, 0.6, minutes=0.9, begins_s=300.0) == 1.0
    assert after(correction, 0.6, 0.6, minutes=5.0, begins_s=354.0) < 0.9


def test_another_number_of_instances_has_to_settle() -> None:
    """A new instance has an empty cache and compiles; that passes."""
    correction = Correction()
    for number in range(60):
        for instances in (4, 5):
            correction.learn(
                "p", 50.0 * number + 5.0 * instances, Met(used=0.5, instances=instances, judged=100.0, bad_share=0.5)
            )
    assert correction.factor("p") == 1.0


def test_what_says_nothing_any_more_is_forgotten_over_hours() -> None:
    """An outage must not buy instances for ever."""
    correction = Correction()
    low = after(correction, 0.6, 0.3)
    later = after(correction, 0.3, 0.0, minutes=6 * 60.0, begins_s=3600.0)
    assert 1.0 - later == pytest.approx((1.0 - low) / 2.718, rel=0.05)


def test_pools_learn_apart() -> None:
    """What one's answers tell says nothing of another."""
    correction = Correction()
    assert after(correction, 0.6, 0.3) < 1.0
    assert correction.factor("other") == 1.0


def test_a_new_leader_goes_on_from_what_was_learned() -> None:
    """All of it survives as bytes; others' bytes are refused."""
    correction, other = Correction(), Correction()
    after(correction, 0.6, 0.3, minutes=10.0)
    other.load(correction.dump())
    assert other.factor("p") == correction.factor("p")
    assert after(other, 0.6, 0.3, minutes=3.0, begins_s=600.0) == after(
        correction, 0.6, 0.3, minutes=3.0, begins_s=600.0
    )
    with pytest.raises(msgspec.MsgspecError):
        other.load(b"\xc1")


def test_a_clock_that_stood_still_or_was_set_back_teaches_little() -> None:
    """A look counts for a minute at the most, and never less than nothing."""
    correction = Correction()
    after(correction, 0.6, 0.3, minutes=2.0)
    before = correction.factor("p")
    correction.learn("p", 1e6, Met(used=0.6, instances=4, judged=100.0, bad_share=0.3))
    assert before - 0.1 < correction.factor("p") < before
    kept = correction.factor("p")
    correction.learn("p", 0.0, Met(used=0.6, instances=4, judged=100.0, bad_share=0.3))
    assert correction.factor("p") == kept


def test_what_was_learned_by_a_clock_that_is_ahead_does_not_keep_from_learning() -> None:
    """Bad answers would tell nothing until that time has come."""
    first, second = Correction(), Correction()
    after(first, 1.5, 0.5, minutes=3.0, begins_s=86_400.0)
    second.load(first.dump())
    second.not_after(180.0)
    assert after(second, 0.4, 0.4, minutes=6.0, begins_s=180.0) < 0.95
