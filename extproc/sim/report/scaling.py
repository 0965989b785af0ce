"""The figures of a run's autoscaler: what it cost, what it let happen, and how steady it was."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from extproc.sim.report.run import Change, Run, Start

LATE_SHARE = 0.01  # a start came in time if no more of the requests that came meanwhile were served badly


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingFigures:
    """GPU-hours and instances are of the whole run, violations of the requests that are judged."""

    gpu_hours: float
    money: float | None  # price of the instances while they were up; None: some have none
    violations: int  # requests that were not good: late, slow, refused or failed
    instances_mean: float  # paid for
    instances_peak: int
    direction_changes_per_hour: float
    starts: int
    starts_in_time: float | None  # share of them; None without any


def scaling_figures(run: Run, good: Sequence[bool]) -> ScalingFigures | None:
    """None if no autoscaler was at work. `good` tells of each request of `run.served` whether it was."""
    scaled = run.scaled
    if scaled is None:
        return None
    up = [(spec, run.up_s.get(spec.id, 0.0)) for spec in run.fleet.instances]
    unpriced = any(seconds and spec.price_per_hour is None for spec, seconds in up)
    up_s = sum(seconds for _, seconds in up)
    return ScalingFigures(
        gpu_hours=sum(seconds * spec.tensor_parallel for spec, seconds in up) / 3600.0,
        money=None if unpriced else sum(s * (spec.price_per_hour or 0.0) for spec, s in up) / 3600.0,
        violations=len(good) - sum(good),
        instances_mean=up_s / run.ended_s if run.ended_s else 0.0,
        instances_peak=max((change.up for change in scaled.changes), default=0),
        direction_changes_per_hour=_turns(scaled.changes) / (run.ended_s / 3600.0) if run.ended_s else 0.0,
        starts=len(scaled.starts),
        starts_in_time=_in_time(run, good, scaled.starts),
    )


def _turns(changes: Sequence[Change]) -> int:
    """How often up follows down, or down up, in the number of instances that are wanted."""
    steps = [after.wanted > before.wanted for before, after in pairwise(changes) if after.wanted != before.wanted]
    return sum(before is not after for before, after in pairwise(steps))


def _in_time(run: Run, good: Sequence[bool], starts: Sequence[Start]) -> float | None:
    """Share of starts before whose end hardly anybody was served badly."""
    order = sorted(range(len(run.served)), key=lambda index: run.served[index].arrived_s)
    arrived_s = [run.served[index].arrived_s for index in order]
    bad = [0, *accumulate(not good[index] for index in order)]
    judged = [start for start in starts if arrived_s and start.ordered_s >= arrived_s[0]]
    in_time = 0
    for start in judged:
        first, end = bisect_left(arrived_s, start.ordered_s), bisect_right(arrived_s, start.ready_s)
        in_time += bad[end] - bad[first] <= LATE_SHARE * (end - first)
    return in_time / len(judged) if judged else None
