"""The live table: instances on top, the latest decisions below, a line on what is going on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

_COLOURS = {"Ready": "green", "Draining": "yellow", "Loading": "cyan", "Starting": "cyan"}
_DECISIONS_SHOWN = 8


def live_view(fleet: Sequence[dict[str, Any]], decisions: Sequence[dict[str, Any]], status: str) -> RenderableType:
    """All that the demo shows at one moment."""
    return Group(instances_table(fleet, decisions), _decisions(decisions), Text(status, style="bold"))


def instances_table(fleet: Sequence[dict[str, Any]], decisions: Sequence[dict[str, Any]]) -> Table:
    """One row an instance, with how many of the latest decisions it got. Fits 80 columns."""
    chosen = Counter(decision["instance"] for decision in decisions)
    table = _table("Instances", ("instance", "GPU", "lifecycle"))
    for name in ("in flight", "wait", "KV", "queue", "blocks", "age", "chosen"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in sorted(fleet, key=lambda row: row["id"]):
        table.add_row(
            row["id"],
            row["hardware"],
            Text(row["lifecycle"], style=_COLOURS.get(row["lifecycle"], "red")),
            str(row["in_flight"]),
            _number(row["waiting"]),
            "?" if row["kv_usage"] is None else f"{row['kv_usage']:.0%}",
            f"{row['prefill_backlog_s'] * 1e3:.0f} ms",
            str(row["prefix_blocks"]),
            f"{row['age_s']:.1f} s",
            str(chosen[row["id"]]),
        )
    return table


def _decisions(decisions: Sequence[dict[str, Any]]) -> Table:
    table = _table("Latest decisions, and what they were expected to cost: total has all terms", ("sent to",))
    for name in ("prompt", "cached", "queue", "prefill", "decode", "total", "second best"):
        table.add_column(name, justify="right", no_wrap=True)
    for decision in reversed(decisions[-_DECISIONS_SHOWN:]):
        cost = decision["cost"]
        if cost is None:
            table.add_row(f"refused: {decision['reason']}")
            continue
        second = decision["alternatives"][0] if decision["alternatives"] else None
        table.add_row(
            decision["instance"],
            str(decision["prompt_tokens"]),
            str(decision["cached_tokens"]),
            *(f"{cost[term] * 1e3:.0f} ms" for term in ("queue_s", "prefill_s", "decode_s")),
            f"{_total_s(cost):.2f} s",
            f"{second['instance']} {_total_s(second['cost']):.2f} s" if second else "none",
        )
    return table


def _table(title: str, words: Sequence[str]) -> Table:
    """Without lines between columns: they would take a third of a narrow terminal."""
    table = Table(title=title, title_justify="left", expand=True, box=SIMPLE_HEAD, padding=0, show_edge=False)
    for name in words:
        table.add_column(name, no_wrap=True)
    return table


def _total_s(cost: dict[str, float]) -> float:
    return sum(cost.values())


def _number(value: int | None) -> str:
    return "?" if value is None else str(value)
