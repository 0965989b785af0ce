"""One self-contained HTML page of a simulation: what was run, who was best, and the curves behind it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from statistics import median

from extproc.sim.report.columns import CELL_COLUMNS, GOODPUT, SUITE_COLUMNS, TTFT_MEAN, TTFT_P99, Column
from extproc.sim.report.curves import Curves
from extproc.sim.report.heat import SHADES, heat_table
from extproc.sim.report.plots import Style, goodput_plot, loads_plot, styles, ttft_plot
from extproc.sim.report.ranking import HIGHER_IS_BETTER, best, groups, medians, policies, values, wins
from extproc.sim.report.slo import DEFAULT_SLOS, Slos
from extproc.sim.report.suite_json import ORACLE, OURS, ROUND_ROBIN, Cell, is_rival
from extproc.sim.report.table import cell_title, counted

_STRIPS = 4  # policies whose loads are drawn


@dataclass(frozen=True, slots=True, kw_only=True)
class Detail:
    """A cell to show closely, with the curves of its policies."""

    cell: Cell
    curves: Sequence[Curves]


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """All that a page tells. Of a suite one or a few cells are enough as details."""

    title: str
    command: str  # that makes the same page again
    cells: Sequence[Cell]
    details: Sequence[Detail] = ()
    slos: Slos = field(default_factory=lambda: DEFAULT_SLOS)


def page(report: Report) -> str:
    """The page as HTML; nothing in it is fetched from elsewhere. Raises ConfigError if matplotlib is missing."""
    order = policies(report.cells)
    look = styles(order)
    parts = [_head(report, order)]
    if len(report.cells) > 1:
        parts += [_goodput_against_load(report.cells, look), _medians(report.cells), _heat(report.cells, order)]
    parts += [_detail(number, detail, look) for number, detail in enumerate(report.details)]
    parts.append(_meanings(report.slos))
    style = _STYLE + "".join(_shade_rule(shade) for shade in range(SHADES))
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(report.title)}</title>\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n<style>{style}</style></head>\n'
        f"<body><main>\n{chr(10).join(parts)}\n</main></body></html>\n"
    )


def _head(report: Report, order: Sequence[str]) -> str:
    seeds = ", ".join(str(seed) for seed in sorted({seed for cell in report.cells for seed in cell.seeds}))
    return (
        f"<h1>{escape(report.title)}</h1>\n<p class=lead>{escape(_summary(report.cells, order))}</p>\n"
        f"<p>Made by</p><pre>{escape(report.command)}</pre>"
        f"<p>with seed {seeds}; of several seeds figures are medians. The same command gives the same figures. Every "
        "policy gets the same requests at the same times, and sees the fleet as late as a router does; only "
        f"<i>{ORACLE}</i> knows the truth, and is no rival.</p>"
    )


def _summary(cells: Sequence[Cell], order: Sequence[str]) -> str:
    """What came out, in a sentence or two."""
    rivals = sum(map(is_rival, order))
    where = f"on {counted(len(cells), 'set')} of conditions."
    if OURS not in order or not rivals:
        return f"{counted(len(order), 'routing rule')} {where}"
    told = _compared(cells[0]) if len(cells) == 1 else _won(cells)
    return f"{OURS} beside {counted(rivals, 'other routing rule')} {where} {told}"


def _compared(cell: Cell) -> str:
    told = []
    for column, name in ((GOODPUT, "Goodput"), (TTFT_MEAN, "Mean TTFT")):
        found = values(cell, column.figure)
        ours, rivals = found.get(OURS), [policy for policy in found if is_rival(policy)]
        if ours is not None and rivals:
            rival = (max if column.figure in HIGHER_IS_BETTER else min)(rivals, key=found.__getitem__)
            told.append(f"{name}: {column.write(ours)}, the best other {column.write(found[rival])} ({rival}).")
    return " ".join(told)


def _won(cells: Sequence[Cell]) -> str:
    told = []
    for column, name in ((GOODPUT, "most goodput"), (TTFT_MEAN, "lowest mean TTFT")):
        winners = [best(values(cell, column.figure), column) for cell in cells]
        text = f"{name} in {sum(OURS in won for won in winners)}"
        ties = sum(not won for won in winners)
        told.append(text + (f" (in {ties} most rules tie)" if ties else ""))
    return f"It has the {' and the '.join(told)} of them."


def _goodput_against_load(cells: Sequence[Cell], look: Mapping[str, Style]) -> str:
    fleets: dict[str, dict[str, dict[float, float]]] = {}
    for policy in look:
        for fleet in sorted({cell.fleet for cell in cells}):
            by_load: dict[float, list[float]] = {}
            for cell in cells:
                value = cell.value(policy, GOODPUT.figure)
                if cell.fleet == fleet and cell.load is not None and value is not None:
                    by_load.setdefault(cell.load, []).append(value)
            if len(by_load) > 1:
                line = {load: median(found) for load, found in sorted(by_load.items())}
                fleets.setdefault(fleet, {})[policy] = line
    if not fleets:
        return ""
    return _figure(
        "Goodput against load",
        "Share of requests that met their class's objective, the median over traces, delays and numbers of routers. A "
        "rule that stays up longer lets the same fleet carry more. Grey: the rules that rank lower.",
        goodput_plot("goodput", fleets, look),
    )


def _medians(cells: Sequence[Cell]) -> str:
    parts = [
        "<h2>Medians and wins</h2><p>Medians over all sets of conditions. Bold: the best, the oracle apart. A win is a "
        "set of conditions in which no rule reads better; ties all win, and nobody does where more than half tie.</p>",
        _medians_table(cells),
    ]
    for group, members in groups(cells).items():
        title = f"{escape(str(group))}: {counted(len(members), 'set')} of conditions"
        parts.append(f"<details><summary>{title}</summary>{_medians_table(members)}</details>")
    return "\n".join(parts)


def _medians_table(cells: Sequence[Cell]) -> str:
    order = policies(cells)
    good, first = wins(cells, GOODPUT), wins(cells, TTFT_MEAN)
    extra = {policy: ("", "") if policy == ORACLE else (str(good[policy]), str(first[policy])) for policy in order}
    columns = {column: medians(cells, column.figure) for column in SUITE_COLUMNS}
    return _table(order, columns, ("wins good", "wins TTFT"), extra)


def _heat(cells: Sequence[Cell], order: Sequence[str]) -> str:
    parts = [
        "<h2>Every set of conditions</h2><p>White is the best of its row, darker is further from it: goodput 20 "
        "points below, a time four times as long. Bold: best, the oracle apart.</p>"
    ]
    for column, title, opened in (
        (GOODPUT, "Goodput", " open"),
        (TTFT_MEAN, "Mean TTFT", ""),
        (TTFT_P99, "p99 TTFT", ""),
    ):
        parts.append(f"<details{opened}><summary>{title}</summary>{heat_table(cells, column, order)}</details>")
    return "\n".join(parts)


def _detail(number: int, detail: Detail, look: Mapping[str, Style]) -> str:
    order = policies([detail.cell])
    by_policy = {run.policy: run for run in detail.curves}
    drawn = [by_policy[policy] for policy in order if policy in by_policy and by_policy[policy].ttft_s]
    strips = [by_policy[policy] for policy in _strips(detail.cell, order) if policy in by_policy]
    strips = [run for run in strips if run.at_s]
    columns = {column: values(detail.cell, column.figure) for column in CELL_COLUMNS}
    parts = [f"<h2>{escape(cell_title(detail.cell))}</h2>", _table(order, columns, (), {})]
    if drawn:
        parts.append(
            _figure(
                "Time to the first token",
                "How many requests have their first token by then: further left and up is better. A curve that ends "
                "below 1 belongs to a rule that left requests without an answer. Grey: the rules that rank lower.",
                ttft_plot(f"ttft{number}", drawn, look),
            )
        )
    if strips:
        parts.append(
            _figure(
                "Load of each instance over time",
                "One row an instance, darker with more requests. Rows that keep their shade are steady; stripes that "
                "move from row to row are a herd that runs after stale state. In a mixed fleet faster instances are "
                "meant to be darker.",
                loads_plot(f"loads{number}", strips),
            )
        )
    return "\n".join(parts)


def _strips(cell: Cell, order: Sequence[str]) -> list[str]:
    """Ours, the best rival, round robin, and who swings most; then by rank."""
    rivals = [policy for policy in order if policy not in (OURS, ORACLE)]
    swings = values(cell, "oscillation")
    wildest = sorted(rivals, key=lambda policy: -swings.get(policy, 0.0))[:1]
    wanted = [OURS, *rivals[:1], ROUND_ROBIN, *wildest, *rivals]
    return [policy for policy in dict.fromkeys(wanted) if policy in cell.policies][:_STRIPS]


def _table(
    order: Sequence[str],
    columns: Mapping[Column, dict[str, float]],
    extra_heads: Sequence[str],
    extra: Mapping[str, Sequence[str]],
) -> str:
    shown = {column: found for column, found in columns.items() if found}
    heads = "".join(f'<th title="{escape(column.meaning)}">{column.head}</th>' for column in shown)
    heads += "".join(f"<th>{head}</th>" for head in extra_heads)
    rows = []
    for policy in order:
        cells = [_cell(column, found, policy) for column, found in shown.items()]
        cells += [f"<td>{text}</td>" for text in extra.get(policy, ())]
        rows.append(f"<tr{' class=ours' if policy == OURS else ''}><th>{escape(policy)}</th>{''.join(cells)}</tr>")
    head = f"<thead><tr><th>policy</th>{heads}</tr></thead>"
    return f'<div class="wide"><table>{head}<tbody>{"".join(rows)}</tbody></table></div>'


def _cell(column: Column, found: dict[str, float], policy: str) -> str:
    value = found.get(policy)
    if value is None:
        return "<td>–</td>"
    text = column.write(value)
    return f"<td><b>{text}</b></td>" if policy in best(found, column) else f"<td>{text}</td>"


def _figure(title: str, text: str, svg: str) -> str:
    return f"<figure><h3>{title}</h3><figcaption>{text}</figcaption>{svg}</figure>"


def _meanings(slos: Slos) -> str:
    limits = "; ".join(f"{request_class.value.replace('_', ' ')}: {slo}" for request_class, slo in slos.items())
    items = "".join(f"<dt>{column.head}</dt><dd>{escape(column.meaning)}</dd>" for column in CELL_COLUMNS)
    return (
        f"<h2>What the figures mean</h2><p>Objectives of goodput: {escape(limits)}. Times are of served requests.</p>"
        f"<dl>{items}</dl>"
    )


def _shade_rule(shade: int) -> str:
    """Background of a heat table's shade: white to a blue that every eye tells from it."""
    part = shade / (SHADES - 1)
    red, green, blue = (round(255 - part * (255 - end)) for end in (0x2B, 0x5C, 0x8A))
    return f".heat td.h{shade}{{background:rgb({red},{green},{blue});color:{'#fff' if part > 0.55 else '#111827'}}}"


