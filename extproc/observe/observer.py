"""Told of each reply and outcome by the service: counts them, and remembers the latest decisions."""

from __future__ import annotations

from collections import deque
from dataclasses import asdict, replace
from typing import Any

from extproc.core.model import Decision, Outcome, Request
from extproc.observe.metrics import Metrics
from extproc.stream.exchange import Exchange
from extproc.stream.messages import Answer, PassOn, Reply, RouteTo

RECENT_DECISIONS = 200


class Observer:
    """Keeps no prompt text; rendering is left to whoever asks."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._recent: deque[tuple[Request, Decision]] = deque(maxlen=RECENT_DECISIONS)

    def replied(self, exchange: Exchange, reply: Reply, took_s: float) -> None:
        """One message was answered in `took_s` seconds."""
        match reply:
            case RouteTo():
                self._metrics.routed(reply.features, took_s)
            case Answer():
                self._metrics.answered(reply.reason)
            case PassOn():
                self._metrics.passed_on(reply.reason)
            case _:
                return
        if exchange.request is not None and exchange.decision is not None:
            slim = replace(exchange.request, prefix=())  # which may be a MiB, and is not shown
            self._recent.append((slim, exchange.decision))

    def finished(self, outcome: Outcome) -> None:
        """One request has ended."""
        self._metrics.finished(outcome)

    def page(self) -> bytes:
        """The page that Prometheus scrapes."""
        return self._metrics.page()

    def recent(self) -> list[dict[str, Any]]:
        """Latest decisions, oldest first: where to, at what cost, what else was possible, what was not and why."""
        return [describe(request, decision) for request, decision in self._recent]


def describe(request: Request, decision: Decision) -> dict[str, Any]:
    """A decision as plain values for JSON."""
    chosen = decision.chosen
    return {
        "request": request.id,
        "api": request.api,
        "model": request.model,
        "prompt_tokens": request.prompt_tokens,
        "expected_output_tokens": request.expected_output_tokens,
        "instance": chosen.instance.id if chosen else None,
        "cached_tokens": chosen.cached_tokens if chosen else None,
        "cost": asdict(chosen.cost) if chosen else None,
        "alternatives": [
            {"instance": other.instance.id, "cost": asdict(other.cost)} for other in decision.alternatives
        ],
        "reason": decision.reason,
        "rejected": [
            {"instance": r.instance_id, "reason": r.reason, "needs": r.needs, "has": r.has} for r in decision.rejected
        ],
    }
