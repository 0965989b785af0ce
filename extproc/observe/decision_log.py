"""One line of the log for each decision: of the share that the operator wants, or of all at level debug."""

from __future__ import annotations

import logging

from extproc.observe.decided import decided
from extproc.observe.recorder import drawn
from extproc.observe.settings import DECISIONS
from extproc.stream.exchange import Exchange
from extproc.stream.messages import Reply

_DIGITS = 6  # of seconds, to the microsecond

log = logging.getLogger(DECISIONS)


class DecisionLog:
    """Requests of the share are told at level info, the others at debug."""

    def __init__(self, share: float) -> None:
        self._share = share

    def replied(self, exchange: Exchange, reply: Reply, took_s: float) -> None:
        """A request was answered, after so many seconds of work."""
        name = exchange.trace_id if exchange.request is None else exchange.request.id
        chosen = self._share >= 1.0 or (bool(name) and drawn(name, self._share))
        level = logging.INFO if chosen else logging.DEBUG
        if log.isEnabledFor(level):
            told = decided(exchange, reply) | {"took_s": took_s}
            rounded = {name: round(each, _DIGITS) if isinstance(each, float) else each for name, each in told.items()}
            log.log(level, "decided", extra=rounded)
