"""Instances that fail or never become Ready: when they are missed, and when they are stopped."""

from __future__ import annotations

import msgspec

from extproc.core.values.instance import Lifecycle, Load
from tests.core.builders import instance
from tests.core.scaling.test_scaler import looked, scaler


def test_one_that_is_unhealthy_is_missed_after_three_looks_and_stopped_after_its_time() -> None:
    """A few probes that failed are no reason to start another; what is broken for `drain_s` only costs."""
    watched = scaler(least=2, start_s=60.0)
    ready = instance("a")
    failed = instance("b", lifecycle=Lifecycle.UNHEALTHY)
    assert looked(watched, 0.0, ready, instance("b")).ready == 2
    made = {at_s: looked(watched, at_s, ready, failed) for at_s in (5.0, 10.0, 15.0, 20.0, 600.0, 605.0)}
    seen = [(each.desired, each.ready, each.broken, each.stop) for each in made.values()]
    assert seen == [(2, 2, 0, ())] * 3 + [(2, 1, 1, ())] * 2 + [(2, 1, 1, ("b",))]
    well = looked(watched, 610.0, ready, instance("b"))
    assert (well.ready, well.broken) == (2, 0)
    again = looked(watched, 615.0, ready, failed)
    assert (again.ready, again.stop) == (2, ())


def test_one_that_is_stuck_is_broken_and_stopped_after_as_long_again() -> None:
    """Three cold starts of 300 s until it is stuck, then three more; who is asleep is neither."""
    patient = scaler(least=2, start_s=300.0)
    loading = instance("b", lifecycle=Lifecycle.LOADING, load=Load())
    asleep = instance("c", lifecycle=Lifecycle.LOADING, load=Load(), asleep=True)
    told = [looked(patient, at_s, instance("a"), loading, asleep) for at_s in (0.0, 900.0, 905.0, 1800.0, 1805.0)]
    assert [(each.broken, each.stop) for each in told] == [(0, ()), (0, ()), (1, ()), (1, ()), (1, ("b",))]


def test_a_start_that_no_agent_tells_of_is_not_broken() -> None:
    """It has no address: whoever has asked for it gives it up."""
    patient = scaler(least=2, start_s=60.0)
    asked = instance("b", lifecycle=Lifecycle.STARTING, load=Load(), address="")
    told = [looked(patient, at_s, instance("a"), asked) for at_s in (0.0, 200.0, 2000.0)]
    assert [(each.coming, each.broken, each.stop) for each in told] == [(1, 0, ()), (0, 0, ()), (0, 0, ())]


def test_one_that_tells_when_it_will_be_ready_is_stuck_no_more() -> None:
    """Its time begins anew."""
    patient = scaler(least=2, start_s=300.0)
    loading = instance("b", lifecycle=Lifecycle.LOADING, load=Load())
    for at_s, ready_in_s, broken in ((0.0, None, 0), (905.0, None, 1), (1000.0, 2000.0, 0), (1900.0, None, 1)):
        made = looked(patient, at_s, instance("a"), msgspec.structs.replace(loading, ready_in_s=ready_in_s))
        assert (made.broken, made.stop) == (broken, ())


def test_one_that_fails_after_our_order_to_drain_counts_as_ready_no_more() -> None:
    """It was to go anyway: nobody waits for it to come back."""
    calm = scaler(least=1, dwell_s=10.0, idle_s=1e6)
    pair = [instance("a"), instance("b")]
    assert [looked(calm, 5.0 * step, *pair, requests=1.0) for step in range(40)][-1].drain == ("a",)
    made = looked(calm, 200.0, instance("a", lifecycle=Lifecycle.UNHEALTHY), pair[1], requests=1.0)
    assert (made.ready, made.broken) == (1, 1)


def test_a_backlog_is_not_met_with_starts_while_one_is_shaken() -> None:
    """Both would work it off in seconds; one alone would not, and more are called for once the other is missed."""
    busy = scaler(least=2, start_s=60.0)
    pair = [instance("a"), instance("b")]
    for step in range(60):
        looked(busy, 5.0 * step, *pair, requests=100.0 * step)
    pressed = instance("a", load=Load(running=50, waiting=1000))
    failed = instance("b", lifecycle=Lifecycle.UNHEALTHY)
    desired = [looked(busy, 5.0 * step, pressed, failed, requests=100.0 * step).desired for step in range(60, 66)]
    assert desired[:3] == [2, 2, 2]
    assert desired[-1] > 2
