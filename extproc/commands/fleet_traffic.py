"""What routers have counted, as `extproc fleet --traffic` shows it: one line a model, and how many requests wait."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING

from extproc.core.scaling.sight import Counts
from extproc.text_table import table_lines

if TYPE_CHECKING:
    from extproc.adapters.traffic_counts import Traffic

_HEAD = ("MODEL", "REQUESTS", "SHED", "HELD", "PROMPT", "CACHED", "OUTPUT", "LATE", "SLOW")


def as_json(traffic: Traffic) -> str:
    """One object: routers that told lately, and counts by model."""
    models = {model: asdict(each) | {"held": traffic.held.get(model, 0)} for model, each in _models(traffic)}
    return json.dumps({"routers": traffic.routers, "models": models})


def as_table(traffic: Traffic, fleet: str) -> str:
    """One line each, by name; tokens and shares are means over all that was ever counted."""
    routers = "1 router tells" if traffic.routers == 1 else f"{traffic.routers} routers tell"
    rows = [_HEAD, *(_row(model, each, traffic.held.get(model, 0)) for model, each in _models(traffic))]
    if len(rows) == 1:
        return f"nothing was counted yet in fleet {fleet!r}; {routers}"
    return "\n".join([*table_lines(rows, right=_HEAD[1:]), routers])


def _models(traffic: Traffic) -> list[tuple[str, Counts]]:
    return [(model, traffic.counts.get(model, Counts())) for model in sorted({*traffic.counts, *traffic.held})]


def _row(model: str, counts: Counts, held: int) -> tuple[str, ...]:
    return (
        model,
        f"{counts.requests:.0f}",
        f"{counts.shed:.0f}",
        str(held),
        _mean(counts.prompt_tokens, counts.requests),
        _share(counts.cached_tokens, counts.prompt_tokens),
        _mean(counts.output_tokens, counts.answers),
        _share(counts.late, counts.judged),
        _share(counts.slow, counts.paced),
    )


def _mean(tokens: float, number: float) -> str:
    return f"{tokens / number:.0f}" if number else "-"


def _share(part: float, whole: float) -> str:
    return f"{part / whole:.1%}" if whole else "-"
