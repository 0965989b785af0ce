"""What the suite `autoscale` shows: violations against GPU-hours of each autoscaler, and how ours stands.

What an autoscaler can do is the line through its targets. Ours is held against the frontier of all rivals with all
their targets: at the GPU-hours that ours took, how many violations would the best of them have had; and at as many
violations, how many GPU-hours. Between two points of the frontier both are read off a straight line, violations on a
logarithmic scale, which is what an operator gets by a target between two.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean
from typing import Any

from extproc.sim.autoscale_suite import Kind, Scenario
from extproc.sim.report.columns import plain, seconds, share, whole
from extproc.sim.report.figures import Figures
from extproc.sim.report.table import aligned
from extproc.sim.scaling.catalog import CLAIRVOYANT, OURS

TARGET_VIOLATIONS = 0.5  # of the best rival's, at no more GPU-hours
TARGET_GPU_HOURS = 0.8  # of the best rival's, at no more violations
TARGET_TURNS = 2.0  # an hour, on steady load


@dataclass(frozen=True, slots=True)
class Outcome:
    """One workload, time to start and autoscaler; over several seeds means."""

    kind: Kind
    trace: str
    start_s: float
    scaler: str
    requests: float
    violations: float
    unserved: float  # refused or failed
    gpu_hours: float
    money: float | None
    instances_mean: float
    instances_peak: float
    turns_per_hour: float
    starts: float
    starts_in_time: float | None
    ttft_p99_s: float | None

    @property
    def is_ours(self) -> bool:
        """Whether it is our autoscaler."""
        return self.scaler.partition("?")[0] == OURS

    @property
    def is_rival(self) -> bool:
        """Whether ours is held against it: nobody can have the one that knows what will come."""
        return self.scaler.partition("?")[0] not in (OURS, CLAIRVOYANT)

    @property
    def violation_share(self) -> float:
        """Of all requests that are judged."""
        return self.violations / self.requests if self.requests else 0.0


@dataclass(frozen=True, slots=True)
class Standing:
    """One of our points against the rivals' frontier; None: no rival is so cheap, or so good."""

    outcome: Outcome
    violations: float | None  # of the rivals' at the same GPU-hours; 0 where both have none
    gpu_hours: float | None  # of the rivals' at the same violations

    @property
    def meets(self) -> bool:
        """Whether either target is met."""
        fewer = self.violations is not None and self.violations <= TARGET_VIOLATIONS
        return fewer or (self.gpu_hours is not None and self.gpu_hours <= TARGET_GPU_HOURS)


def outcomes(results: Iterable[tuple[Scenario, Figures]]) -> list[Outcome]:
    """One for each workload, time to start and autoscaler."""
    gathered: dict[tuple[str, float, str], tuple[Scenario, list[Figures]]] = {}
    for scenario, figures in results:
        key = scenario.setup.trace, scenario.start_s, scenario.scaler
        gathered.setdefault(key, (scenario, []))[1].append(figures)
    return [_outcome(scenario, figures) for scenario, figures in gathered.values()]


def standings(found: Sequence[Outcome]) -> list[Standing]:
    """Of each of our points in the workloads that are held against the target."""
    return [
        _standing(one, frontier([rival for rival in found if _same(rival, one) and rival.is_rival]))
        for one in found
        if one.is_ours and one.kind is Kind.TRACE
    ]


def frontier(rivals: Sequence[Outcome]) -> list[Outcome]:
    """Those that nobody beats in both, from the cheapest to the one with the fewest violations."""
    best: list[Outcome] = []
    for one in sorted(rivals, key=lambda one: (one.gpu_hours, one.violations)):
        if not best or one.violations < best[-1].violations:
            best.append(one)
    return best


def misses(found: Sequence[Outcome]) -> list[str]:
    """A line for each workload and time to start in which none of our points meets a target, and for unsteadiness."""
    lines = []
    by_place: dict[tuple[str, float], list[Standing]] = {}
    for stands in standings(found):
        by_place.setdefault((stands.outcome.trace, stands.outcome.start_s), []).append(stands)
    for (trace, start_s), members in by_place.items():
        if not any(each.meets for each in members):
            told = "; ".join(f"{each.outcome.scaler} {_told(each)}" for each in members)
            lines.append(f"{trace}, start in {start_s:g} s: {told}")
    lines += [
        f"{one.trace}: {one.scaler} changes its direction {one.turns_per_hour:.1f} times an hour"
        for one in found
        if one.is_ours and one.kind is Kind.STEADY and one.turns_per_hour > TARGET_TURNS
    ]
    return lines


def as_json(found: Sequence[Outcome]) -> dict[str, Any]:
    """`{"outcomes": [...], "standings": [...], "misses": [...]}`, numbers with six digits."""
    return {
        "outcomes": [
            {name: _plain(getattr(one, name)) for name in Outcome.__slots__} | {"good": _plain(1 - one.violation_share)}
            for one in found
        ],
        "standings": [
            {
                "trace": each.outcome.trace,
                "start_s": each.outcome.start_s,
                "scaler": each.outcome.scaler,
                "violations_of_best": _plain(each.violations),
                "gpu_hours_of_best": _plain(each.gpu_hours),
                "meets": each.meets,
            }
            for each in standings(found)
        ],
        "misses": misses(found),
    }


