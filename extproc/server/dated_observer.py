"""An observer of one among several workers: it can also tell when its latest decision was made."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Any

from extproc.observe.observer import Observer
from extproc.observe.recent import LAST
from extproc.stream.exchange import Exchange
from extproc.stream.messages import Answer, PassOn, Reply, RouteTo

AT = "at_s"  # beside an explanation of the latest decision, on the clock that all processes of a machine share


class DatedObserver(Observer):
    """For a worker."""

    _latest_s = 0.0

    def replied(self, exchange: Exchange, reply: Reply, took_s: float) -> None:
        """One message was answered in `took_s` seconds."""
        super().replied(exchange, reply, took_s)
        if isinstance(reply, RouteTo | Answer | PassOn):
            self._latest_s = time.monotonic()

    def told(self, request_id: str) -> dict[str, Any] | None:
        """What `explain` says, as plain values; of the latest decision with its time."""
        explanation = self.explain(request_id)
        if explanation is None:
            return None
        return asdict(explanation) | ({AT: self._latest_s} if request_id == LAST else {})
