"""Told of each reply and outcome by the service: counts them, and remembers the latest decisions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from itertools import islice
from typing import Any

import msgspec

from extproc.api.errors import SHED
from extproc.core.reasons.explanation import Explanation, Material
from extproc.core.reasons.measured import Served
from extproc.core.scaling.tally import Tally
from extproc.core.values.decision import Rejection
from extproc.core.values.instance import id_of
from extproc.core.values.outcome import Outcome
from extproc.observe.dashboard.rows import decision_row
from extproc.observe.dashboard.watch import Watch
from extproc.observe.metrics import Metrics
from extproc.observe.phases import Phases
from extproc.observe.recent import LAST, Kept, RecentDecisions
from extproc.stream.exchange import Exchange
from extproc.stream.messages import Annotate, Answer, PassOn, Reply, RouteTo

AT = "at_s"  # beside an explanation of the latest decision, on the clock that all processes of a machine share


class Observer:
    """Keeps no prompt text; rendering is left to whoever asks."""

    def __init__(
        self,
        metrics: Metrics,
        served: Callable[[Outcome], Served | None] = lambda outcome: None,
        tally: Tally | None = None,
        watch: Watch | None = None,
    ) -> None:
        """`served` tells which instance served a request, None if it is not known.

        `tally` counts for an autoscaler, `watch` for the dashboard.
        """
        self._metrics = metrics
        self._served = served
        self._tally = tally
        self._watch = watch
        self._recent = RecentDecisions()
        self.phases = Phases()
        metrics.add(self.phases.spread)
        self.also: list[Callable[[Exchange, Reply, float], None]] = []
        """Told of each reply too that ends a request's course, with the seconds that it took."""
        self.also_finished: list[Callable[[Outcome, Served | None], None]] = []
        """Told of each outcome too."""
        self.mark: Callable[[Exchange, RouteTo, float], RouteTo] | None = None
        """Asked of each reply that routes before it is sent: what it adds to the features comes with the outcome."""

    def replied(self, exchange: Exchange, reply: Reply, took_s: float) -> None:
        """One message was answered in `took_s` seconds."""
        match reply:
            case RouteTo():
                self._routed(exchange, reply, took_s)
            case Answer():
                self._metrics.answered(reply.reason)
            case PassOn():
                self._metrics.passed_on(reply.reason)
                if exchange.shadow is not None:
                    self._metrics.shadow.decided(exchange.shadow)
            case Annotate():
                self._seen(exchange, reply)
                return
            case _:
                return
        if exchange.shadow is None:
            self._count_held(exchange, reply)
        if self._tally is not None:
            self._count(self._tally, exchange, reply)
        material = exchange.material()
        if material is not None:
            features = None if isinstance(reply, Answer) else reply.features
            self._recent.add(material, exchange.trace_id, features, self._watch.clock() if self._watch else 0.0)
        if self._watch is not None:
            self._watch.replied(exchange, reply, took_s)
        for tell in self.also:
            tell(exchange, reply, took_s)

    def _routed(self, exchange: Exchange, reply: RouteTo, took_s: float) -> None:
        self._metrics.routed(reply.features, took_s)
        if exchange.decision is not None and exchange.decision.chosen is not None:
            self._metrics.priced(exchange.decision.chosen.cost)
        if exchange.asked not in ("", reply.features.model):
            self._metrics.chose_model(exchange.asked, reply.features.model)

    def _seen(self, exchange: Exchange, reply: Annotate) -> None:
        """An answer begins; where a request in shadow went shows only by that."""
        shadow = exchange.shadow
        if shadow is None or shadow.went is None:
            return
        self._metrics.shadow.seen(shadow.went)
        if shadow.request is not None:
            self._recent.seen(shadow.request.id, shadow.went, reply.features)

    def _count_held(self, exchange: Exchange, reply: Reply) -> None:
        request, decision = exchange.request, exchange.decision
        if request is None or decision is None:
            return
        if exchange.held_s is not None:
            self._metrics.held(
                request.request_class, exchange.held_s, "shed" if isinstance(reply, Answer) else "let_go"
            )
        if decision.reason in SHED:
            self._metrics.shed(request.request_class, decision.reason)

    def _count(self, tally: Tally, exchange: Exchange, reply: RouteTo | Answer | PassOn) -> None:
        features = None if isinstance(reply, Answer) else reply.features
        if features is not None:
            tally.routed(features)
        elif exchange.request is not None and exchange.decision is not None:
            tally.refused(exchange.request, exchange.decision.reason)

    def finished(self, outcome: Outcome) -> None:
        """One request has ended."""
        served = self._served(outcome)
        self._metrics.finished(outcome, served)
        if self._watch is not None:
            self._watch.finished(outcome, served)
        if self._tally is not None:
            self._tally.ended(outcome)
        self._recent.finish(outcome)
        for tell in self.also_finished:
            tell(outcome, served)

    def page(self) -> bytes:
        """The page that Prometheus scrapes."""
        return self._metrics.page()

    def recent(self) -> list[dict[str, Any]]:
        """Latest decisions, oldest first: where to, at what cost, what else was possible, what was not and why."""
        return [describe(kept.material) | _shadow(kept) for kept in self._recent.oldest()]

    def rows(self, most: int) -> list[dict[str, Any]]:
        """Short rows of the latest decisions, newest first."""
        now = self._watch.clock() if self._watch else 0.0
        return [decision_row(kept, now) for kept in islice(self._recent.newest(), most)]

    def explain(self, request_id: str) -> Explanation | None:
        """One of them with its reasons and its outcome, by our id, Envoy's, or "last"; None if it is not known."""
        return self._recent.explain(request_id)

    def told(self, request_id: str) -> dict[str, Any] | None:
        """The same as plain values, for another process; of the latest decision with its time (`AT`)."""
        explanation = self.explain(request_id)
        if explanation is None:
            return None
        return asdict(explanation) | ({AT: self._recent.latest_at_s} if request_id == LAST else {})


def _shadow(kept: Kept) -> dict[str, Any]:
    """Of a request in shadow what would have become of it and where it went, None of others."""
    if not kept.material.shadow:
        return {"shadow": None}
    seen = kept.went
    where = None if seen is None else {"instance": id_of(seen.key), "regret_s": seen.regret_s}
    return {"shadow": {"would": kept.material.shadow, "went": where}}


def describe(known: Material) -> dict[str, Any]:
    """A decision as plain values for JSON."""
    request, decision = known.request, known.decision
    chosen = decision.chosen
    return {
        "request": request.id,
        "api": request.api,
        "model": request.model,
        "models": None if known.models is None else asdict(known.models),
        "prompt_tokens": request.prompt_tokens,
        "expected_output_tokens": request.expected_output_tokens,
        "instance": chosen.instance.id if chosen else None,
        "partner": decision.partner.instance.id if decision.partner else None,
        "cached_tokens": chosen.cached_tokens if chosen else None,
        "cost": msgspec.structs.asdict(chosen.cost) if chosen else None,
        "alternatives": [
            {"instance": other.instance.id, "cost": msgspec.structs.asdict(other.cost)}
            for other in decision.alternatives
        ],
        "reason": decision.reason,
        "rejected": [_rejected(each) for each in decision.rejected],
    }


def _rejected(rejection: Rejection) -> dict[str, Any]:
    told = {"instance": rejection.instance_id, "reason": rejection.reason, "needs": rejection.needs}
    continuation = rejection.continuation
    more = {} if continuation is None else {"continuation": msgspec.structs.asdict(continuation)}
    return {**told, "has": rejection.has, **more}
