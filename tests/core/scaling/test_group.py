"""The counts of a group from look to look: up at once, down by steps, and swaps that never leave a gap."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from extproc.core.scaling.behaviour import Behaviour
from extproc.core.scaling.drivers import Call, Context
from extproc.core.scaling.explained import explained
from extproc.core.scaling.group import Plan, lowered, offers, plan
from extproc.core.scaling.hardware import Offer
from extproc.core.scaling.recommendation import Signal
from tests.core.scaling.play import pool

ONE = Offer(capacity=1.0, price=1.0, least=1, most=30)
DEAR = Offer(capacity=1.0, price=5.0, least=0, most=10)
CHEAP = Offer(capacity=1.0, price=1.0, least=0, most=10)


def planned(load: float, targets: tuple[int, ...], ready: tuple[int, ...], *given: Offer, **changes: Any) -> Plan:
    """A look at a time of which enough is known: little was needed for long."""
    behaviour = Behaviour()
    for step in range(61):
        behaviour.needed(10.0 * step, changes.get("needed", 0.1), 300.0)
    context = Context(load=load, busiest=1.0, cold_start_s=120.0, ready=float(sum(ready)), capacity_rps=10.0)
    return plan(
        context,
        given,
        targets,
        ready,
        behaviour,
        at_s=610.0,
        dwell_s=300.0,
        regret_s=900.0,
        later=changes.get("later", 0.0),
        surely=changes.get("surely", 0.0),
    )


def test_a_rise_is_followed_to_its_end() -> None:
    """From one to nine in one look."""
    assert planned(8.7, (1,), (9,), ONE).counts == (9,)


def test_a_fall_is_followed_step_by_step() -> None:
    """A quarter of twenty go first."""
    assert planned(2.0, (20,), (20,), ONE).counts == (15,)


def test_what_may_be_needed_again_stays() -> None:
    """While the forecast, or the last dwell, needs them."""
    assert planned(2.0, (8,), (8,), ONE, later=7.95, surely=9.0).counts == (8,)
    assert planned(2.0, (8,), (8,), ONE, needed=7.95).counts == (8,)


def test_a_need_at_the_edge_lets_nobody_go() -> None:
    """A tenth of an instance must be left over."""
    assert planned(2.95, (4,), (4,), ONE).counts == (4,)
    assert planned(2.85, (4,), (4,), ONE).counts == (3,)


def test_nobody_leaves_whom_one_that_comes_is_to_replace() -> None:
    """Only what is Ready carries load: of six, two are Ready, and both stay."""
    assert planned(2.0, (6,), (2,), ONE).counts == (5,)
    assert lowered((3,), (2,), (2,), [ONE], need=2.0) == (2,)
    assert lowered((2,), (1,), (2,), [ONE], need=2.0) == (2,)


def test_a_swap_starts_the_new_ones_before_the_old_ones_go() -> None:
    """Dear ones stay until those that replace them are Ready, then leave by steps."""
    first = planned(3.8, (4, 0), (4, 0), DEAR, CHEAP, needed=3.8)
    assert first.counts == (4, 4)
    assert planned(3.8, first.counts, (4, 1), DEAR, CHEAP, needed=3.8).counts == (3, 4)
    assert planned(3.8, (1, 4), (1, 3), DEAR, CHEAP, needed=3.8).counts == (1, 4)
    assert planned(3.8, (1, 4), (1, 4), DEAR, CHEAP, needed=3.8).counts == (0, 4)


def test_a_rise_onto_other_hardware_lets_nobody_go_before_it_is_ready() -> None:
    """One big instance costs less than four small ones; the three that are there carry until it is Ready."""
    small = Offer(capacity=1.0, price=1.0, least=0, most=16)
    big = Offer(capacity=8.0, price=3.0, least=0, most=4)
    assert planned(3.4, (3, 0), (3, 0), small, big, needed=3.4).counts == (3, 1)
    assert planned(3.4, (3, 1), (3, 0), small, big, needed=3.4).counts == (3, 1)
    assert planned(3.4, (3, 1), (3, 1), small, big, needed=3.4).counts == (2, 1)


def test_while_others_are_on_the_way_those_that_they_replace_carry_what_is_needed_soon() -> None:
    """Load rises until they are there. Nor is a start called off that will be over sooner."""
    small = Offer(capacity=1.0, price=1.0, least=0, most=16)
    big = Offer(capacity=8.0, price=3.0, least=0, most=4)
    assert lowered((4, 2), (2, 2), (4, 1), [small, big], need=9.0) == (3, 2)
    assert lowered((4, 2), (2, 2), (4, 1), [small, big], need=9.0, soon=11.8) == (4, 2)
    assert lowered((4, 2), (2, 2), (2, 1), [small, big], need=9.0, soon=11.8) == (4, 2)
    assert lowered((4, 2), (2, 2), (4, 2), [small, big], need=9.0, soon=11.8) == (3, 2)


def test_an_unknown_price_makes_all_cost_the_same() -> None:
    """One price alone says nothing of which is the cheaper."""
    pools = (pool("a", price_per_hour=9.0), pool("b"))
    assert [each.price for each in offers(pools, (1.0, 1.0), (60.0, 60.0), {})] == [1.0, 1.0]
    assert [each.price for each in offers(pools, (1.0, 1.0), (60.0, 60.0), {"b": 2.0})] == [9.0, 2.0]


def words(made: Plan, *given: Offer) -> tuple[Signal, int, int]:
    """The deciding signal, its instances, and the count without it."""
    context = Context(load=1.0, busiest=1.0, cold_start_s=120.0, ready=1.0)
    drivers, without = explained(0, made, given, context)
    return drivers[0].signal, drivers[0].instances, without


def test_the_deciding_signal_is_told_first_and_what_would_be_without_it() -> None:
    """A load of 8.7 calls for nine; without it the operator's least is one."""
    assert words(planned(8.7, (1,), (9,), ONE), ONE) == (Signal.LOAD, 9, 1)


