"""The live view of the autoscaled demo: load and instances over time, what is desired and why, what was done."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from extproc.demo.answered import LATELY_S, SLO, Answered
from extproc.demo.autoscaler import MOST
from extproc.demo.machines import Order
from extproc.demo.table import instances_table

_BARS = " ▁▂▃▄▅▆▇█"
_LOOKS_SHOWN, _ORDERS_SHOWN = 90, 6


@dataclass(frozen=True, slots=True)
class Moment:
    """What is drawn of one second."""

    requests_s: float
    load: float  # in instances
    ready: int


@dataclass(slots=True)
class Seen:
    """What was seen last, and lately. Times are seconds since the load began."""

    recommendation: dict[str, Any] = field(default_factory=dict)
    fleet: list[dict[str, Any]] = field(default_factory=list)
    decisions: list[dict[str, Any]] = field(default_factory=list)
    moments: deque[Moment] = field(default_factory=lambda: deque(maxlen=_LOOKS_SHOWN))
    orders: list[tuple[float, Order]] = field(default_factory=list)
    most_ready: int = 0
    trouble: str = ""  # that the autoscaler tells of


def scaling_view(seen: Seen, answered: Answered, most_rps: float, status: str) -> RenderableType:
    """All that the demo shows at one moment."""
    return Group(
        Text(status, style="bold"),
        _over_time(seen.moments, most_rps),
        _pool(seen.recommendation, answered),
        _why(seen.recommendation),
        Text(seen.trouble, style="red"),
        _orders(seen.orders),
        instances_table(seen.fleet, seen.decisions),
    )


def order_line(at_s: float, order: Order) -> str:
    """An order in words."""
    because = f": {order.signal.replace('_', ' ')}" if order.action == "start" and order.signal else ""
    return f"{at_s:5.0f} s  {order.action} {order.instance}{because}"


def bars(values: Iterable[float], most: float) -> str:
    """One character a value, the fuller the nearer it is to `most`; anything above nothing shows."""
    steps = len(_BARS) - 1
    return "".join(_BARS[0 if value <= 0.0 else max(1, min(steps, round(value / most * steps)))] for value in values)


def _over_time(moments: Sequence[Moment], most_rps: float) -> Table:
    table = Table.grid(padding=(0, 2))
    last = moments[-1] if moments else Moment(0.0, 0.0, 0)
    rows = (
        ("requests", bars([each.requests_s for each in moments], most_rps), f"{last.requests_s:.1f} a second"),
        ("they fill", bars([each.load for each in moments], MOST), f"{last.load:.1f} instances"),
        ("ready", bars([each.ready for each in moments], MOST), f"{last.ready} instances"),
    )
    for name, drawn, number in rows:
        table.add_row(name, Text(drawn.rjust(_LOOKS_SHOWN)[-_LOOKS_SHOWN:], style="cyan"), number)
    return table


def _pool(recommendation: dict[str, Any], answered: Answered) -> Table:
    table = Table(title="How many", title_justify="left", expand=True)
    for name in ("pool", "desired", "ready", "coming", "leaving", "without that signal", f"within {SLO}"):
        table.add_column(name, justify="left" if name == "pool" else "right")
    if recommendation:
        numbers = (recommendation[name] for name in ("desired", "ready", "coming", "leaving", "without"))
        lately, always = (_percent(share) for share in (answered.share_lately, answered.share))
        shares = f"{lately} of {LATELY_S:.0f} s, {always} of all"
        table.add_row(recommendation["pool"], *(str(number) for number in numbers), shares)
    return table


def _why(recommendation: dict[str, Any]) -> Text:
    text = Text()
    for number, driver in enumerate(recommendation.get("drivers", ())):
        line = f"{driver['instances']} by {driver['signal'].replace('_', ' ')}: {driver['why']}\n"
        text.append(line, style="bold" if number == 0 else "dim")
    return text


def _orders(orders: Sequence[tuple[float, Order]]) -> Text:
    text = Text("What extproc autoscale has asked for\n", style="italic")
    for at_s, order in reversed(orders[-_ORDERS_SHOWN:]):
        text.append(f"{order_line(at_s, order)}\n", style="green" if order.action == "start" else "yellow")
    return text


def _percent(share: float | None) -> str:
    return "?" if share is None else f"{share:.1%}"
