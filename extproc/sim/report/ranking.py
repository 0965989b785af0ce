"""Which policy is best at what, in one cell and over many. The oracle is a bound and never best."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from extproc.sim.report.columns import Column
from extproc.sim.report.suite_json import ORACLE, Cell, in_order

HIGHER_IS_BETTER = frozenset({"goodput", "goodput_rps", "cached_token_share", "fairness"})


def best(values: dict[str, float], column: Column) -> set[str]:
    """The policies with the best of these values: all that read the same; nobody where more than half do."""
    ranked = {policy: value for policy, value in values.items() if policy != ORACLE}
    if not ranked:
        return set()
    top = max(ranked.values()) if column.figure in HIGHER_IS_BETTER else min(ranked.values())
    winners = {policy for policy, value in ranked.items() if column.write(value) == column.write(top)}
    return winners if 2 * len(winners) <= len(ranked) or len(ranked) == 1 else set()


def values(cell: Cell, figure: str) -> dict[str, float]:
    """The figure of each policy that has it."""
    found = {policy: cell.value(policy, figure) for policy in cell.policies}
    return {policy: value for policy, value in found.items() if value is not None}


def wins(cells: Iterable[Cell], column: Column) -> Counter[str]:
    """In how many cells each policy is best; those that tie all win."""
    return Counter(policy for cell in cells for policy in best(values(cell, column.figure), column))


def medians(cells: Sequence[Cell], figure: str) -> dict[str, float]:
    """Median of a figure over the cells in which a policy has it."""
    found: dict[str, list[float]] = {}
    for cell in cells:
        for policy, value in values(cell, figure).items():
            found.setdefault(policy, []).append(value)
    return {policy: median(all_values) for policy, all_values in found.items()}


def policies(cells: Iterable[Cell]) -> list[str]:
    """All policies of the cells, ours first, the oracle last, the others from the best median rank on.

    Ranks are by goodput and, where that ties, mean TTFT.
    """
    ranks: dict[str, list[int]] = {}
    for cell in cells:
        for rank, policy in enumerate(sorted(cell.policies, key=lambda name: _key(cell, name))):
            ranks.setdefault(policy, []).append(rank)
    return in_order(sorted(ranks, key=lambda policy: (median(ranks[policy]), policy)))


@dataclass(frozen=True, slots=True, order=True)
class Group:
    """Cells with one fleet under one load."""

    fleet: str
    load: float  # -1 where the traffic runs at its own pace

    def __str__(self) -> str:
        """In words: `fleet mixed, load 85 %`."""
        return f"fleet {self.fleet}, " + (f"load {self.load:.0%}" if self.load >= 0 else "load as recorded")


def groups(cells: Iterable[Cell]) -> dict[Group, list[Cell]]:
    """Cells by fleet and load, in that order."""
    found: dict[Group, list[Cell]] = {}
    for cell in cells:
        found.setdefault(Group(cell.fleet, -1.0 if cell.load is None else cell.load), []).append(cell)
    return dict(sorted(found.items()))


def _key(cell: Cell, policy: str) -> tuple[float, float]:
    ttft_s = cell.value(policy, "ttft_mean_s")
    return -round(cell.value(policy, "goodput") or 0.0, 3), float("inf") if ttft_s is None else ttft_s
