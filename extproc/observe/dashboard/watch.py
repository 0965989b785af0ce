"""Sees each reply and outcome for the dashboard: rates, predictions beside what came, and who hits which prefixes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from extproc.api.errors import SHED
from extproc.core.reasons.measured import Served, measured, prediction_errors
from extproc.core.values.instance import id_of
from extproc.core.values.outcome import Features, Outcome
from extproc.observe.dashboard.hot_prefixes import HotPrefixes
from extproc.observe.dashboard.lately import Lately
from extproc.stream.exchange import Exchange
from extproc.stream.messages import Answer, PassOn, Reply, RouteTo

_FINISHED = 400  # requests whose predictions are shown beside what came
_HIT_MINUTES = 5
_MOST_HITS = 4000  # pairs of instance and model that are counted in a minute


@dataclass(slots=True)
class _Hits:
    """Prompt tokens of one instance and model, and how many of them were cached."""

    requests: int = 0
    prompt_tokens: int = 0  # as believed when they were sent
    believed_tokens: int = 0  # of these, in the cache
    checked_tokens: int = 0  # of prompts whose engine told
    cached_tokens: int = 0  # of these, as it told


class Watch:
    """One process's; `clock` only goes forward, in seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.since_s = clock()
        self.lately = Lately(self.since_s)
        self.hot = HotPrefixes()
        self._finished: deque[tuple[float, Outcome, Served]] = deque(maxlen=_FINISHED)
        self._hits: deque[tuple[int, dict[tuple[str, str], _Hits]]] = deque(maxlen=_HIT_MINUTES + 1)

    def replied(self, exchange: Exchange, reply: Reply, took_s: float) -> None:
        """A request was routed, answered or passed on; answering its body took `took_s`."""
        now = self.clock()
        sums = self.lately.sums(now)
        match reply:
            case RouteTo():
                sums.routed += 1
                sums.reply_s += took_s
                self.lately.of(id_of(reply.features.instance_key), now).routed += 1
                if exchange.request is not None:
                    self.hot.note(exchange.request, now)
            case Answer():
                decision = exchange.decision
                if decision is not None and decision.reason in SHED:
                    sums.shed += 1
                else:
                    sums.refused += 1
            case PassOn():
                sums.passed_on += 1

    def finished(self, outcome: Outcome, served: Served | None) -> None:
        """A request has ended; `served` answered it, None if that is not known."""
        now, features = self.clock(), outcome.features
        sums = self.lately.sums(now)
        sums.finished += 1
        sums.failed += outcome.failed
        sums.retries += max(0, outcome.attempts - 1)
        sums.output_tokens += outcome.completion_tokens or 0
        if outcome.cached_tokens is not None and outcome.prompt_tokens:
            sums.checked_tokens += outcome.prompt_tokens
            sums.cached_tokens += outcome.cached_tokens
        if features is None or served is None:
            return
        if outcome.ttft_s is not None and features.stream:
            sums.ttft_s += max(0.0, outcome.ttft_s - (outcome.routing_s or 0.0))
            sums.ttfts += 1
            sums.predicted_ttft_s += features.ttft_s
        served_id = id_of(served.key)
        instance = self.lately.of(served_id, now)
        instance.finished += 1
        instance.failed += outcome.failed
        instance.output_tokens += outcome.completion_tokens or 0
        self._count_hits(served_id, features, outcome, now)
        self._finished.append((now, outcome, served))

    def calibration(self) -> list[dict[str, Any]]:
        """Predicted beside measured, of requests that went as they were meant to; the oldest first."""
        now = self.clock()
        points = (_point(now - at_s, outcome, served) for at_s, outcome, served in self._finished)
        return [point for point in points if point is not None]

    def hits(self) -> list[dict[str, Any]]:
        """Of each instance and model, the prompt tokens of the last minutes and how many of them were cached."""
        since = int(self.clock() / 60.0) - _HIT_MINUTES
        over: dict[tuple[str, str], _Hits] = {}
        for minute, hits in self._hits:
            if minute < since:
                continue
            for place, each in hits.items():
                sums = over.setdefault(place, _Hits())
                for name in _Hits.__slots__:
                    setattr(sums, name, getattr(sums, name) + getattr(each, name))
        return [
            {"instance": place[0], "model": place[1]} | {name: getattr(sums, name) for name in _Hits.__slots__}
            for place, sums in over.items()
        ]

    def _count_hits(self, served_id: str, features: Features, outcome: Outcome, now: float) -> None:
        minute = int(now / 60.0)
        if not self._hits or self._hits[-1][0] != minute:
            self._hits.append((minute, {}))
        places = self._hits[-1][1]
        hits = places.get((served_id, features.model))
        if hits is None:
            if len(places) >= _MOST_HITS:
                return
            hits = places[served_id, features.model] = _Hits()
        hits.requests += 1
        hits.prompt_tokens += features.prompt_tokens
        hits.believed_tokens += features.cached_tokens
        if outcome.cached_tokens is not None and outcome.prompt_tokens:
            hits.checked_tokens += outcome.prompt_tokens
            hits.cached_tokens += outcome.cached_tokens


def _point(age_s: float, outcome: Outcome, served: Served) -> dict[str, Any] | None:
    errors, features = prediction_errors(outcome, served.key), outcome.features
    if features is None or (errors.ttft_ratio is None and errors.tpot_ratio is None):
        return None
    actual = measured(outcome)
    return {
        "request": features.request_id,
        "age_s": age_s,
        "model": features.model,
        "kind": served.kind,
        "instance": id_of(served.key),
        "predicted_ttft_s": None if errors.ttft_ratio is None else features.ttft_s,
        "ttft_s": None if errors.ttft_ratio is None else actual.ttft_s,
        "predicted_tpot_s": None if errors.tpot_ratio is None else features.tpot_s,
        "tpot_s": None if errors.tpot_ratio is None else actual.tpot_s,
    }
