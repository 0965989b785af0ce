"""What each signal calls for, and in which words."""

from __future__ import annotations

from typing import Any

import pytest

from extproc.core.scaling.drivers import Call, Context, calls
from extproc.core.scaling.recommendation import Forecast, Signal


def context(**changes: Any) -> Context:
    values: dict[str, Any] = {
        "load": 3.0,
        "busiest": 0.8,
        "cold_start_s": 120.0,
        "ready": 4.0,
        "capacity_rps": 10.0,
    }
    return Context(**(values | changes))


def forecast(expected: float, planned: float) -> Forecast:
    return Forecast(now=3.0, horizon_s=120.0, expected=expected, planned=planned)


def called(signal: Signal, **changes: Any) -> Call | None:
    return next((each for each in calls(context(**changes)) if each.signal is signal), None)


def need(signal: Signal, **changes: Any) -> float:
    call = called(signal, **changes)
    return call.need if call else 0.0


def test_load_calls_for_room_beside_it() -> None:
    """A load of 3 instances that may fill 80 % of them needs 3.75."""
    assert need(Signal.LOAD) == pytest.approx(3.75)


def test_hardly_any_load_still_calls_for_an_instance() -> None:
    """Until the group is idle somebody may ask again, and a start takes its time."""
    call = called(Signal.LOAD, load=0.0, quiet_s=100.0, idle_s=900.0)
    assert call is not None
    assert 0.0 < call.need < 1.0
    assert call.why == "load 0.00 instances, 0 requests/s, and the group is not idle", "no word of what it would fill"


def test_the_forecast_calls_for_what_is_planned_within_a_cold_start() -> None:
    """The most until then, and its words name load, time and what is expected."""
    call = called(Signal.FORECAST, forecast=forecast(4.0, 5.2))
    assert call is not None
    assert call.need == pytest.approx(6.5)
    assert call.why == "load 5.20 instances at the most within 120 s, a cold start (expected 4.00, now 3.00)"


def test_a_backlog_that_those_here_work_off_in_time_calls_for_nothing() -> None:
    """One instance of four is free: 500 requests are 50 instance-seconds and are gone before anybody is Ready."""
    assert called(Signal.BACKLOG, waiting=500) is None


def test_a_backlog_that_grows_calls_for_who_works_it_off_soon_after_the_start() -> None:
    """At 2 instances too few 240 instance-seconds wait after 120 s; in 30 s 8 work them off, beside the load of 6."""
    assert need(Signal.BACKLOG, load=6.0, waiting=1) == pytest.approx(14.0, rel=0.01)


def test_what_comes_late_but_does_not_wait_is_no_backlog() -> None:
    """Of 4 that carry 4 within their SLOs but can do 8, none is left of 6; of 10 2 are, and fewer work that off."""
    assert called(Signal.BACKLOG, load=6.0, waiting=10, throughput=2.0) is None
    assert need(Signal.BACKLOG, load=10.0, throughput=2.0) == pytest.approx(10.0, rel=0.01)
    assert need(Signal.BACKLOG, load=12.0, throughput=2.0) == pytest.approx(14.0, rel=0.01)


def test_who_is_on_the_way_counts_against_the_backlog() -> None:
    """Two more after half the time leave half of it to be worked off; where they are enough, none is called beside."""
    assert need(Signal.BACKLOG, load=6.0, coming=((60.0, 1.0), (60.0, 1.0))) == pytest.approx(10.0, rel=0.01)
    enough = tuple((60.0, 1.0) for _ in range(9))
    assert need(Signal.BACKLOG, load=6.0, coming=enough) == pytest.approx(10.0)


def test_a_burst_that_is_expected_to_be_over_calls_for_less() -> None:
    """Load that falls to 1 within the cold start leaves nothing behind; nobody is started for it."""
    assert called(Signal.BACKLOG, load=6.0, forecast=forecast(1.0, 6.0)) is None


def test_nothing_is_said_of_a_backlog_before_requests_were_seen() -> None:
    """How long a request takes is not known then; a first instance is called for by others."""
    assert called(Signal.BACKLOG, waiting=50, capacity_rps=None) is None


@pytest.mark.parametrize(("usage", "expected"), [(None, 0.0), (0.85, 0.0), (0.96, 4.8)])
def test_kv_pressure_calls_for_room_where_blocks_run_out(usage: float | None, expected: float) -> None:
    """From 90 % on, so many instances that 80 % would be in use; unknown says nothing."""
    assert need(Signal.KV_PRESSURE, kv_usage=usage) == pytest.approx(expected)


LATE = {"judged": 200.0, "bad_share": 0.1, "settled_s": 300.0}


def test_late_answers_call_for_one_more_where_there_should_be_room() -> None:
    """Whatever computed capacity says."""
    assert need(Signal.SLO, **LATE) == pytest.approx(5.0)
    assert need(Signal.SLO, **(LATE | {"ready": 40.0})) == pytest.approx(41.0)


@pytest.mark.parametrize(
    "changes",
    [
        {"bad_share": 0.04},  # chance
        {"judged": 10.0},  # too few to tell
        {"settled_s": 60.0},  # of a time in which there was too much load, or other instances
        {"judged_s": 400.0},  # some of them, as they are few
        {"coming": ((50.0, 1.0),)},  # help is on its way
    ],
)
def test_late_answers_that_tell_nothing_new_call_for_nothing(changes: dict[str, Any]) -> None:
    """Each alone is reason enough to wait."""
    assert called(Signal.SLO, **(LATE | changes)) is None


def test_a_wish_calls_for_the_first_instance() -> None:
    """Where a model is asked for that nobody serves."""
    assert need(Signal.WANTED, ready=0.0, load=0.0, asked=True) == 1.0


def test_an_idle_group_is_called_for_by_nobody() -> None:
    """After `idle_s` without a request nothing remains, a forecast of next to nothing included."""
    quiet = {"load": 0.0, "quiet_s": 900.0, "idle_s": 900.0}
    assert calls(context(**quiet, forecast=forecast(0.001, 0.3))) == ()
    assert calls(context(**quiet, forecast=forecast(0.5, 0.9))) != ()
    assert calls(context(**quiet, waiting=1)) != ()


def test_the_signal_that_needs_the_most_comes_first() -> None:
    """Which is the one that decides."""
    made = calls(context(forecast=forecast(4.0, 5.0), kv_usage=0.95, ready=4.0))
    assert [each.signal for each in made] == [Signal.FORECAST, Signal.KV_PRESSURE, Signal.LOAD]
