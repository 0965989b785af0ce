"""What the suite `overload` shows: who was served well, and what of it the fleet carries when nobody asks for more."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from extproc.core.values.request import RequestClass
from extproc.sim.overload import Kind, Scenario
from extproc.sim.report.columns import plain, seconds, share
from extproc.sim.report.figures import Figures
from extproc.sim.report.groups import GroupFigures
from extproc.sim.report.table import aligned

TARGET_GOODPUT = 0.95  # of what the fleet carries alone
TARGET_TTFT = 1.2  # of the p99 without the flood

Key = tuple[str, str, str]  # fleet, scenario, policy
_TITLES = {
    Kind.ALONE: "what the fleet carries: interactive requests alone",
    Kind.INTERACTIVE: "more interactive requests than it can serve",
    Kind.CLASSES: "interactive requests, and as many batch jobs",
    Kind.FLOOD: "one tenant floods; figures are of the four others together",
    Kind.PRIORITIES: "three priorities, a third of the requests each",
    Kind.FAILURES: "half of the instances fail",
}


@dataclass(frozen=True, slots=True)
class Outcome:
    """One scenario under one policy: of several seeds medians. What is not known is None."""

    scenario: Scenario
    policy: str
    values: Mapping[str, float | None]


@dataclass(frozen=True, slots=True)
class _Head:
    figure: str
    head: str
    write: Callable[[float], str]


_GOODPUT = _Head("goodput_rps", "good/s", plain)
_OF_ALONE = _Head("of_alone", "of alone", share)
_REST = (
    _Head("goodput", "good", share),
    _Head("refused", "refused", share),
    _Head("ttft_p50_s", "TTFT50", seconds),
    _Head("ttft_p99_s", "TTFT99", seconds),
    _Head("held_mean_s", "held", seconds),
)
_BATCH = (_Head("batch_rps", "batch good/s", plain), _Head("batch_refused", "batch refused", share))
_FLOOD = (_Head("of_calm", "TTFT99 / calm", plain), _Head("flood_share", "flood's tokens", share))
_PRIORITIES = tuple(_Head(f"goodput {p:+d}", f"good {p:+d}", share) for p in (-1, 0, 1))
_COLUMNS: Mapping[Kind, tuple[_Head, ...]] = {
    Kind.ALONE: (_GOODPUT, *_REST),
    Kind.INTERACTIVE: (_GOODPUT, _OF_ALONE, *_REST),
    Kind.CLASSES: (_GOODPUT, _OF_ALONE, *_REST, *_BATCH),
    Kind.FLOOD: (_FLOOD[0], *_REST, _FLOOD[1]),
    Kind.PRIORITIES: (_GOODPUT, *_PRIORITIES, *_REST[1:]),
    Kind.FAILURES: (_GOODPUT, *_REST),
}


def outcomes(results: Iterable[tuple[Scenario, str, Figures]]) -> list[Outcome]:
    """One for each scenario and policy, over all seeds, with what each is measured by."""
    gathered: dict[Key, list[tuple[Scenario, dict[str, float | None]]]] = {}
    for scenario, policy, figures in results:
        gathered.setdefault(_key(scenario, policy), []).append((scenario, _values(scenario.kind, figures)))
    found = [
        Outcome(members[0][0], policy, _medians([values for _, values in members]))
        for (_, _, policy), members in gathered.items()
    ]
    return [_measured(one, found) for one in found]


def best_alone(of: Outcome, among: Iterable[Outcome]) -> float | None:
    """The most good requests a second that the fleet serves under the same policy when only interactive ones come."""
    known = [
        rps
        for one in among
        if one.scenario.kind is Kind.ALONE
        and (_part(one), one.policy) == (_part(of), of.policy)
        and (rps := one.values["goodput_rps"]) is not None
    ]
    return max(known, default=None)


def misses(found: Iterable[Outcome], policies: Sequence[str]) -> list[str]:
    """A line for each target that one of the policies misses."""
    lines = []
    for one in found:
        if one.policy not in policies:
            continue
        name = f"{one.policy}, {one.scenario.setup.trace} on {one.scenario.setup.fleet.name}"
        of_alone, of_calm = one.values.get("of_alone"), one.values.get("of_calm")
        if of_alone is not None and of_alone < TARGET_GOODPUT:
            lines.append(f"{name}: {of_alone:.1%} of what the fleet carries alone")
        if of_calm is not None and of_calm > TARGET_TTFT:
            lines.append(f"{name}: the others' p99 TTFT is {of_calm:.2f} times what it is without the flood")
    return lines


def as_json(found: Iterable[Outcome]) -> list[dict[str, Any]]:
    """`[{"fleet", "workload", "kind", "scenario", "load", "replicas", "policy", figures}]`."""
    return [
        {
            "fleet": one.scenario.setup.fleet.name,
            "workload": one.scenario.workload,
            "kind": one.scenario.kind.value,
            "scenario": one.scenario.setup.trace,
            "load": one.scenario.load,
            "replicas": one.scenario.setup.conditions.replicas,
            "policy": one.policy,
            **{name: None if value is None else float(f"{value:.6g}") for name, value in one.values.items()},
        }
        for one in found
    ]


def text(found: Sequence[Outcome]) -> str:
    """Tables for a terminal."""
    return "\n\n".join("\n".join([title, *aligned(rows)]) for title, rows in _tables(found))


def markdown(found: Sequence[Outcome]) -> str:
    """The same for a page of documentation."""
    parts = []
    for title, (heads, *rows) in _tables(found):
        lines = [f"| {' | '.join(row)} |" for row in [heads, ["---"] * 2 + ["---:"] * (len(heads) - 2), *rows]]
        parts.append("\n".join([f"### {title[0].upper()}{title[1:]}", "", *lines]))
    return "\n\n".join(parts)


def _tables(found: Sequence[Outcome]) -> list[tuple[str, list[list[str]]]]:
    groups: dict[tuple[str, str, Kind], list[Outcome]] = {}
    for one in found:
        groups.setdefault((*_part(one), one.scenario.kind), []).append(one)
    return [
        (f"{workload} on {fleet}: {_TITLES[kind]}", _rows(members, _COLUMNS[kind]))
        for (fleet, workload, kind), members in groups.items()
    ]


def _rows(members: Sequence[Outcome], columns: Sequence[_Head]) -> list[list[str]]:
    rows = [["scenario", "policy", *(column.head for column in columns)]]
    for one in members:
        name = one.scenario.setup.trace.partition(": ")[2]
        rows.append([name, one.policy, *(_text(one.values.get(column.figure), column) for column in columns)])
    return rows


def _text(value: float | None, column: _Head) -> str:
    return "?" if value is None else column.write(value)


def _key(scenario: Scenario, policy: str) -> Key:
    return scenario.setup.fleet.name, scenario.setup.trace, policy


def _part(one: Outcome) -> tuple[str, str]:
    return one.scenario.setup.fleet.name, one.scenario.workload


def _values(kind: Kind, figures: Figures) -> dict[str, float | None]:
    """Of those whom a scenario is about: all that are not batch, or all tenants but the flood."""
    if kind is Kind.FLOOD:
        values = _of_group(figures.but_the_flood)
        flood = figures.by_tenant.get("flood")
        values["flood_share"] = flood.token_share if flood else None
        return values
    batch = figures.by_class.get(RequestClass.BATCH.value)
    watched = [group for name, group in figures.by_class.items() if name != RequestClass.BATCH.value]
    values = _of_group(max(watched, key=lambda group: group.requests, default=None))
    values["goodput_rps"] = sum(group.goodput_rps or 0.0 for group in watched)
    for name, group in figures.by_priority.items():
        values[f"goodput {int(name):+d}"] = group.goodput
    if batch is not None:
        values |= {"batch_rps": batch.goodput_rps, "batch_refused": batch.refused / batch.requests}
    return values


def _of_group(group: GroupFigures | None) -> dict[str, float | None]:
    if group is None:
        return dict.fromkeys(("goodput_rps", *(head.figure for head in _REST)))
    return {
        "goodput_rps": group.goodput_rps,
        "goodput": group.goodput,
        "refused": group.refused / group.requests,
        "ttft_p50_s": group.ttft_p50_s,
        "ttft_p99_s": group.ttft_p99_s,
        "held_mean_s": group.held_mean_s,
    }


def _medians(seeds: Sequence[Mapping[str, float | None]]) -> dict[str, float | None]:
    names = dict.fromkeys(name for values in seeds for name in values)
    return {name: _median([values.get(name) for values in seeds]) for name in names}


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if len(known) == len(values) else None


def _measured(one: Outcome, found: Sequence[Outcome]) -> Outcome:
    """The same with its share of what it is measured by."""
    values = dict(one.values)
    if one.scenario.kind in (Kind.INTERACTIVE, Kind.CLASSES):
        values["of_alone"] = _ratio(values["goodput_rps"], best_alone(one, found))
    if one.scenario.kind is Kind.FLOOD and one.scenario.load:
        values["of_calm"] = _ratio(values["ttft_p99_s"], _calm(one, found))
    return Outcome(one.scenario, one.policy, values)


def _calm(of: Outcome, among: Iterable[Outcome]) -> float | None:
    """The others' p99 TTFT without the flood, all else alike."""
    setup = of.scenario.setup
    for one in among:
        same = one.policy == of.policy and _part(one) == _part(of) and one.scenario.kind is Kind.FLOOD
        calm = one.scenario.setup
        if same and not one.scenario.load and (calm.conditions, calm.window_s) == (setup.conditions, setup.window_s):
            return one.values["ttft_p99_s"]
    return None


def _ratio(value: float | None, of: float | None) -> float | None:
    return value / of if value is not None and of else None
