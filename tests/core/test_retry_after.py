"""When a client that was refused is told to come again."""

from __future__ import annotations

import pytest

from extproc.core.reasons.retry_after import retry_after_s
from extproc.core.router import Router
from extproc.core.snapshot import Policy
from extproc.core.values.instance import Instance, Lifecycle
from extproc.core.values.request import RequestClass
from tests.core.builders import instance, request, router

ONE_AT_A_TIME = Policy(max_in_flight=1)


def told_s(made: Router, now: float, jitter: float = 0.0) -> int:
    asked = request("refused")
    decision = made.choose(asked, now, 0.0)
    assert decision.chosen is None
    return retry_after_s(asked, decision, made.snapshot(), now, jitter)


def loading(name: str, ready_in_s: float | None) -> Instance:
    return instance(name, lifecycle=Lifecycle.LOADING, ready_in_s=ready_in_s)


def test_a_full_instance_has_a_place_when_its_first_answer_ends() -> None:
    """2,000 tokens at 6.5 ms each take 13 s; three of them are over."""
    made = router(instance(), policy=ONE_AT_A_TIME)
    made.choose(request("long", expected_output_tokens=2000), 0.0, 0.0)
    assert 12 <= told_s(made, 0.0) <= 15
    assert told_s(made, 3.0) == told_s(made, 0.0) - 3


def test_the_instance_that_is_free_first_counts() -> None:
    """Not the sum, not the mean."""
    made = router(instance("a"), instance("b"), policy=ONE_AT_A_TIME)
    made.choose(request("long", expected_output_tokens=4000), 0.0, 0.0)
    made.choose(request("short", expected_output_tokens=400), 0.0, 0.0)
    assert told_s(made, 0.0) <= 4


def test_a_class_that_may_fill_half_waits_for_as_many_ends_as_it_has_places_too_few() -> None:
    """Three run where two may: the second of them to end leaves a place."""
    made = router(instance(), policy=Policy(max_in_flight=4))
    for number, tokens in enumerate((4000, 400, 2000)):
        made.choose(request(str(number), expected_output_tokens=tokens), 0.0, 0.0)
    asked = request("refused", request_class=RequestClass.BATCH)
    decision = made.choose(asked, 0.0, 0.0)
    assert decision.chosen is None
    assert 12 <= retry_after_s(asked, decision, made.snapshot(), 0.0, 0.0) <= 15


def test_an_answer_that_is_overdue_may_end_any_moment() -> None:
    """One second is the least that is told."""
    made = router(instance(), policy=ONE_AT_A_TIME)
    made.choose(request("long"), 0.0, 0.0)
    assert told_s(made, 500.0) == 1


@pytest.mark.parametrize(
    ("instances", "now", "wait_s"),
    [
        ([loading("a", 30.0)], 0.0, 30),
        ([loading("a", 30.0)], 12.0, 18),
        ([loading("a", 30.0), loading("b", 8.0)], 0.0, 8),
        ([loading("a", 900.0)], 0.0, 60),
        ([loading("a", 30.0)], 100.0, 1),  # it is late
        ([loading("a", None)], 0.0, 1),
        ([instance("a", lifecycle=Lifecycle.DRAINING, ready_in_s=9.0)], 0.0, 1),
        ([], 0.0, 1),
    ],
)
def test_a_start_is_awaited(instances: list[Instance], now: float, wait_s: int) -> None:
    """As far as an agent says when it will be over; nothing else is known of draining ones or of an empty fleet."""
    assert told_s(router(*instances), now) == wait_s


def test_clients_that_were_refused_together_are_told_different_times() -> None:
    """Up to half as long again."""
    made = router(loading("a", 20.0))
    assert [told_s(made, 0.0, jitter) for jitter in (0.0, 0.5, 0.999)] == [20, 25, 30]
    assert told_s(router(), 0.0, 0.999) == 2
