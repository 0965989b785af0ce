"""The latest decisions as short rows: enough for a list; the whole of one stands on its own page."""

from __future__ import annotations

from typing import Any

from extproc.core.reasons.measured import measured
from extproc.core.values.instance import id_of
from extproc.core.values.outcome import Outcome
from extproc.observe.recent import Kept


def decision_row(kept: Kept, now: float) -> dict[str, Any]:
    """One decision and what became of it, as plain values for JSON; None where it is not known, or not yet."""
    request, decision = kept.material.request, kept.material.decision
    chosen = decision.chosen
    return {
        "id": request.id,
        "age_s": max(0.0, now - kept.at_s),
        "model": request.model,
        "api": request.api,
        "class": request.request_class,
        "prompt_tokens": request.prompt_tokens,
        "expected_output_tokens": request.expected_output_tokens,
        "instance": chosen.instance.id if chosen else None,
        "partner": decision.partner.instance.id if decision.partner else None,
        "reason": decision.reason or decision.waived,
        "cached_tokens": chosen.cached_tokens if chosen else None,
        "total_s": chosen.cost.total_s if chosen else None,
        "ttft_s": chosen.cost.ttft_s if chosen else None,
        "tpot_s": chosen.tpot_s if chosen else None,
        "held_s": kept.material.held_s,
        "shadow": kept.material.shadow or None,
        "went": None if kept.went is None else id_of(kept.went.key),
        "rejected": len(decision.rejected),
        "outcome": None if kept.outcome is None else _ended(kept.outcome),
    }


def _ended(outcome: Outcome) -> dict[str, Any]:
    went = measured(outcome)
    return {
        "status": went.status,
        "attempts": went.attempts,
        "ttft_s": went.ttft_s,
        "tpot_s": went.tpot_s,
        "duration_s": went.duration_s,
        "completion_tokens": went.completion_tokens,
    }
