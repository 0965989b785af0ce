"""The degrade ladder, read from a fleet at a moment that is an argument."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from extproc.core.fleet.degradation import REDIS_STALE_AFTER_S, Degradation, Ladder, Rung, Step, degradation
from extproc.core.fleet.events import Ordered, Published, Record, Removed, State
from extproc.core.fleet.fleet import Fleet
from extproc.core.values.instance import Lifecycle
from tests.core.builders import instance

STALE_AFTER_S = 5.0


def fleet_of(*names: str, lifecycle: Lifecycle = Lifecycle.READY) -> Fleet:
    """A fleet whose instances were published at second 0."""
    fleet = Fleet(recovery_s=5.0, retention_s=600.0)
    for name in names:
        fleet.apply(Published(instance=instance(name, lifecycle=lifecycle), ttl_ms=10_000), 0.0)
    return fleet


def look(fleet: Fleet, now: float) -> Degradation:
    return degradation(fleet, STALE_AFTER_S, now)


def unheard(fleet: Fleet) -> float:
    fleet.lost()
    return REDIS_STALE_AFTER_S + 0.1


def just_unheard(fleet: Fleet) -> float:
    fleet.lost()
    return REDIS_STALE_AFTER_S - 0.1


def silent_for_minutes(fleet: Fleet) -> float:
    fleet.lost()
    return 300.0


def recovering(fleet: Fleet) -> float:
    fleet.lost()
    fleet.resync(State(1, (), {}), 60.0)
    fleet.heard(64.0)
    return 64.0


def recovered(fleet: Fleet) -> float:
    fleet.lost()
    fleet.resync(State(1, tuple(Record(instance(name), 0.0, 10.0) for name in "ab"), {}), 60.0)
    fleet.heard(65.0)
    return 65.0


def one_agent_froze(fleet: Fleet) -> float:
    fleet.apply(Published(instance=instance("b"), ttl_ms=10_000), 6.0)
    return 6.0


def one_agent_died(fleet: Fleet) -> float:
    fleet.apply(Published(instance=instance("b"), ttl_ms=10_000), 9.0)
    fleet.heard(10.0)
    return 10.0


def one_came_back(fleet: Fleet) -> float:
    one_agent_died(fleet)
    fleet.apply(Published(instance=instance("a")), 11.0)
    return 11.0


def one_was_removed_at_last(fleet: Fleet) -> float:
    one_agent_died(fleet)
    fleet.apply(Removed(id="a"), 11.0)
    return 11.0


def long_after_one_died(fleet: Fleet) -> float:
    one_agent_died(fleet)
    for second in range(11, 620, 5):
        fleet.apply(Published(instance=instance("b")), float(second))
    return 616.0


def all_agents_died(fleet: Fleet) -> float:
    fleet.heard(10.0)
    return 10.0


def all_were_stopped(fleet: Fleet) -> float:
    for name in "ab":
        fleet.apply(Published(instance=instance(name, lifecycle=Lifecycle.STOPPED), ttl_ms=10_000), 1.0)
    fleet.heard(8.0)
    return 8.0


def drained_ones_agent_died(fleet: Fleet) -> float:
    fleet.apply(Ordered(id="a", lifecycle=Lifecycle.DRAINING), 1.0)
    return one_agent_died(fleet)


@pytest.mark.parametrize(
    ("happens", "rungs"),
    [
        (lambda fleet: 0.0, set()),
        (just_unheard, set()),
        (unheard, {Rung.REDIS_STALE}),
        (silent_for_minutes, {Rung.REDIS_STALE}),
        (recovering, {Rung.REDIS_STALE}),
        (recovered, set()),
        (one_agent_froze, {Rung.INSTANCE_STALE}),
        (one_agent_died, {Rung.INSTANCE_DROPPED}),
        (one_came_back, set()),
        (one_was_removed_at_last, set()),
        (long_after_one_died, set()),
        (all_agents_died, {Rung.INSTANCE_DROPPED, Rung.NO_INSTANCE}),
        (all_were_stopped, set()),
        (drained_ones_agent_died, set()),
    ],
)
def test_what_happens_to_a_fleet_of_two_leads_to_the_rungs(happens: Callable[[Fleet], float], rungs: set[Rung]) -> None:
    """An outage of the registry hides what instances do; their own silence is told apart, and told by name."""
    fleet = fleet_of("a", "b")
    assert look(fleet, happens(fleet)).rungs == rungs


def test_before_the_registry_was_ever_heard_it_is_stale_and_nothing_is_known() -> None:
    """A service that starts without Redis says so."""
    seen = look(Fleet(), 100.0)
    assert seen.rungs == {Rung.REDIS_STALE, Rung.NO_INSTANCE}
    assert "never spoke" in seen.detail(Rung.REDIS_STALE)


def test_an_instance_that_takes_nothing_anyway_is_no_degradation_however_old() -> None:
    """Only what is Ready by its last word is missed."""
    fleet = fleet_of("a", lifecycle=Lifecycle.UNHEALTHY)
    fleet.heard(9.0)
    assert look(fleet, 9.0).rungs == frozenset()


def test_the_silent_instances_are_named_but_not_hundreds_of_them() -> None:
    """One log line stays one line."""
    fleet = fleet_of(*(f"gpu-{number:02}" for number in range(12)))
    fleet.heard(6.0)
    detail = look(fleet, 6.0).detail(Rung.INSTANCE_STALE)
    assert "gpu-00, gpu-01, gpu-02, gpu-03, gpu-04 and 7 more" in detail


def test_a_rung_is_told_when_it_is_entered_and_when_it_is_left_and_not_between() -> None:
    """Looking often makes no noise."""
    ladder, fleet = Ladder(), fleet_of("a")
    told = []
    fleet.lost()
    for now in (0.0, 1.0, 3.0, 4.0, 60.0):
        told += ladder.steps(look(fleet, now), now)
    assert told == [Step(Rung.REDIS_STALE)]
    fleet.resync(State(1, (Record(instance("a"), 0.0, 10.0),), {}), 61.0)
    fleet.heard(66.0)
    assert list(ladder.steps(look(fleet, 66.0), 66.0)) == [Step(Rung.REDIS_STALE, 63.0)]
    assert list(ladder.steps(look(fleet, 66.5), 66.5)) == []
    assert ladder.entered == {rung: int(rung is Rung.REDIS_STALE) for rung in Rung}


def test_a_kv_log_that_has_stopped_is_a_rung_of_its_own_and_concerns_its_instance_alone() -> None:
    """Its instance reports and serves; only what it holds is guessed again."""
    seen = degradation(fleet_of("a", "b"), STALE_AFTER_S, 1.0, kv_frozen={"b"})
    assert seen.rungs == {Rung.KV_FEED}
    assert (seen.rungs_of("a"), seen.rungs_of("b")) == ((), (Rung.KV_FEED,))
    assert seen.detail(Rung.KV_FEED) == "no word of the cache of b; what was learned by routing counts there"
