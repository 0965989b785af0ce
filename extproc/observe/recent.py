"""The latest decisions and what became of them, so that somebody can ask for the reasons afterwards.

Bounded twice: by the number of decisions, and by the rejections in all of them, of which a large fleet has many.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from extproc.core.reasons.explanation import Explanation, Material, explain
from extproc.core.reasons.measured import measured
from extproc.core.rollout import Went
from extproc.core.values.outcome import Features, Outcome

MOST_DECISIONS = 200
MOST_REJECTIONS = 20_000  # some 100 bytes each

LAST = "last"  # in the place of an id: the latest one


@dataclass(slots=True)
class Kept:
    """A decision, when it was made, and what became of it."""

    material: Material
    trace_id: str
    features: Features | None  # None: it went nowhere
    outcome: Outcome | None = None
    at_s: float = 0.0
    went: Went | None = None  # of one in shadow: where it went, once that is known


class RecentDecisions:
    """Decisions by request id, the oldest first."""

    def __init__(self, most: int = MOST_DECISIONS, most_rejections: int = MOST_REJECTIONS) -> None:
        self._most = most
        self._most_rejections = most_rejections
        self._kept: dict[str, Kept] = {}
        self._ids: dict[str, str] = {}  # by Envoy's id
        self._rejections = 0

    def __iter__(self) -> Iterator[Material]:
        """What is known of each, the oldest first."""
        return (kept.material for kept in self._kept.values())

    def oldest(self) -> Iterator[Kept]:
        """All of each, the oldest first."""
        return iter(self._kept.values())

    def newest(self) -> Iterator[Kept]:
        """All of each, the newest first."""
        return reversed(self._kept.values())

    @property
    def latest_at_s(self) -> float:
        """When the latest of them was made, minus infinity before the first."""
        newest = next(self.newest(), None)
        return float("-inf") if newest is None else newest.at_s

    def add(self, material: Material, trace_id: str, features: Features | None, at_s: float = 0.0) -> None:
        """Keep one that was made at `at_s`; the oldest make room."""
        request_id = material.request.id
        self._drop(request_id)
        self._kept[request_id] = Kept(material, trace_id, features, at_s=at_s)
        if trace_id:
            self._ids[trace_id] = request_id
        self._rejections += len(material.decision.rejected)
        while len(self._kept) > self._most or (self._rejections > self._most_rejections and len(self._kept) > 1):
            self._drop(next(iter(self._kept)))

    def seen(self, request_id: str, went: Went, features: Features | None) -> None:
        """Add where Envoy sent one that was in shadow; `features` are what its outcome comes with, None: the first."""
        kept = self._kept.get(request_id)
        if kept is not None:
            kept.went = went
            kept.features = features or kept.features

    def finish(self, outcome: Outcome) -> None:
        """Add what became of one. Another router's request may have the same id, but not the same features."""
        kept = self._kept.get(outcome.features.request_id) if outcome.features else None
        if kept is not None and kept.features == outcome.features:
            kept.outcome = outcome

    def explain(self, request_id: str) -> Explanation | None:
        """Explain the decision on a request by our id or Envoy's, or on the latest (`LAST`); None if it is not kept."""
        if request_id == LAST:
            request_id = next(reversed(self._kept), "")
        kept = self._kept.get(self._ids.get(request_id, request_id))
        if kept is None:
            return None
        return explain(kept.material, kept.trace_id, None if kept.outcome is None else measured(kept.outcome))

    def _drop(self, request_id: str) -> None:
        kept = self._kept.pop(request_id, None)
        if kept is None:
            return
        self._rejections -= len(kept.material.decision.rejected)
        if self._ids.get(kept.trace_id) == request_id:
            del self._ids[kept.trace_id]
