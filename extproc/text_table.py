"""Rows of a table as lines for a terminal."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence


def table_lines(rows: Iterable[Sequence[str]], right: Collection[str] = ()) -> list[str]:
    """Rows of equal length, the first one the heads; columns whose heads are in `right` stand to the right."""
    columns = []
    for column in zip(*rows, strict=True):
        width = max(map(len, column))
        columns.append([cell.rjust(width) if column[0] in right else cell.ljust(width) for cell in column])
    return ["  ".join(cells).rstrip() for cells in zip(*columns, strict=True)]
