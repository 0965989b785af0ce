"""How ours stands in a suite: the bounds that it is held to, against the best rival of each cell and figure.

A rival is every policy but ours, by whatever rules of admission, the oracle, and those that the caller names. Bounds
are of a ratio (ours over theirs) or of a share that is lost, and are told by how many cells keep them, by the median
and by the worst cell. All of it is worked out from the figures of the JSON, medians over seeds where there are several.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import NamedTuple

from extproc.sim.report.against_rivals import (
    E2E,
    FIGURES,
    GOODPUT,
    NO_WORSE,
    TTFT_P99,
    best_of,
    has_oracle,
    lost,
    no_worse,
    rivals,
    to_best,
    to_oracle,
    to_unaware,
)
from extproc.sim.report.ranking import HIGHER_IS_BETTER, Group, groups
from extproc.sim.report.suite_json import OURS, Cell, is_ours

_BUSY_LOAD = 0.8  # loads of the mixed fleet from here on have bounds of their own
_UNAWARE = "best rival's that does not know hardware"
_STEADY = "least_request"  # ours may not swing more than this rule


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """One thing that ours is held to, over the cells that it concerns.

    `median` and `worst` are None where it has no number of its own, or no cell has one.
    """

    name: str
    meaning: str
    limit: float
    at_least: bool  # whether the number must be at least the limit, or at most
    kept: int  # cells
    cells: int
    median: float | None
    worst: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Miss:
    """A cell in which ours is worse than the best rival by more than the margin."""

    cell: Cell
    figure: str
    ours: float | None
    best: float
    rival: str
    ratio: float | None  # ours over the best; None if ours has no such figure


class Refused(NamedTuple):
    """Share of its requests that ours refused: the median cell's, and the most."""

    median: float
    most: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What every cell is held to, over a part of them."""

    bounds: tuple[Bound, ...]
    refused: Refused


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """All bounds over all cells, those of every cell by fleet and load and by workload, and the cells that miss."""

    bounds: tuple[Bound, ...]
    by_group: Mapping[Group, Part]
    by_trace: Mapping[str, Part]
    misses: tuple[Miss, ...]  # by figure, the worst first
    refused: Refused


def standing(
    cells: Sequence[Cell], know_hardware: Collection[str], ours: str = OURS, apart: Collection[str] = ()
) -> Standing | None:
    """Where ours stands; None where it has no rival to be held against.

    `know_hardware` names the policies that have speeds by instance, given or learned, and choose by them; `ours` the
    one of ours that is judged, in place of all others of ours; `apart` names rivals that it is not held against.
    """
    seen = [_alone(cell, ours, apart) for cell in cells if ours in cell.policies]
    judged = [cell for cell in seen if rivals(cell)]
    if not judged:
        return None
    bounds = (*_every_cell(judged), *_mixed(judged, know_hardware), *_conditions(judged), *_steady(judged))
    return Standing(
        bounds=tuple(bound for bound in bounds if bound.cells),
        by_group={group: _part(members, know_hardware) for group, members in groups(judged).items()},
        by_trace={
            trace: _part([cell for cell in judged if cell.trace == trace], know_hardware)
            for trace in dict.fromkeys(cell.trace for cell in judged)
        },
        misses=tuple(_misses(judged)),
        refused=_refused(judged),
    )


def _alone(cell: Cell, ours: str, apart: Collection[str]) -> Cell:
    """The cell with this policy as ours."""
    rivals = {name: row for name, row in cell.policies.items() if not is_ours(name) and name not in apart}
    return replace(cell, policies={OURS: cell.policies[ours], **rivals})


def _refused(cells: Sequence[Cell]) -> Refused:
    shares = [(cell.value(OURS, "refused") or 0.0) / (cell.value(OURS, "requests") or 1.0) for cell in cells]
    return Refused(median(shares), max(shares))


def _every_cell(cells: Sequence[Cell]) -> tuple[Bound, ...]:
    """What holds in every cell: no worse than its best rival, and near the oracle."""
    kept = [all(no_worse(cell, figure) for figure in FIGURES) for cell in cells]
    return (
        _no_worse_bound(cells, GOODPUT, "goodput / best rival's"),
        _no_worse_bound(cells, E2E, "mean E2E / best rival's"),
        _no_worse_bound(cells, TTFT_P99, "p99 TTFT / best rival's"),
        Bound(
            name="all",
            meaning="all three of these",
            limit=NO_WORSE,
            at_least=False,
            kept=sum(kept),
            cells=len(kept),
            median=None,
            worst=None,
        ),
        _bound(
            "oracle_e2e",
            "mean E2E / the oracle's",
            1.15,
            False,
            [to_oracle(cell) for cell in cells if has_oracle(cell)],
        ),
    )


def _part(cells: Sequence[Cell], know_hardware: Collection[str]) -> Part:
    """The same over a part of the cells, and what knowing hardware brings in it."""
    unaware = to_unaware(cells, know_hardware)
    what = f"goodput / {_UNAWARE}"
    bounds = *_every_cell(cells), _bound("unaware_goodput", what, 1 - NO_WORSE, True, unaware)
    return Part(bounds=bounds, refused=_refused(cells))


def _mixed(cells: Sequence[Cell], know_hardware: Collection[str]) -> tuple[Bound, ...]:
    """What knowing hardware must bring on a busy mixed fleet."""
    busy = [cell for cell in cells if cell.fleet == "mixed" and cell.load is not None and cell.load >= _BUSY_LOAD]
    where = "on the busy mixed fleet"
    return (
        _bound(
            "mixed_unaware_goodput",
            f"{where}: goodput / {_UNAWARE}",
            1.3,
            True,
            to_unaware(busy, know_hardware),
        ),
        _bound(
            "mixed_goodput", f"{where}: goodput / best rival's", 1.1, True, [to_best(cell, GOODPUT) for cell in busy]
        ),
        _bound(
            "mixed_ttft_p99",
            f"{where}: p99 TTFT / best rival's",
            0.7,
            False,
            [to_best(cell, TTFT_P99) for cell in busy],
        ),
    )


def _conditions(cells: Sequence[Cell]) -> tuple[Bound, ...]:
    """What stale state and several routers may cost: goodput lost against the cell that differs in that alone."""
    least_delay_s = min(cell.state_delay_s for cell in cells)
    stale = lost(
        cells, lambda cell: cell.state_delay_s, lambda cell: (cell.trace, cell.fleet, cell.load, cell.replicas)
    )
    split = lost(
        cells, lambda cell: cell.replicas, lambda cell: (cell.trace, cell.fleet, cell.load, cell.state_delay_s)
    )
    return (
        _bound("stale", f"goodput lost by state older than {least_delay_s:g} s", 0.05, False, stale),
        _bound("replicas", "goodput lost by more routers than one", 0.03, False, split),
    )


def _steady(cells: Sequence[Cell]) -> tuple[Bound, ...]:
    """That no feedback loop swings load to and fro."""
    more: list[float | None] = []
    for cell in cells:
        if _STEADY in cell.policies:
            ours, theirs = cell.value(OURS, "oscillation"), cell.value(_STEADY, "oscillation")
            more.append(None if ours is None or theirs is None else ours - theirs)
    known = [value for value in more if value is not None]  # a fleet that is nearly empty has no index
    return (_bound("oscillation", f"oscillation above {_STEADY}'s", 0.0, False, known),)


def _misses(cells: Iterable[Cell]) -> list[Miss]:
    found = []
    for figure in FIGURES:
        missed = [cell for cell in cells if not no_worse(cell, figure)]
        made = [_miss(cell, figure) for cell in missed]
        found += sorted(made, key=lambda miss: _badness(miss.ratio, figure in HIGHER_IS_BETTER), reverse=True)
    return found


def _miss(cell: Cell, figure: str) -> Miss:
    rival, best = best_of(cell, figure, rivals(cell)) or ("", 0.0)
    return Miss(
        cell=cell, figure=figure, ours=cell.value(OURS, figure), best=best, rival=rival, ratio=to_best(cell, figure)
    )


def _no_worse_bound(cells: Sequence[Cell], figure: str, meaning: str) -> Bound:
    higher = figure in HIGHER_IS_BETTER
    limit = 1 - NO_WORSE if higher else 1 + NO_WORSE
    return _bound(figure, meaning, limit, higher, [to_best(cell, figure) for cell in cells])


def _bound(name: str, meaning: str, limit: float, at_least: bool, found: Sequence[float | None]) -> Bound:
    """A bound of these numbers, one a cell; one that is unknown does not keep it."""
    known = [value for value in found if value is not None]
    return Bound(
        name=name,
        meaning=meaning,
        limit=limit,
        at_least=at_least,
        kept=sum(value >= limit if at_least else value <= limit + 1e-9 for value in known),
        cells=len(found),
        median=median(known) if known else None,
        worst=max(known, key=lambda value: _badness(value, at_least)) if known else None,
    )


def _badness(value: float | None, at_least: bool) -> float:
    if value is None:
        return float("inf")
    return -value if at_least else value
