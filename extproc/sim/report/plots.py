"""Draws the report's plots as SVG to stand inside a page. The one importer of matplotlib, an extra."""

from __future__ import annotations

import importlib
import io
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from extproc.errors import ConfigError
from extproc.sim.report.curves import Curves
from extproc.sim.report.spread import quantile
from extproc.sim.report.suite_json import ORACLE, OURS, ROUND_ROBIN

# Okabe and Ito's palette, which people with any kind of colour blindness tell apart; dashes tell them apart in grey.
_OURS_COLOUR = "#D55E00"
_RIVALS = (("#0072B2", "-"), ("#009E73", "--"), ("#CC79A7", "-."), ("#56B4E9", (0, (1, 1))), ("#E69F00", (0, (5, 1))))
_DARKEST = 0.99  # quantile of loads from which on all are as dark: one jam would pale the rest
_OTHERS_COLOUR = "#C9CDD2"
_SETTINGS: dict[str, Any] = {
    "font.family": "sans-serif",
    "font.size": 9,
    "svg.fonttype": "none",  # text stays text: small, and can be searched and read aloud
    "svg.hashsalt": "extproc",  # the same plot is the same file
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#6B7280",
    "axes.titlesize": 9,
    "axes.titlelocation": "left",
    "xtick.color": "#374151",
    "ytick.color": "#374151",
    "axes.grid": True,
    "grid.color": "#ECEEF1",
    "legend.frameon": False,
}


@dataclass(frozen=True, slots=True)
class Style:
    """How a policy's line looks in every plot of a page; grey ones have no place in the legend."""

    colour: str
    dash: Any
    width: float
    named: bool
    layer: int


def styles(policies: Sequence[str]) -> dict[str, Style]:
    """Ours stands out, round robin and the first rivals have a colour, the oracle is dotted black, others are grey."""
    coloured = [policy for policy in policies if policy not in (OURS, ORACLE, ROUND_ROBIN)][: len(_RIVALS) - 1]
    coloured += [ROUND_ROBIN] if ROUND_ROBIN in policies else []
    rivals = dict(zip(coloured, _RIVALS, strict=False))
    found: dict[str, Style] = {}
    for policy in policies:
        if policy == OURS:
            found[policy] = Style(_OURS_COLOUR, "-", 2.6, True, 5)
        elif policy == ORACLE:
            found[policy] = Style("#111827", ":", 1.4, True, 4)
        elif policy in rivals:
            colour, dash = rivals[policy]
            found[policy] = Style(colour, dash, 1.5, True, 3)
        else:
            found[policy] = Style(_OTHERS_COLOUR, "-", 0.9, False, 2)
    return found


def styles_of(names: Sequence[str], ours: str) -> dict[str, Style]:
    """The same for other rules: ours stands out, the first rivals have a colour, others are grey."""
    rivals = dict(zip([name for name in names if name != ours], _RIVALS, strict=False))
    found = {name: Style(*rivals[name], 1.5, True, 3) for name in names if name in rivals}
    grey = {name: Style(_OTHERS_COLOUR, "-", 1.2, True, 2) for name in names if name != ours and name not in rivals}
    return {ours: Style(_OURS_COLOUR, "-", 2.6, True, 5)} | found | grey


def ttft_plot(name: str, runs: Sequence[Curves], look: Mapping[str, Style]) -> str:
    """Share of all requests that have their first token by a time; a curve ends below 1 where some were not served."""

    def draw(figure: Any) -> None:
        axes = figure.add_subplot()
        for run in runs:
            points = len(run.ttft_s)
            shares = [run.answered * (i + 1) / points for i in range(points)]
            axes.plot([max(ttft_s, 1e-3) for ttft_s in run.ttft_s], shares, **line(run.policy, look[run.policy]))
        axes.set_xscale("log")
        axes.set_ylim(0.0, 1.01)
        axes.set_xlabel("time to first token, s")
        axes.set_ylabel("share of all requests")
        axes.xaxis.set_major_formatter("{x:g}")
        legend(figure, axes)

    return _svg(name, "TTFT distribution of each policy", (7.6, 3.6), draw)


def goodput_plot(
    name: str, fleets: Mapping[str, Mapping[str, Mapping[float, float]]], look: Mapping[str, Style]
) -> str:
    """One panel a fleet, one line a policy: goodput at each load; `fleets` is fleet -> policy -> load -> goodput."""

    def draw(figure: Any) -> None:
        panels = figure.subplots(1, len(fleets), sharey=True, squeeze=False)[0]
        for axes, (fleet, policies) in zip(panels, fleets.items(), strict=True):
            for policy, by_load in policies.items():
                style = line(policy, look[policy])
                axes.plot(list(by_load), list(by_load.values()), marker="o", markersize=3, **style)
            axes.set_title(f"fleet {fleet}")
            axes.set_xlabel("load, of the fleet's capacity")
            axes.xaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
            axes.set_xticks(sorted({load for by_load in policies.values() for load in by_load}))
            axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
        panels[0].set_ylabel("goodput")
        legend(figure, panels[-1])

    return _svg(name, "Goodput against load", (3.4 * len(fleets) + 1.8, 3.4), draw)