def text(found: Sequence[Outcome]) -> str:
    """Tables for a terminal."""
    parts = ["\n".join([title, *aligned(rows)]) for title, rows in _tables(found)]
    rows = _standing_rows(found)
    return "\n\n".join([*parts, *(["\n".join([_STANDING, *aligned(rows)])] if len(rows) > 1 else [])])


def markdown(found: Sequence[Outcome]) -> str:
    """The same for a page of documentation."""
    tables = _tables(found)
    if len(rows := _standing_rows(found)) > 1:
        tables.append((_STANDING, rows))
    parts = []
    for title, (heads, *body) in tables:
        lines = [f"| {' | '.join(row)} |" for row in [heads, ["---"] + ["---:"] * (len(heads) - 1), *body]]
        parts.append("\n".join([f"### {title[0].upper()}{title[1:]}", "", *lines]))
    return "\n\n".join(parts)


_STANDING = "ours against the frontier of all rivals: violations at as many GPU-hours, GPU-hours at as many violations"


def _tables(found: Sequence[Outcome]) -> list[tuple[str, list[list[str]]]]:
    groups: dict[tuple[str, float], list[Outcome]] = {}
    for one in found:
        groups.setdefault((one.trace, one.start_s), []).append(one)
    return [
        (f"{trace}, an instance starts in {start_s:g} s", [_HEADS, *map(_row, members)])
        for (trace, start_s), members in groups.items()
    ]


_HEADS = [
    *("autoscaler", "violations", "of all", "unserved", "GPU h", "cost", "mean", "peak"),
    *("turns/h", "starts", "in time", "TTFT99"),
]


def _row(one: Outcome) -> list[str]:
    return [
        one.scaler,
        whole(one.violations),
        f"{one.violation_share:.2%}",
        whole(one.unserved),
        plain(one.gpu_hours),
        "?" if one.money is None else plain(one.money),
        plain(one.instances_mean),
        whole(one.instances_peak),
        plain(one.turns_per_hour),
        whole(one.starts),
        "?" if one.starts_in_time is None else share(one.starts_in_time),
        "?" if one.ttft_p99_s is None else seconds(one.ttft_p99_s),
    ]


def _standing_rows(found: Sequence[Outcome]) -> list[list[str]]:
    rows = [["workload", "start", "ours", "violations", "GPU h", "target"]]
    for each in standings(found):
        one = each.outcome
        ratios = ["?" if ratio is None else f"{ratio:.2f} x" for ratio in (each.violations, each.gpu_hours)]
        rows.append([one.trace, f"{one.start_s:g} s", one.scaler, *ratios, "met" if each.meets else "missed"])
    return rows


def _standing(ours: Outcome, best: Sequence[Outcome]) -> Standing:
    points = [(one.gpu_hours, math.log1p(one.violations)) for one in best]
    at_hours = _read(points, ours.gpu_hours)
    at_violations = _read([(y, x) for x, y in reversed(points)], math.log1p(ours.violations))
    of_violations = None
    if at_hours is not None:
        theirs = math.expm1(at_hours)
        of_violations = ours.violations / theirs if theirs > 1e-6 else (0.0 if not ours.violations else math.inf)
    return Standing(ours, of_violations, ours.gpu_hours / at_violations if at_violations else None)


def _read(points: Sequence[tuple[float, float]], at: float) -> float | None:
    """Value of a line through points by growing x, the last one's beyond the end; None before its beginning."""
    if not points or at < points[0][0]:
        return None
    if at >= points[-1][0]:
        return points[-1][1]
    for (x0, y0), (x1, y1) in pairwise(points):
        if x0 <= at <= x1:
            return y0 + (y1 - y0) * (at - x0) / (x1 - x0)
    return None


def _same(one: Outcome, other: Outcome) -> bool:
    return (one.trace, one.start_s) == (other.trace, other.start_s)


def _told(each: Standing) -> str:
    violations = "no rival is so cheap" if each.violations is None else f"{each.violations:.2f} x the violations"
    hours = "no rival is so good" if each.gpu_hours is None else f"{each.gpu_hours:.2f} x the GPU-hours"
    return f"{violations}, {hours}"


def _outcome(scenario: Scenario, seeds: Sequence[Figures]) -> Outcome:
    scaling = [figures.scaling for figures in seeds if figures.scaling is not None]
    in_time = [each.starts_in_time for each in scaling if each.starts_in_time is not None]
    money = [each.money for each in scaling if each.money is not None]
    ttfts = [figures.ttft_p99_s for figures in seeds if figures.ttft_p99_s is not None]
    return Outcome(
        kind=scenario.kind,
        trace=scenario.setup.trace,
        start_s=scenario.start_s,
        scaler=scenario.scaler,
        requests=fmean(figures.requests for figures in seeds),
        violations=fmean(each.violations for each in scaling),
        unserved=fmean(figures.refused + figures.failed for figures in seeds),
        gpu_hours=fmean(each.gpu_hours for each in scaling),
        money=fmean(money) if len(money) == len(seeds) else None,
        instances_mean=fmean(each.instances_mean for each in scaling),
        instances_peak=max(each.instances_peak for each in scaling),
        turns_per_hour=fmean(each.direction_changes_per_hour for each in scaling),
        starts=fmean(each.starts for each in scaling),
        starts_in_time=fmean(in_time) if in_time else None,
        ttft_p99_s=fmean(ttfts) if ttfts else None,
    )


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    return value
