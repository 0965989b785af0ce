"""Figures of classes, tenants and priorities, and of a window of a run, by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from extproc.core.values.request import RequestClass
from extproc.sim.report.figures import figures
from extproc.sim.report.groups import MOST_TENANTS
from extproc.sim.report.run import within
from tests.sim.report.runs import answer, refused, run


def test_tenants_have_their_requests_their_goodput_and_their_share_of_the_tokens() -> None:
    """Two answers of 111 tokens to one tenant, one of 111 and one of 222 to the other: 2 fifths, and 3."""
    found = figures(
        run(
            [
                answer(1.0, 1.1, tenant="a"),
                answer(3.0, 3.1, tenant="a"),  # too late
                answer(1.0, 1.1, tenant="b"),
                answer(1.0, 1.1, tenant="b", prompt_tokens=211),
                refused(tenant="b"),
            ]
        )
    ).by_tenant
    assert list(found) == ["a", "b"]
    assert (found["a"].requests, found["a"].goodput, found["a"].goodput_rps) == (2, 0.5, pytest.approx(0.01))
    assert (found["b"].served, found["b"].refused, found["b"].goodput) == (2, 1, pytest.approx(2 / 3))
    assert found["a"].token_share == pytest.approx(2 / 5)
    assert found["b"].token_share == pytest.approx(3 / 5)
    assert found["a"].ttft_p50_s == 2.0


def test_where_there_is_one_tenant_or_priority_nothing_is_told_of_it() -> None:
    """It would be the run's figures again."""
    found = figures(run([answer(1.0, 1.1), answer(1.0, 1.1)]))
    assert (found.by_tenant, found.by_priority, found.but_the_flood) == ({}, {}, None)


def test_of_many_tenants_the_largest_are_told() -> None:
    """Twenty of one request each, and one of two that comes last in the alphabet."""
    served = [answer(1.0, 1.1, tenant=f"t{number:02}") for number in range(20)]
    found = figures(run([*served, *(answer(1.0, 1.1, tenant="z") for _ in range(2))])).by_tenant
    assert len(found) == MOST_TENANTS
    assert found["z"].requests == 2


def test_priorities_come_from_the_most_urgent_on() -> None:
    """By number, not by text."""
    found = figures(run([answer(1.0, 1.1, priority=priority) for priority in (10, -1, 2)]))
    assert list(found.by_priority) == ["-1", "2", "10"]


def test_the_others_are_all_tenants_but_the_flood() -> None:
    """Their p99 is of their requests together."""
    served = [answer(1.0, 1.1, tenant="a"), answer(2.0, 2.1, tenant="b"), answer(9.0, 9.1, tenant="flood")]
    others = figures(run(served)).but_the_flood
    assert others is not None
    assert (others.requests, others.ttft_p50_s) == (2, 1.5)


def test_the_time_that_requests_were_held_counts_those_that_were_shed() -> None:
    """Two seconds of one that was refused and one of one that was served: 1.5 s."""
    served = [replace(answer(1.0, 1.1), held_s=1.0), replace(refused(), held_s=2.0)]
    found = figures(run(served)).by_class[RequestClass.INTERACTIVE.value]
    assert found.held_mean_s == 1.5


def test_a_window_judges_those_who_arrive_in_it_by_its_length() -> None:
    """Of arrivals at 0, 10, 19 and 20 s a window from 10 to 20 s has two: 0.2 a second."""
    whole = run([answer(1.0, 1.1, at_s=at_s) for at_s in (0.0, 10.0, 19.0, 20.0)])
    found = figures(within(whole, (10.0, 20.0)))
    assert (found.requests, found.goodput_rps) == (2, pytest.approx(0.2))
    assert figures(within(whole, None)) == figures(whole)
