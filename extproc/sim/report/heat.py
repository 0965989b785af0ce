"""The heat table of a page: one figure of every policy in every cell, darker the further it is from the cell's best."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from math import log2

from extproc.sim.report.columns import Column
from extproc.sim.report.ranking import HIGHER_IS_BETTER, best, values
from extproc.sim.report.suite_json import ORACLE, OURS, Cell

SHADES = 8
_WORST_SHARE = 0.2  # a share this far below the best has the darkest shade
_WORST_RATIO = 4.0  # so has a time this many times the best


def heat_table(cells: Sequence[Cell], column: Column, policies: Sequence[str]) -> str:
    """An HTML table, a row a cell. The best of a row is bold."""
    heads = "".join(f'<th class="up{_mine(policy)}"><span>{escape(policy)}</span></th>' for policy in policies)
    names = "".join(f"<th>{name}</th>" for name in ("trace", "fleet", "load", "state delay", "routers"))
    body = "".join(_row(cell, column, policies) for cell in cells)
    head = f"<thead><tr>{names}{heads}</tr></thead>"
    return f'<div class="wide"><table class="heat">{head}<tbody>{body}</tbody></table></div>'


def shade(value: float, top: float, figure: str) -> int:
    """0 for the best of a row or better, up to `SHADES`-1 for what is far off."""
    if figure in HIGHER_IS_BETTER:
        loss = (top - value) / _WORST_SHARE
    elif top > 0.0 and value > 0.0:
        loss = log2(value / top) / log2(_WORST_RATIO)
    else:
        loss = 0.0 if value <= top else 1.0
    return round(min(max(loss, 0.0), 1.0) * (SHADES - 1))


def _row(cell: Cell, column: Column, policies: Sequence[str]) -> str:
    found = values(cell, column.figure)
    rivals = [value for policy, value in found.items() if policy != ORACLE] or list(found.values())
    top = (max if column.figure in HIGHER_IS_BETTER else min)(rivals, default=0.0)
    winners = best(found, column)
    load = "" if cell.load is None else f"{cell.load:.0%}"
    conditions = (cell.trace, cell.fleet, load, f"{cell.state_delay_s:g} s", str(cell.replicas))
    texts = [f"<td>{escape(text)}</td>" for text in conditions]
    for policy in policies:
        value = found.get(policy)
        if value is None:
            texts.append("<td>–</td>")
            continue
        text = column.write(value)
        inner = f"<b>{text}</b>" if policy in winners else text
        texts.append(f'<td class="h{shade(value, top, column.figure)}{_mine(policy)}">{inner}</td>')
    return f"<tr>{''.join(texts)}</tr>"


def _mine(policy: str) -> str:
    return " ours" if policy == OURS else ""
