"""Where sessions are at home: their next request stays there unless another place is better beyond doubt.

What the session's prefix is worth is in the cost. This is hysteresis against the cost's own error: without it a
session goes to and fro between two instances that are about as good, and leaves its prefix on both.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from extproc.core.decision import Candidate
from extproc.core.request import Request

MARGIN_SHARE = 0.1  # of the best cost: what a prediction may be off by
MARGIN_LIMIT_S = 0.1  # a long answer's 10 % are seconds: worth a move
KEEP_S = 600.0
_MOST_SESSIONS = 100_000

SessionName = tuple[str, str, str]
"""Tenant, model, session."""


def session_name(request: Request) -> SessionName | None:
    """Name that a request's session is kept under, None if it belongs to none."""
    return (request.tenant, request.model, request.session) if request.session else None


class SessionHomes:
    """The latest instance of each session; the sessions longest silent are forgotten first."""

    def __init__(self, most: int = _MOST_SESSIONS, keep_s: float = KEEP_S) -> None:
        self._most = most
        self._keep_s = keep_s
        self._homes: OrderedDict[SessionName, tuple[str, float]] = OrderedDict()

    def __len__(self) -> int:
        """Sessions that are remembered."""
        return len(self._homes)

    def of(self, request: Request, now: float) -> str | None:
        """`Instance.key` of the session's home, None if it has none or was silent for too long."""
        name = session_name(request)
        home = self._homes.get(name) if name else None
        return home[0] if home and now - home[1] <= self._keep_s else None

    def settle(self, request: Request, key: str, now: float) -> None:
        """A request of the session goes there."""
        name = session_name(request)
        if name is None:
            return
        self._homes[name] = key, now
        self._homes.move_to_end(name)
        while len(self._homes) > self._most:
            self._homes.popitem(last=False)


def stay(ranked: Sequence[Candidate], home: str | None, share: float = MARGIN_SHARE) -> Candidate | None:
    """The candidate at home if none is better by more than the margin, else None. `ranked`: the cheapest first."""
    if home is None:
        return None
    best_s = ranked[0].cost.total_s
    limit_s = best_s + min(share * best_s, MARGIN_LIMIT_S)
    for candidate in ranked:
        if candidate.cost.total_s > limit_s:
            return None
        if candidate.instance.key == home:
            return candidate
    return None
