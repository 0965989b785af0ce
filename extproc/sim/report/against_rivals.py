"""Ours in the cells of a suite over others there: the best rival, the oracle, who does not know hardware."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from extproc.sim.report.ranking import HIGHER_IS_BETTER, values
from extproc.sim.report.suite_json import ORACLE, OURS, Cell, is_rival

GOODPUT, E2E, TTFT_P99 = "goodput", "e2e_mean_s", "ttft_p99_s"
FIGURES = (GOODPUT, E2E, TTFT_P99)
NO_WORSE = 0.03  # as good as the best rival, within this share


def rivals(cell: Cell) -> list[str]:
    """Those that ours is held against."""
    return [policy for policy in cell.policies if is_rival(policy)]


def best_of(cell: Cell, figure: str, policies: Collection[str]) -> tuple[str, float] | None:
    """Who of them is best at a figure, and its value; None if nobody has it."""
    found = {policy: value for policy, value in values(cell, figure).items() if policy in policies}
    if not found:
        return None
    pick = max if figure in HIGHER_IS_BETTER else min
    name = pick(found, key=found.__getitem__)
    return name, found[name]


def to_best(cell: Cell, figure: str) -> float | None:
    """Ours over the best rival's; 1 where no rival has the figure, None where ours has not."""
    best = best_of(cell, figure, rivals(cell))
    return _ratio(cell.value(OURS, figure), best[1]) if best else 1.0


def no_worse(cell: Cell, figure: str) -> bool:
    """Whether ours is as good as the best rival, within the margin."""
    ratio = to_best(cell, figure)
    return ratio is not None and (ratio >= 1 - NO_WORSE if figure in HIGHER_IS_BETTER else ratio <= 1 + NO_WORSE)


def has_oracle(cell: Cell) -> bool:
    """Whether the oracle ran there."""
    return cell.value(ORACLE, E2E) is not None


def to_oracle(cell: Cell) -> float | None:
    """Mean E2E of ours over the oracle's."""
    return _ratio(cell.value(OURS, E2E), cell.value(ORACLE, E2E) or 0.0)


def to_unaware(cells: Iterable[Cell], know_hardware: Collection[str]) -> list[float | None]:
    """Goodput of ours over that of the best rival that does not know hardware, of each cell that has one."""
    found: list[float | None] = []
    for cell in cells:
        best = best_of(cell, GOODPUT, [name for name in rivals(cell) if name not in know_hardware])
        if best is not None:
            found.append(_ratio(cell.value(OURS, GOODPUT), best[1]))
    return found


def lost(
    cells: Iterable[Cell], worse: Callable[[Cell], float], alike: Callable[[Cell], tuple[object, ...]]
) -> list[float | None]:
    """Share of ours' goodput that each cell loses against the one that is best off of those alike."""
    members: dict[tuple[object, ...], list[Cell]] = {}
    for cell in cells:
        members.setdefault(alike(cell), []).append(cell)
    found: list[float | None] = []
    for alike_cells in members.values():
        first, *others = sorted(alike_cells, key=worse)
        kept = first.value(OURS, GOODPUT)
        for cell in others:
            ratio = None if kept is None else _ratio(cell.value(OURS, GOODPUT), kept)
            found.append(None if ratio is None else 1 - ratio)
    return found


def _ratio(ours: float | None, theirs: float) -> float | None:
    """Ours over theirs; 1 where both are nothing, infinite where theirs alone is. None if ours is unknown."""
    if ours is None:
        return None
    if theirs == 0.0:
        return 1.0 if ours == 0.0 else float("inf")
    return ours / theirs
