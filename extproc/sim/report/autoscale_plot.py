"""The plot of the suite `autoscale`: SLO violations against GPU-hours, a line for each autoscaler."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from extproc.sim.autoscale_suite import Kind
from extproc.sim.report.autoscale import Outcome
from extproc.sim.report.plots import Style, legend, line, styles_of, svg_file
from extproc.sim.scaling.catalog import OURS

_PANEL_IN = (3.3, 2.7)
_LEAST = 1e-5  # share of violations that stands for none on a logarithmic scale


def autoscale_svg(found: Sequence[Outcome]) -> str:
    """An SVG file: a row for each workload that is held against the target, a column for each time to start.

    Raises ConfigError if matplotlib is missing.
    """
    shown = [one for one in found if one.kind is Kind.TRACE]
    traces = list(dict.fromkeys(one.trace for one in shown))
    starts_s = sorted({one.start_s for one in shown})
    look = styles_of(list(dict.fromkeys(_family(one) for one in shown)), OURS)

    def draw(figure: Any) -> None:
        panels = figure.subplots(len(traces), len(starts_s), squeeze=False)
        for row, trace in enumerate(traces):
            for column, start_s in enumerate(starts_s):
                axes = panels[row][column]
                _panel(axes, [one for one in shown if (one.trace, one.start_s) == (trace, start_s)], look)
                axes.set_title(f"{trace}, start {start_s:g} s")
                if not column:
                    axes.set_ylabel("SLO violations")
                if row == len(traces) - 1:
                    axes.set_xlabel("GPU-hours")
        legend(figure, panels[0][-1])

    size_in = (_PANEL_IN[0] * len(starts_s) + 1.8, _PANEL_IN[1] * len(traces))
    return svg_file("SLO violations against GPU-hours of each autoscaler", size_in, draw)


def _panel(axes: Any, members: Sequence[Outcome], look: dict[str, Style]) -> None:
    for family, style in look.items():
        points = sorted((one.gpu_hours, max(one.violation_share, _LEAST)) for one in members if _family(one) == family)
        if points:
            hours, shares = zip(*points, strict=True)
            axes.plot(hours, shares, marker="o", markersize=3.5, **line(family, style))
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(lambda value, _: "0" if value <= _LEAST else f"{value:.3g}")


def _family(one: Outcome) -> str:
    return one.scaler.partition("?")[0]
