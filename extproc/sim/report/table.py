"""Tables for a terminal of 120 columns: the policies of one cell, and the medians and wins of a suite."""

from __future__ import annotations

from collections.abc import Sequence

from extproc.sim.report.columns import CELL_COLUMNS, GOODPUT, SUITE_COLUMNS, TTFT_MEAN, Column
from extproc.sim.report.ranking import best, groups, medians, policies, values, wins
from extproc.sim.report.suite_json import OURS, Cell

_NAME_WIDTH = 17
_GAP = " "
_LEGEND = "* best, the oracle apart; ? not known."


def cell_table(cell: Cell) -> str:
    """Policies x figures of one cell: ours first, the oracle last, the others from the best goodput on."""
    columns = [column for column in CELL_COLUMNS if values(cell, column.figure)]
    rows = [["policy", *(column.head for column in columns)]]
    found = [values(cell, column.figure) for column in columns]
    for policy in policies([cell]):
        rows.append([_name(policy), *_texts(policy, columns, found)])
    return "\n".join([cell_title(cell), *aligned(rows), _LEGEND])


def suite_table(cells: Sequence[Cell]) -> str:
    """For each fleet and load: medians over its cells, and in how many of them a policy is best."""
    return "\n\n".join(
        "\n".join([f"{group}: medians of {counted(len(members), 'cell')}", *_group_rows(members)])
        for group, members in groups(cells).items()
    ) + ("\n" + _LEGEND if cells else "no cells")


def cell_title(cell: Cell) -> str:
    """A cell's conditions in one line."""
    load = "as recorded" if cell.load is None else f"{cell.load:.0%}"
    return (
        f"{cell.trace} on {cell.fleet}, load {load}, state delay {cell.state_delay_s:g} s, "
        f"{counted(cell.replicas, 'router replica')}, {seeds_text(cell.seeds)}"
    )


def seeds_text(seeds: Sequence[int]) -> str:
    """`seed 7`, `medians of seeds 0, 1, 2`."""
    told = ", ".join(map(str, seeds))
    return f"seed {told}" if len(seeds) == 1 else f"medians of seeds {told}"


def counted(count: int, noun: str) -> str:
    """`1 cell`, `3 cells`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of a table whose first row are its heads: the first column to the left, the others to the right."""
    heads, *body = rows
    table = [[heads[0], *(f"{head} " for head in heads[1:])], *body]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return [
        _GAP.join(
            [row[0].ljust(widths[0]), *(text.rjust(width) for text, width in zip(row[1:], widths[1:], strict=True))]
        )
        for row in table
    ]


def _group_rows(cells: Sequence[Cell]) -> list[str]:
    found = [medians(cells, column.figure) for column in SUITE_COLUMNS]
    columns = [column for column, of_it in zip(SUITE_COLUMNS, found, strict=True) if of_it]
    found = [of_it for of_it in found if of_it]
    good, first = wins(cells, GOODPUT), wins(cells, TTFT_MEAN)
    rows = [["policy", *(column.head for column in columns), "wins good", "wins TTFT"]]
    for policy in policies(cells):
        rows.append([_name(policy), *_texts(policy, columns, found), f"{good[policy]} ", f"{first[policy]} "])
    return aligned(rows)


def _texts(policy: str, columns: Sequence[Column], found: Sequence[dict[str, float]]) -> list[str]:
    texts = []
    for column, of_it in zip(columns, found, strict=True):
        value = of_it.get(policy)
        mark = "*" if policy in best(of_it, column) else " "
        texts.append("? " if value is None else column.write(value) + mark)
    return texts


def _name(policy: str) -> str:
    name = policy if len(policy) <= _NAME_WIDTH - 2 else policy[: _NAME_WIDTH - 3] + "~"
    return ("> " if policy == OURS else "  ") + name