_STYLE = """
body{margin:0;font:15px/1.5 system-ui,sans-serif;color:#111827;background:#fff}
main{max-width:1240px;margin:0 auto;padding:24px 20px 60px}
h1{font-size:26px;margin:8px 0}h2{font-size:19px;margin:40px 0 6px;border-top:1px solid #e5e7eb;padding-top:18px}
h3{font-size:15px;margin:20px 0 4px}.lead{font-size:17px}p{max-width:46em;margin:8px 0}
pre{background:#f3f4f6;padding:10px 12px;border-radius:4px;white-space:pre-wrap;overflow-wrap:anywhere}
.wide{overflow-x:auto}table{border-collapse:collapse;font-size:13px;font-variant-numeric:tabular-nums;margin:6px 0}
th,td{padding:3px 8px;text-align:right;white-space:nowrap}thead th{border-bottom:1px solid #9ca3af}
th:first-child,td:first-child{text-align:left}tbody th{font-weight:400}
tr.ours>*{background:#fdf0e6}tr.ours th{font-weight:700}
.heat{font-size:11px}.heat thead th{vertical-align:bottom}
.heat td,.heat th{padding:2px 5px;border:1px solid #f3f4f6}.heat td.ours{outline:1px solid #d55e00}
th.up span{writing-mode:vertical-rl;transform:rotate(180deg)}th.up.ours{color:#d55e00}
figure{margin:20px 0}figcaption{max-width:46em;color:#374151}svg{max-width:100%;height:auto;display:block}
summary{cursor:pointer;font-weight:600;margin:10px 0}
dt{font-weight:600;float:left;clear:left;width:5em}dd{margin:0 0 4px 5.5em}
"""
