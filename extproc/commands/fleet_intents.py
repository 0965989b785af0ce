"""Load intents as `extproc fleet --intents` shows them: models that are wanted and that nobody serves."""

from __future__ import annotations

import json
from collections.abc import Sequence

import msgspec

from extproc.adapters.intents import Intent
from extproc.text_table import table_lines

_HEAD = ("MODEL", "WANTED FOR", "LATEST", "REQUESTS", "WAITING")


def as_json(intents: Sequence[Intent]) -> str:
    """One list; times are seconds of the epoch."""
    return json.dumps([msgspec.to_builtins(each) for each in intents])


def as_table(intents: Sequence[Intent], fleet: str, now_s: float) -> str:
    """One line each, the oldest first. `now_s` is seconds of the epoch."""
    if not intents:
        return f"no model is wanted in fleet {fleet!r} that nobody serves"
    rows = [_HEAD, *(_row(each, now_s) for each in intents)]
    return "\n".join(table_lines(rows, right=_HEAD[1:]))


def _row(intent: Intent, now_s: float) -> tuple[str, ...]:
    since_s, latest_s = max(0.0, now_s - intent.since_s), max(0.0, now_s - intent.latest_s)
    return intent.model, f"{since_s:.0f} s", f"{latest_s:.0f} s ago", str(intent.requests), str(intent.waiting)
