"""A registry that lags makes all reports old alike; only an agent that falls behind the others has fallen silent."""

from __future__ import annotations

from collections import Counter

import msgspec

from extproc.core.fleet.fleet import Published
from extproc.core.router import Router
from extproc.core.values.decision import Reason
from tests.core.builders import instance, request, router

NAMES = ("a", "b", "c", "d")


def report(made: Router, name: str, read_at_s: float, now: float) -> None:
    """An agent's report arrives, however late."""
    known = made.fleet.get(name)
    assert known is not None
    late = msgspec.structs.replace(known.instance, age_s=now - read_at_s)
    made.take(made.fleet.apply(Published(instance=late), now))


def test_reports_that_are_all_late_do_not_send_everything_to_the_one_that_reported_last() -> None:
    """Each is 5 s old when it comes, as old as may be, and a moment later older."""
    made = router(*(instance(name) for name in NAMES), now=9.0)
    chosen: Counter[str] = Counter()
    for number in range(400):
        now = 10.0 + number * 0.01
        report(made, NAMES[number % 4], now - 5.0, now)
        decision = made.choose(request(str(number)), now + 0.005, number / 400)
        assert decision.chosen is not None
        assert not decision.rejected
        chosen[decision.chosen.instance.id] += 1
    assert max(chosen.values()) < 0.35 * 400


def test_one_agent_that_falls_behind_the_others_is_left_out() -> None:
    """By more than the operator allows."""
    made = router(*(instance(name) for name in NAMES))
    for name in NAMES[1:]:
        report(made, name, 5.5, 6.0)
    decision = made.choose(request(), 6.0, 0.0)
    assert [(r.instance_id, r.reason) for r in decision.rejected] == [("a", Reason.STALE)]