def test_what_is_called_for_since_a_moment_only_is_told() -> None:
    """Two looks make a need. Else 8.7 would seem to be carried by eight."""
    made = planned(8.7, (8,), (8,), ONE)
    chance = replace(made, counts=(8,), need=7.9)
    context = Context(load=8.7, busiest=1.0, cold_start_s=120.0, ready=8.0)
    for each, instances, ending in ((made, 9, "of what they carry"), (chance, 8, "; 8.70 not for long enough yet")):
        said, _ = explained(0, each, [ONE], context)
        by_load = next(driver for driver in said if driver.signal is Signal.LOAD)
        assert by_load.instances == instances
        assert by_load.why.endswith(ending)


def test_what_is_called_for_since_a_moment_only_is_not_what_would_be_without_the_signal_either() -> None:
    """Of two that call for more since one look, the one does not have what the other is not given."""
    calls = (Call(Signal.BACKLOG, 12.7, ""), Call(Signal.FORECAST, 11.6, ""))
    assert words(Plan(counts=(3,), made=calls, need=2.9, keep=2.9, wait_s=60.0), ONE) == (Signal.BACKLOG, 3, 3)


def test_what_is_held_is_told_as_dwell() -> None:
    """With what would be enough now."""
    assert words(planned(2.0, (8,), (8,), ONE, needed=7.95), ONE) == (Signal.DWELL, 8, 2)


def test_a_need_beyond_the_bounds_is_told_as_most() -> None:
    """With what would be desired without them."""
    few = Offer(capacity=1.0, price=1.0, least=0, most=4)
    assert words(planned(8.7, (1,), (9,), few), few) == (Signal.MOST, 4, 9)


KV, LOAD, FORECAST = Signal.KV_PRESSURE, Signal.LOAD, Signal.FORECAST


@pytest.mark.parametrize(
    ("given", "calls", "counts", "decided"),
    [
        # What may fail stands beside what is called for, and is no need of its own.
        (
            [
                Offer(capacity=1.0, price=1.9, least=0, most=10),
                Offer(capacity=2.0, price=1.0, least=1, most=20, spare=1),
            ],
            [(KV, 8.5), (FORECAST, 7.64)],
            (1, 5),
            (KV, 1, 0),
        ),
        # The other pool is full by its most, so that what is dearer is called for as well: nothing is held there.
        ([DEAR, CHEAP], [(LOAD, 40.0)], (10, 10), (LOAD, 10, 0)),
        # One that needs less would have this pool alone; the one that decides has it for the operator's least only.
        (
            [
                Offer(capacity=0.45, price=1.9, least=1, most=4),
                Offer(capacity=1.0, price=4.1, least=1, most=20, spare=1),
            ],
            [(Signal.SLO, 8.61), (Signal.BACKLOG, 5.03), (KV, 0.86)],
            (1, 10),
            (Signal.LEAST, 1, 0),
        ),
        # What the other pool has by its least is part of what would be without the signal.
        (
            [Offer(capacity=0.45, price=1.9, least=1, most=20), Offer(capacity=1.0, price=4.1, least=1, most=20)],
            [(KV, 8.83), (FORECAST, 6.45)],
            (18, 1),
            (KV, 18, 13),
        ),
    ],
    ids=["spare", "full", "least", "least of another"],
)
def test_of_two_kinds_of_hardware_the_signal_that_needs_the_most_decides(
    given: list[Offer], calls: list[tuple[Signal, float]], counts: tuple[int, int], decided: tuple[Signal, int, int]
) -> None:
    """Of the first pool: which signal decided, its count, and what the need of all others would have."""
    made = tuple(Call(signal, need, "") for signal, need in calls)
    assert words(Plan(counts=counts, made=made, need=made[0].need, keep=made[0].need, wait_s=60.0), *given) == decided