def loads_plot(name: str, runs: Sequence[Curves]) -> str:
    """One strip a policy: a row for each instance, time to the right, darker with more requests on it."""
    loads = sorted(load for run in runs for row in run.loads for load in row if load is not None)
    top = max(quantile(loads, _DARKEST), 1.0) if loads else 1.0

    def draw(figure: Any) -> None:
        panels = figure.subplots(len(runs), 1, sharex=True, squeeze=False)[:, 0]
        colours = importlib.import_module("matplotlib").colormaps["Blues"].with_extremes(bad="#E5E7EB")
        image = None
        for axes, run in zip(panels, runs, strict=True):
            grid = [[float("nan") if load is None else load for load in row] for row in run.loads]
            span = (run.at_s[0] / 60, run.at_s[-1] / 60, len(grid) - 0.5, -0.5)
            image = axes.imshow(
                grid, aspect="auto", extent=span, cmap=colours, vmin=0, vmax=top, interpolation="nearest"
            )
            axes.set_title(run.policy, fontweight="bold" if run.policy == OURS else "normal")
            axes.grid(visible=False)
            axes.set_yticks(range(len(run.instances)), run.instances, fontsize=7 if len(run.instances) <= 10 else 5)
        panels[-1].set_xlabel("minutes")
        figure.colorbar(image, ax=list(panels), label="requests, running and waiting", shrink=0.7, extend="max")

    rows = max(len(run.instances) for run in runs)
    return _svg(name, "Load of each instance over time", (7.6, 0.7 + len(runs) * (0.45 + 0.1 * rows)), draw)


def line(policy: str, style: Style) -> dict[str, Any]:
    """How matplotlib draws a policy's line."""
    return {
        "color": style.colour,
        "linestyle": style.dash,
        "linewidth": style.width,
        "zorder": style.layer,
        "label": policy if style.named else "_",
    }


def legend(figure: Any, axes: Any) -> None:
    """Name the lines of some axes beside the figure."""
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside center right", handlelength=2.8)


def _svg(name: str, label: str, size_in: tuple[float, float], draw: Callable[[Any], None]) -> str:
    """An SVG element: `name` keeps its ids apart from those of the page's other plots."""
    return _inline(_drawn(size_in, draw, transparent=True), name, label, size_in[0])


def svg_file(title: str, size_in: tuple[float, float], draw: Callable[[Any], None]) -> str:
    """A whole SVG file on white. Raises ConfigError if matplotlib is missing."""
    text = _drawn(size_in, draw, transparent=False)
    head, rest = text[: text.index("<svg")], text[text.index("<svg") :]
    tag, body = rest.split(">", 1)
    return f"{head}{tag}>\n <title>{title}</title>{body}"


def _drawn(size_in: tuple[float, float], draw: Callable[[Any], None], *, transparent: bool) -> str:
    matplotlib = load_matplotlib()
    with matplotlib.rc_context(_SETTINGS):
        figure = importlib.import_module("matplotlib.figure").Figure(figsize=size_in, layout="constrained")
        draw(figure)
        text = io.StringIO()
        nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        figure.savefig(text, format="svg", metadata=nothing, transparent=transparent, dpi=150)
    return text.getvalue()


def _inline(svg: str, name: str, label: str, width_in: float) -> str:
    """The bare element: no XML head, no namespaces (HTML needs none), only ids that are used, its width in pixels."""
    head, rest = svg[svg.index("<svg") :].split(">", 1)
    view = re.search(r'viewBox="[^"]*"', head)
    width = f'style="width: {width_in * 96:.0f}px"'
    svg = f'<svg role="img" aria-label="{label}" {width} {view.group() if view else ""}>{rest.strip()}'
    used = set(re.findall(r'(?:href="|url\()#([^")]+)', svg))
    svg = re.sub(r' id="([^"]+)"', lambda found: f' id="{name}-{found[1]}"' if found[1] in used else "", svg)
    return re.sub(r'(href="|url\()#', rf"\1#{name}-", svg)


def load_matplotlib() -> Any:
    """Load the module. Raises ConfigError if it is missing."""
    try:
        return importlib.import_module("matplotlib")
    except ImportError:
        raise ConfigError("a page with plots needs matplotlib: pip install 'extproc[plots]'") from None
