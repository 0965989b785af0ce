"""Whom to take away from a pool, whom to bring back, and when who drains has had its time."""

from __future__ import annotations

from typing import Any

from extproc.core.scaling.leaving import Orders, orders
from extproc.core.values.instance import Instance, Lifecycle, Load
from tests.core.builders import instance


def told(instances: list[Instance], desired: int, **changes: Any) -> Orders:
    values: dict[str, Any] = {
        "warm_tokens": {},
        "ours": {},
        "draining_since_s": {},
        "at_s": 1000.0,
        "drain_s": 600.0,
        "grace_s": 10.0,
    }
    return orders(instances, desired, **(values | changes))


def state(name: str, lifecycle: Lifecycle, running: int | None = 3, **changes: Any) -> Instance:
    return instance(name, lifecycle=lifecycle, load=Load(running=running, waiting=0), **changes)


READY, LOADING, STARTING, DRAINING = Lifecycle.READY, Lifecycle.LOADING, Lifecycle.STARTING, Lifecycle.DRAINING


def test_starts_are_cancelled_before_anybody_drains() -> None:
    """Who is not Ready serves nobody: it is stopped at once, and who is furthest from Ready first."""
    pool = [state("a", READY), state("b", LOADING, ready_in_s=20.0), state("c", STARTING), state("d", LOADING)]
    assert told(pool, 3) == Orders(stop=("c",))
    assert told(pool, 0).stop[0] == "c"
    assert told(pool, 0).drain == ("a",)


def test_who_holds_the_fewest_warm_prefixes_leaves_first() -> None:
    """Warm tokens count before requests under way; these decide between equals."""
    pool = [state("a", READY, running=0), state("b", READY, running=9), state("c", READY, running=2)]
    assert told(pool, 2, warm_tokens={"a": 5000.0, "b": 100.0, "c": 100.0}).drain == ("c",)


def test_who_was_told_to_leave_is_told_again() -> None:
    """The order may take a while; meanwhile it falls on nobody else, even if its cache is warmer now."""
    pool = [state("a", READY), state("b", READY)]
    assert told(pool, 1, warm_tokens={"a": 9.0}, ours={pool[0].key: 990.0}).drain == ("a",)


def test_one_that_drains_comes_back_before_a_start() -> None:
    """It is there at once, and its cache is warm; the warmest first."""
    pool = [state("a", READY), state("b", DRAINING), state("c", DRAINING)]
    ours = {each.key: 900.0 for each in pool}
    assert told(pool, 2, ours=ours, warm_tokens={"c": 10.0}).resume == ("c",)


def test_one_that_drains_for_another_reason_is_not_brought_back() -> None:
    """A pod that Kubernetes ends drains too: only who was told by us can be told otherwise."""
    pool = [state("a", READY), state("b", DRAINING)]
    assert told(pool, 2).resume == ()


def test_who_drains_is_stopped_when_nothing_runs_there_any_more() -> None:
    """Not before a report that is younger than the order, and not while a request is under way."""
    pool = [state("a", READY), state("b", DRAINING, running=0), state("c", DRAINING, running=1)]
    since = {each.key: 985.0 for each in pool}
    assert told(pool, 1, draining_since_s=since).stop == ("b",)
    assert told(pool, 1, draining_since_s={each.key: 995.0 for each in pool}).stop == ()


def test_who_drains_too_long_is_stopped_anyway() -> None:
    """After `drain_s`; an engine that does not tell what runs there has that long as well."""
    pool = [state("a", READY), state("b", DRAINING, running=7), state("c", DRAINING, running=None)]
    since = {each.key: 390.0 for each in pool}
    assert told(pool, 1, draining_since_s=since).stop == ("b", "c")
    assert told(pool, 1, draining_since_s={each.key: 500.0 for each in pool}).stop == ()


def test_who_has_failed_after_our_order_to_drain_is_stopped_in_the_same_time() -> None:
    """It shows as Unhealthy then. One that we have not told to go may recover for longer."""
    pool = [state("a", READY), state("b", Lifecycle.UNHEALTHY), state("c", Lifecycle.UNHEALTHY)]
    assert told(pool, 1, ours={pool[1].key: 400.0}).stop == ("b",)
    assert told(pool, 1, ours={pool[1].key: 401.0}).stop == ()


def test_a_stuck_start_stands_in_for_nobody_and_is_let_alone() -> None:
    """Nobody leaves on its account, and it is not stopped: a slow start would never come to its end."""
    pool = [state("a", READY), state("b", LOADING)]
    assert told(pool, 1, stuck={pool[1].key}) == Orders()


def test_who_is_broken_for_too_long_is_stopped() -> None:
    """An engine that will not recover, or a start that comes to no end, costs as much as one that serves."""
    pool = [state("a", READY), state("b", Lifecycle.UNHEALTHY), state("c", LOADING), state("d", Lifecycle.UNHEALTHY)]
    since = {each.key: at_s for each, at_s in zip(pool[1:], (300.0, 300.0, 301.0), strict=True)}
    stuck, ours = {pool[2].key}, {pool[1].key: 200.0}
    changes: dict[str, Any] = {"stuck": stuck, "broken_since_s": since, "patience_s": 700.0}
    assert told(pool, 1, **changes) == told(pool, 1, **changes, ours=ours) == Orders(stop=("b", "c"))


def test_one_that_is_shaken_is_not_missed_and_nobody_leaves_on_its_account() -> None:
    """Who drains is not brought back for it; and if it fails for good, the Ready one is needed."""
    pool = [state("a", READY), state("b", Lifecycle.UNHEALTHY), state("c", DRAINING)]
    ours = {pool[2].key: 990.0}
    assert told(pool, 2, ours=ours, shaken=1) == told(pool, 1, ours=ours, shaken=1) == Orders()
    assert told(pool, 2, ours=ours).resume == ("c",)
