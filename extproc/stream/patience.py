"""How long Envoy waits for a reply: it heeds one wish for more time a message, and goes on undecided after that."""

from __future__ import annotations

from dataclasses import replace

from extproc.stream.errands import AwaitModel, Hold
from extproc.stream.messages import BodyMode, MoreTime

MARGIN_S = 2.0
"""Asked of Envoy beyond the longest wait: for the errands after it, and for what the event loop may be behind."""

Wait = Hold | AwaitModel
"""Errands that may take longer than Envoy waits by itself."""


class Patience:
    """Envoy's, for the reply to one request's body."""

    def __init__(self) -> None:
        self._until_s = float("inf")  # as far as it was asked

    def wait(self, errand: Wait, mode: BodyMode, now: float) -> tuple[Wait, MoreTime | None]:
        """The errand, for no longer than Envoy waits, and what to tell Envoy before; None if it has been told.

        In FULL_DUPLEX it counts no time.
        """
        errand = replace(errand, until_s=min(errand.until_s, self._until_s))
        if self._until_s < float("inf") or mode is BodyMode.FULL_DUPLEX:
            return errand, None
        for_s = max(0.0, errand.until_s - now)
        self._until_s = now + for_s
        return errand, MoreTime(for_s + MARGIN_S)
