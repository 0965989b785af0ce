"""How a standing is shown: as JSON, in a terminal, and as Markdown for a page of documentation."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from extproc.sim.report.against_rivals import FIGURES, NO_WORSE
from extproc.sim.report.columns import E2E_MEAN, GOODPUT, TTFT_P99
from extproc.sim.report.standing import Bound, Miss, Part, Refused, Standing
from extproc.sim.report.suite_json import OURS, Cell
from extproc.sim.report.table import aligned, counted, seeds_text, suite_table

_SHARES = frozenset({"stale", "replicas"})  # bounds that are parts of a whole; the others are ratios or an index
_COLUMNS = {column.figure: column for column in (GOODPUT, E2E_MEAN, TTFT_P99)}
_NAMES = {GOODPUT.figure: "goodput", E2E_MEAN.figure: "mean E2E", TTFT_P99.figure: "p99 TTFT"}
RIVAL, UNREFUSING_RIVAL = "rival", "rival that refuses nothing"
_PART_HEADS = (*_NAMES.values(), "all three", "E2E / oracle", "goodput / unaware")


@dataclass(frozen=True, slots=True)
class _Table:
    title: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def standing_json(standing: Standing) -> dict[str, Any]:
    """The same as plain values; docs/simulate-report.md has the shape. What is infinite is null."""
    return {
        "bounds": [_bound_json(bound) for bound in standing.bounds],
        "by_group": [
            {
                "fleet": group.fleet,
                "load": group.load if group.load >= 0 else None,
                **_part_json(part),
            }
            for group, part in standing.by_group.items()
        ],
        "by_trace": [{"trace": trace, **_part_json(part)} for trace, part in standing.by_trace.items()],
        "misses": [
            {
                **dict(zip(("trace", "fleet", "load", "state_delay_s", "replicas"), miss.cell.conditions, strict=True)),
                "figure": miss.figure,
                "ours": miss.ours,
                "best": miss.best,
                "rival": miss.rival,
                "ratio": _finite(miss.ratio),
            }
            for miss in standing.misses
        ],
        "refused": _refused_json(standing.refused),
    }


def standing_text(standing: Standing, cells: Sequence[Cell], who: str = OURS, rival: str = RIVAL) -> str:
    """Tables for a terminal, on the policy `who`; `rival` says which rivals it was held against."""
    parts = [f"{who} against the best {rival} of each of {_counted(cells, who)}{_told_refused(standing)}"]
    for table in _tables(standing):
        parts.append("\n".join([table.title, *aligned([table.heads, *(_padded(row) for row in table.rows)])]))
    return "\n\n".join(parts)


def standing_markdown(standing: Standing, cells: Sequence[Cell], who: str = OURS, rival: str = RIVAL) -> str:
    """The same as Markdown."""
    judged = f"{_counted(cells, who)}{_told_refused(standing)}"
    heading = f"## How {who} stands" + ("" if rival == RIVAL else f" beside each {rival}")
    parts = [heading, f"Against the best {rival} of each of {judged}."]
    for table in _tables(standing):
        lines = [table.heads, tuple("---" for _ in table.heads), *table.rows]
        parts += [f"### {table.title}", "\n".join("| " + " | ".join(line) + " |" for line in lines)]
    return "\n\n".join(parts)


def policies_markdown(cells: Sequence[Cell]) -> str:
    """All policies' tables, to stand behind that on a page that says above it how they were made."""
    return f"## All policies\n\n```\n{suite_table(cells)}\n```"


def _told_refused(standing: Standing) -> str:
    """That times are of those that were served, where not all were."""
    usual, most = standing.refused
    return (
        f"; of its requests it refused {usual:.1%} in the median cell, {most:.1%} at most, and times are of the others"
        if most
        else ""
    )


def _padded(row: Sequence[str]) -> tuple[str, ...]:
    """Room behind each text, where other tables have their mark."""
    return row[0], *(f"{text} " for text in row[1:])


def _counted(cells: Sequence[Cell], who: str) -> str:
    """How many they are in which it is, and of which seeds."""
    cells = [cell for cell in cells if who in cell.policies]
    seeds = tuple(sorted({seed for cell in cells for seed in cell.seeds}))
    return f"{counted(len(cells), 'cell')}, {seeds_text(seeds)}"


def _tables(standing: Standing) -> list[_Table]:
    misses = [(figure, [miss for miss in standing.misses if miss.figure == figure]) for figure in FIGURES]
    return [
        _Table("Bounds", ("bound", "asked", "kept", "median", "worst"), tuple(map(_bound_row, standing.bounds))),
        _parts_table("By fleet and load", {str(group): part for group, part in standing.by_group.items()}),
        _parts_table("By workload", standing.by_trace),
        *(_misses_table(figure, found) for figure, found in misses if found),
    ]


def _bound_row(bound: Bound) -> tuple[str, ...]:
    sign = "≥" if bound.at_least else "≤"
    asked = "" if bound.name == "all" else f"{sign} {_number(bound, bound.limit)}"
    kept = f"{bound.kept} of {bound.cells}"
    return bound.meaning, asked, kept, _number(bound, bound.median), _number(bound, bound.worst)


def _number(bound: Bound, value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.1%}" if bound.name in _SHARES else f"{value:.2f}"


def _parts_table(title: str, parts: Mapping[str, Part]) -> _Table:
    """Medians of the ratios, and how many cells keep them; of what was refused the median, and the most of a cell."""
    refuses = any(part.refused.most for part in parts.values())
    heads = ("", *_PART_HEADS, *(["refused"] if refuses else []))
    rows = tuple(
        (name, *map(_part_text, part.bounds), *([_refused_text(part.refused)] if refuses else []))
        for name, part in parts.items()
    )
    return _Table(f"{title}: medians, and cells that keep the bound", heads, rows)


def _refused_text(refused: Refused) -> str:
    return f"{refused.median:.1%}, {refused.most:.1%}"


def _part_text(bound: Bound) -> str:
    number = _number(bound, bound.median)
    return f"{number} ({bound.kept} of {bound.cells})".strip() if bound.cells else ""


def _misses_table(figure: str, misses: Sequence[Miss]) -> _Table:
    write = _COLUMNS[figure].write
    heads = ("workload", "fleet", "load", "delay", "routers", "ours", "best", "best rival", "ours / best")
    rows = tuple(
        (
            miss.cell.trace,
            miss.cell.fleet,
            "" if miss.cell.load is None else f"{miss.cell.load:.0%}",
            f"{miss.cell.state_delay_s:g} s",
            str(miss.cell.replicas),
            "?" if miss.ours is None else write(miss.ours),
            write(miss.best),
            miss.rival,
            "?" if miss.ratio is None else f"{miss.ratio:.2f}",
        )
        for miss in misses
    )
    title = f"{_NAMES[figure]}: more than {NO_WORSE:.0%} worse than the best rival in {counted(len(misses), 'cell')}"
    return _Table(title, heads, rows)


def _part_json(part: Part) -> dict[str, Any]:
    return {"bounds": list(map(_bound_json, part.bounds)), "refused": _refused_json(part.refused)}


def _refused_json(refused: Refused) -> dict[str, float | None]:
    return {"median": _finite(refused.median), "most": _finite(refused.most)}


def _bound_json(bound: Bound) -> dict[str, Any]:
    return asdict(bound) | {"median": _finite(bound.median), "worst": _finite(bound.worst)}


def _finite(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else float(f"{value:.6g}")
