"""What several workers know, put together."""

from __future__ import annotations

from typing import Any

from extproc.observe.dashboard.merged import merged_held
from extproc.server.worker_views import merged_decisions, merged_fleet


def row(name: str, in_flight: int, peers: int, cooldown_s: float = 0.0) -> dict[str, Any]:
    return {"id": name, "in_flight": in_flight, "peers": peers, "cooldown_s": cooldown_s, "age_s": 0.1}


def test_requests_of_workers_are_summed_and_peers_are_those_of_other_machines() -> None:
    """Each worker counts its siblings among its peers; another machine has 4 requests there."""
    merged = merged_fleet([[row("a", 2, 7)], [row("a", 3, 6, cooldown_s=2.0)]])
    assert merged == [row("a", 5, 4, cooldown_s=2.0)]


def test_a_worker_that_has_not_heard_of_its_sibling_yet_makes_no_peers_less_than_none() -> None:
    """For some milliseconds the views differ."""
    assert merged_fleet([[row("a", 2, 0)], [row("a", 3, 0)]]) == [row("a", 5, 0)]


def test_an_instance_that_one_worker_alone_knows_is_shown() -> None:
    """One heard of it a moment sooner."""
    assert [each["id"] for each in merged_fleet([[row("a", 0, 0)], [row("a", 0, 0), row("b", 1, 0)]])] == ["a", "b"]


def test_what_is_held_is_summed_and_the_longest_wait_is_of_all() -> None:
    """By class and tenant."""
    one = {"held": 1, "by_class": {"batch": 1, "interactive": 0}, "by_tenant": {"x": 1}, "longest_s": 3.0}
    two = {"held": 3, "by_class": {"batch": 1, "interactive": 2}, "by_tenant": {"y": 2, "x": 1}, "longest_s": 1.0}
    assert merged_held([one, two]) == {
        "held": 4,
        "by_class": {"batch": 2, "interactive": 2},
        "by_tenant": {"x": 2, "y": 2},
        "longest_s": 3.0,
    }


def test_decisions_of_workers_stand_in_the_order_of_each() -> None:
    """The oldest first; what is as late in either stands together."""
    one, two = ([{"request": f"{name}{number}"} for number in range(most)] for name, most in (("a", 3), ("b", 1)))
    assert [each["request"] for each in merged_decisions([one, two])] == ["a0", "a1", "b0", "a2"]
