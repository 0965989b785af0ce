"""How an autoscaler is judged: by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from extproc.core.values.request import RequestClass
from extproc.sim.autoscale_suite import Kind
from extproc.sim.fleet.spec import Conditions, FleetSpec, InstanceSpec
from extproc.sim.report.autoscale import Outcome, as_json, frontier, markdown, misses, standings, text
from extproc.sim.report.run import Change, Fate, Run, Scaled, Served, Start
from extproc.sim.report.scaling import scaling_figures
from extproc.sim.traffic.arrival import Arrival


def outcome(scaler: str, gpu_hours: float, violations: float, kind: Kind = Kind.TRACE, **more: object) -> Outcome:
    """One of 1,000 requests."""
    return replace(
        Outcome(
            kind=kind,
            trace="days",
            start_s=180.0,
            scaler=scaler,
            requests=1000.0,
            violations=violations,
            unserved=0.0,
            gpu_hours=gpu_hours,
            money=None,
            instances_mean=2.0,
            instances_peak=4.0,
            turns_per_hour=1.0,
            starts=3.0,
            starts_in_time=None,
            ttft_p99_s=1.5,
        ),
        **more,
    )


RIVALS = [outcome("keda_requests?target=8", 20.0, 9.0), outcome("keda_requests?target=16", 10.0, 99.0)]


def test_the_frontier_is_of_those_that_nobody_beats_in_both() -> None:
    """Whoever they are."""
    worse = [outcome("hpa_gpu", 30.0, 9.0), outcome("hpa_queue", 15.0, 120.0)]
    assert frontier([*RIVALS, *worse]) == [RIVALS[1], RIVALS[0]]


def test_nobody_is_held_against_who_knows_what_will_come() -> None:
    """It is a bound, and no rival; nor is it judged as ours."""
    ours, bound = outcome("extproc", 20.0, 9.0), outcome("clairvoyant?room=1.2", 5.0, 0.0)
    assert standings([*RIVALS, ours, bound]) == standings([*RIVALS, ours])


@pytest.mark.parametrize(
    ("gpu_hours", "violations", "of_violations", "of_hours", "meets"),
    [
        (20.0, 4.0, 4 / 9, None, True),  # half as many as the best at the same price; no rival is so good
        (20.0, 9.0, 1.0, 1.0, False),
        (16.0, 9.0, 9 / (100 ** (0.4) * 10**0.6 - 1), 0.8, True),  # a fifth fewer hours at equal violations
        (15.0, 99.0, 99 / (1000**0.5 - 1), 1.5, False),  # between two targets: the geometric mean
        (8.0, 99.0, None, 0.8, True),
        (8.0, 500.0, None, 0.8, True),  # no rival is so bad: the cheapest is held against it
        (9.0, 99.0, None, 0.9, False),
        (25.0, 0.0, 0.0, None, True),  # no rival is so good
    ],
)
def test_ours_is_held_against_the_frontier_at_its_hours_and_at_its_violations(
    gpu_hours: float, violations: float, of_violations: float | None, of_hours: float | None, meets: bool
) -> None:
    """Either target is enough."""
    (stands,) = standings([*RIVALS, outcome("extproc", gpu_hours, violations)])
    assert stands.violations == (None if of_violations is None else pytest.approx(of_violations))
    assert stands.gpu_hours == (None if of_hours is None else pytest.approx(of_hours))
    assert stands.meets is meets


def test_a_place_is_missed_if_none_of_our_settings_meets_a_target() -> None:
    """One line, with how far each is."""
    missed = [outcome("extproc", 20.0, 9.0), outcome("extproc?quantile=0.9", 19.0, 12.0)]
    (line,) = misses([*RIVALS, *missed])
    assert line.startswith("days, start in 180 s: extproc 1.00 x the violations")
    assert misses([*RIVALS, *missed, outcome("extproc?busiest=0.9", 20.0, 3.0)]) == []


def test_unsteadiness_is_a_miss_where_load_is_steady() -> None:
    """More than two changes of direction an hour."""
    steady = outcome("extproc", 20.0, 0.0, Kind.STEADY, turns_per_hour=2.5)
    assert misses([steady]) == ["days: extproc changes its direction 2.5 times an hour"]
    assert misses([replace(steady, turns_per_hour=2.0)]) == []


def test_tables_and_json_tell_the_same() -> None:
    """A row for each, and one for how ours stands."""
    found = [*RIVALS, outcome("extproc", 20.0, 4.0)]
    for shown in (text(found), markdown(found)):
        assert "keda_requests?target=16" in shown
        assert "9.90%" in shown
        assert "0.44 x" in shown
        assert "met" in shown
    told = as_json(found)
    assert [one["scaler"] for one in told["outcomes"]] == [one.scaler for one in found]
    assert told["standings"][0]["meets"] is True
    assert told["misses"] == []


def _run(wants: list[tuple[float, int]], starts: tuple[Start, ...] = ()) -> Run:
    places = tuple(InstanceSpec(id=f"a-{n}", models=("m",), tensor_parallel=4, price_per_hour=8.0) for n in range(2))
    served = tuple(
        Served(
            arrival=Arrival(at_s=at_s, prompt_tokens=10, output_tokens=2, request_class=RequestClass.INTERACTIVE),
            arrived_s=at_s,
            replica=0,
            fate=Fate.SERVED,
            instance_id="a-0",
            ttft_s=0.1,
            duration_s=0.2,
            cached_tokens=0,
            preemptions=0,
            attempts=1,
        )
        for at_s in map(float, range(0, 3600, 10))
    )
    return Run(
        policy="p",
        traffic="t",
        fleet=FleetSpec(name="f", instances=places),
        conditions=Conditions(),
        served=served,
        samples=(),
        up_s={"a-0": 3600.0, "a-1": 900.0},
        ended_s=3600.0,
        scaled=Scaled(tuple(Change(at_s, wanted, wanted, wanted) for at_s, wanted in wants), starts),
    )


def test_gpu_hours_count_every_gpu_of_an_instance_while_it_was_up() -> None:
    """Four for an hour, four for a quarter; money is by the instance."""
    figures = scaling_figures(_run([(0.0, 1), (10.0, 2), (910.0, 1)]), [True] * 350 + [False] * 10)
    assert figures is not None
    assert figures.gpu_hours == pytest.approx(5.0)
    assert figures.money == pytest.approx(10.0)
    assert figures.violations == 10
    assert figures.instances_mean == pytest.approx(1.25)
    assert figures.instances_peak == 2
    assert figures.direction_changes_per_hour == 1.0
    assert figures.starts_in_time is None


@pytest.mark.parametrize(
    ("wants", "turns"), [([1, 2, 3, 4], 0), ([1, 2, 2, 1], 1), ([1, 2, 1, 2, 1], 3), ([4, 3, 5, 6, 2], 2), ([1], 0)]
)
def test_a_turn_is_an_up_after_a_down_or_a_down_after_an_up(wants: list[int], turns: int) -> None:
    """Several steps in one direction are none."""
    figures = scaling_figures(_run([(10.0 * place, count) for place, count in enumerate(wants)]), [True] * 360)
    assert figures is not None
    assert figures.direction_changes_per_hour == turns


def test_a_start_came_in_time_if_hardly_anybody_was_served_badly_meanwhile() -> None:
    """Requests 100 to 110 were bad: one start was under way then, one later."""
    good = [not 100 <= place < 110 for place in range(360)]
    starts = (Start("a-1", 950.0, 1130.0), Start("a-1", 2000.0, 2180.0))
    figures = scaling_figures(_run([(0.0, 1)], starts), good)
    assert figures is not None
    assert figures.starts == 2
    assert figures.starts_in_time == 0.5
