"""Slow start: how far a start has come, what it costs, and when it does not matter."""

from __future__ import annotations

import pytest

from extproc.core.fleet.fleet import Fleet, Ordered, Published, Record, State
from extproc.core.health.slow_start import ANSWERS, WINDOW_S, WarmUps, slow_start_s
from extproc.core.router import Router
from extproc.core.values.instance import Instance, Lifecycle
from tests.core.builders import instance, publish
from tests.core.test_learning import choose, finish

A = "a@1"


def test_a_start_goes_on_with_time() -> None:
    """And is over with the window, whether or not anything was answered."""
    starts = WarmUps()
    seen = [starts.progress(A, 100.0, 100.0 + WINDOW_S * share) for share in (0.0, 0.25, 1.0, 9.0)]
    assert seen == [0.0, 0.25, 1.0, 1.0]


def test_a_start_goes_on_with_answers() -> None:
    """To requests that were sent since."""
    starts = WarmUps()
    for _ in range(ANSWERS // 2):
        starts.answered(A, ready_since_s=100.0, sent_s=99.0)
    assert starts.progress(A, 100.0, 100.0) == 0.0
    for _ in range(ANSWERS // 2):
        starts.answered(A, ready_since_s=100.0, sent_s=100.5)
    assert starts.progress(A, 100.0, 100.0) == 0.5


def test_an_instance_that_comes_back_begins_anew() -> None:
    """Its answers of before tell nothing of the time after."""
    starts = WarmUps()
    for _ in range(ANSWERS):
        starts.answered(A, ready_since_s=100.0, sent_s=100.5)
    assert starts.progress(A, 100.0, 101.0) == 1.0
    assert starts.progress(A, 200.0, 201.0) == 1.0 / WINDOW_S


def test_one_that_was_ready_when_we_first_looked_is_past_its_start() -> None:
    """A router that starts must not take the whole fleet for new."""
    assert WarmUps().progress(A, float("-inf"), 0.0) == 1.0


@pytest.mark.parametrize(
    ("requests", "progress", "warm_requests", "factor"),
    [
        (0, 0.0, 40.0, 0.0),  # one request always goes
        (1, 0.0, 40.0, 1.0),
        (9, 0.25, 40.0, 0.0),  # a quarter of the others' forty
        (19, 0.25, 40.0, 1.0),
        (39, 1.0, 40.0, 0.0),
        (500, 1.0, 1.0, 0.0),
        (500, 0.0, None, 0.0),  # all are new
        (1, 0.9, 0.0, 1.0),  # the others are idle
    ],
)
def test_requests_beyond_the_share_cost_more(
    requests: int, progress: float, warm_requests: float | None, factor: float
) -> None:
    """In multiples of what the request costs there anyway."""
    assert slow_start_s(2.0, requests, progress, warm_requests) == pytest.approx(2.0 * factor)


def read(fleet: Fleet, *instances: Instance, now: float) -> None:
    fleet.resync(State(1, tuple(Record(each, 0.0, 10.0) for each in instances), {}), now)


def since_s(fleet: Fleet) -> float:
    member = fleet.get("a")
    assert member is not None
    return member.ready_since_s


def test_what_is_ready_at_the_first_look_was_so_before() -> None:
    """Nobody knows since when."""
    fleet = Fleet()
    read(fleet, instance("a"), now=5.0)
    assert since_s(fleet) == float("-inf")
    fleet.apply(Published(instance=instance("a")), 6.0)
    assert since_s(fleet) == float("-inf")


@pytest.mark.parametrize(
    "before",
    [
        {"lifecycle": Lifecycle.LOADING},
        {"lifecycle": Lifecycle.UNHEALTHY},
        {"lifecycle": Lifecycle.DRAINING},
        {"incarnation": "0"},
    ],
)
def test_becoming_ready_is_noticed(before: dict[str, object]) -> None:
    """From whatever it was before, another start of the engine included; and it stays the moment that it was."""
    fleet = Fleet()
    read(fleet, instance("a", **before), now=5.0)
    fleet.apply(Published(instance=instance("a")), 8.0)
    fleet.apply(Published(instance=instance("a")), 9.0)
    assert since_s(fleet) == 8.0


def test_an_instance_that_appears_is_new() -> None:
    """After the whole fleet was read once."""
    fleet = Fleet()
    read(fleet, now=5.0)
    fleet.apply(Published(instance=instance("a")), 8.0)
    assert since_s(fleet) == 8.0


def test_an_order_taken_back_makes_an_instance_new() -> None:
    """It may have been idle for long."""
    fleet = Fleet()
    read(fleet, instance("a"), now=5.0)
    fleet.apply(Ordered(id="a", lifecycle=Lifecycle.DRAINING), 6.0)
    fleet.apply(Ordered(id="a"), 7.0)
    assert since_s(fleet) == 7.0


def test_an_agent_that_was_silent_does_not_make_its_engine_new() -> None:
    """The record ran out, the engine went on."""
    fleet = Fleet(recovery_s=0.0)
    read(fleet, instance("a"), now=5.0)
    fleet.heard(30.0)
    assert fleet.get("a") is None
    fleet.apply(Published(instance=instance("a")), 31.0)
    assert since_s(fleet) == float("-inf")


def test_a_routers_outcomes_move_a_start_on() -> None:
    """Those of requests that were sent since; an instance that a router found Ready has none to make."""
    made = Router()
    made.fleet.resync(State(1, (), {}), 0.0)
    publish(made, instance("a"), 10.0)
    features, address = choose(made, now=10.5)
    (member,) = made.fleet.members()
    before = made.warm_ups.progress(A, member.ready_since_s, 10.0)
    for _ in range(ANSWERS):
        finish(made, features, address, now=12.0, duration_s=1.0)
    assert (before, made.warm_ups.progress(A, member.ready_since_s, 12.0)) == (0.0, 1.0)
