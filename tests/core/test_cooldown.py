"""Rests after failures: how long, what ends them, and who goes first afterwards."""

from __future__ import annotations

import pytest

from extproc.core.health.cooldown import Cooldowns

A = "a@1"


def cooldowns() -> Cooldowns:
    return Cooldowns(base_s=1.0, limit_s=60.0)


def test_a_failure_rests_an_instance_and_no_other() -> None:
    """One second at first."""
    rests = cooldowns()
    rests.fail(A, now=10.0, sent_s=9.9)
    assert rests.remaining_s(A, 10.25) == pytest.approx(0.75)
    assert rests.remaining_s("b@1", 10.25) == 0.0
    assert rests.remaining_s(A, 11.0) == 0.0


def test_each_failed_probe_doubles_the_rest_up_to_the_limit() -> None:
    """A dead instance is tried ever more seldom, but at least once a minute."""
    rests, now, lengths_s = cooldowns(), 0.0, []
    for _ in range(9):
        rests.fail(A, now, sent_s=now)
        lengths_s.append(rests.remaining_s(A, now))
        now += lengths_s[-1]
        rests.sent(A, now)
    assert lengths_s == [1, 2, 4, 8, 16, 32, 60, 60, 60]


def test_failures_of_requests_sent_before_the_rest_count_as_one() -> None:
    """An engine that dies fails all that it had at once, and some of it late."""
    rests = cooldowns()
    for at_s in (0.0, 0.001, 0.5, 1.2):
        rests.fail(A, now=at_s, sent_s=-5.0)
    assert rests.remaining_s(A, 0.0) == 1.0
    assert rests.remaining_s(A, 1.2) == 0.0


def test_a_success_of_what_was_sent_before_does_not_end_the_rest() -> None:
    """It says how the instance was, not how it is."""
    rests = cooldowns()
    rests.fail(A, now=10.0, sent_s=9.9)
    rests.succeed(A, now=10.1, sent_s=9.0)
    assert rests.remaining_s(A, 10.1) == pytest.approx(0.9)


def test_a_success_of_a_last_resort_ends_the_rest() -> None:
    """It was sent although the instance rested, because all did, and was answered."""
    rests = cooldowns()
    rests.fail(A, now=10.0, sent_s=9.9)
    rests.succeed(A, now=10.3, sent_s=10.2)
    assert rests.remaining_s(A, 10.3) == 0.0


def test_a_failure_of_a_last_resort_does_not_lengthen_the_rest() -> None:
    """Where the network is gone, every request would double every rest."""
    rests = cooldowns()
    rests.fail(A, now=10.0, sent_s=9.9)
    for number in range(20):
        rests.fail(A, now=10.1 + number / 100, sent_s=10.1)
    assert rests.remaining_s(A, 10.5) == pytest.approx(0.5)


def test_after_a_rest_one_request_goes_first_and_the_others_when_it_was_answered() -> None:
    """Else all that waits falls upon an instance that may still be ill."""
    rests = cooldowns()
    rests.fail(A, now=0.0, sent_s=0.0)
    assert rests.remaining_s(A, 1.5) == 0.0
    rests.sent(A, 1.5)
    assert rests.remaining_s(A, 1.6) > 0.0
    rests.succeed(A, now=1.7, sent_s=1.5)
    assert rests.remaining_s(A, 1.7) == 0.0
    rests.sent(A, 1.8)
    assert rests.remaining_s(A, 1.8) == 0.0


def test_a_probe_of_which_nothing_is_heard_is_followed_by_another() -> None:
    """Its client may have hung up, or its answer takes minutes."""
    rests = cooldowns()
    rests.fail(A, now=0.0, sent_s=0.0)
    let_through = 0
    for tenth in range(10, 61):
        now = tenth / 10
        if not rests.remaining_s(A, now):
            rests.sent(A, now)
            let_through += 1
    assert let_through == 6  # of 51 moments: one a second


def test_an_instance_that_fails_again_soon_after_it_was_well_rests_longer() -> None:
    """One that answers every other request would else be rested for a second each time."""
    rests = cooldowns()
    rests.fail(A, now=0.0, sent_s=0.0)
    rests.succeed(A, now=1.1, sent_s=1.0)
    rests.fail(A, now=1.3, sent_s=1.2)
    assert rests.remaining_s(A, 1.3) == pytest.approx(2.0)


def test_failures_are_forgiven_with_time() -> None:
    """One hiccup now and then is not a history."""
    rests = cooldowns()
    rests.fail(A, now=0.0, sent_s=0.0)
    rests.succeed(A, now=1.1, sent_s=1.0)
    rests.succeed(A, now=30.0, sent_s=29.0)
    rests.fail(A, now=31.0, sent_s=30.0)
    assert rests.remaining_s(A, 31.0) == 1.0


def test_a_new_start_of_the_instance_has_no_history() -> None:
    """Its key is another, and the old one is dropped."""
    rests = cooldowns()
    rests.fail(A, now=0.0, sent_s=0.0)
    rests.forget(A)
    assert rests.remaining_s(A, 0.1) == 0.0
