"""The measurement of decisions measures a fleet at work."""

from __future__ import annotations

from extproc.bench.decide_time import _IN_FLIGHT, _Scene, decide_times


def test_one_timing_a_fleet_comes_back_and_prompts_are_partly_held() -> None:
    """Somebody holds the system prompt at the least."""
    timings = list(decide_times(2, (2, 3)))
    assert [timing.instances for timing in timings] == [2, 3]
    assert all(timing.holders for timing in timings)
    assert all(min(timing.decide_s, timing.after_report_s, timing.told_s) > 0 for timing in timings)


def test_as_many_requests_are_under_way_as_are_meant_to_be() -> None:
    """One begins and one ends."""
    scene = _Scene(3)
    scene.times(2)
    assert sum(scene._router.ledger.in_flight().values()) == _IN_FLIGHT * 3
