"""Cells that differ in their seed alone become one, with the median of every figure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any

from extproc.sim.report.suite_json import Cell, Conditions, Row


def over_seeds(cells: Iterable[Cell]) -> list[Cell]:
    """One cell for each set of conditions, in the order in which these come.

    A figure that is not known under one of the seeds is not known: it would be a median of the better ones. A policy
    or request class that only some seeds have is judged by those.
    """
    members: dict[Conditions, list[Cell]] = {}
    for cell in cells:
        members.setdefault(cell.conditions, []).append(cell)
    return [_middle(alike) for alike in members.values()]


def _middle(cells: Sequence[Cell]) -> Cell:
    if len(cells) == 1:
        return cells[0]
    first = cells[0]
    names = dict.fromkeys(name for cell in cells for name in cell.policies)
    return Cell(
        trace=first.trace,
        fleet=first.fleet,
        load=first.load,
        state_delay_s=first.state_delay_s,
        replicas=first.replicas,
        seeds=tuple(seed for cell in cells for seed in cell.seeds),
        policies={name: _row([cell.policies[name] for cell in cells if name in cell.policies]) for name in names},
    )


def _row(rows: Sequence[Row]) -> Row:
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: _value([row[name] for row in rows if name in row]) for name in names}


def _value(values: Sequence[Any]) -> Any:
    if all(isinstance(value, Mapping) for value in values):
        return _row(values)
    known = [value for value in values if isinstance(value, int | float)]
    return median(known) if len(known) == len(values) else None
