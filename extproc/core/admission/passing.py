"""Which reasons against an instance may be gone in a while, so that a request can wait for that."""

from __future__ import annotations

from extproc.core.values.decision import Decision, Reason, Rejection
from extproc.core.values.instance import Lifecycle

_PASSING = frozenset(
    {
        Reason.COOLING_DOWN,
        Reason.STALE,
        Reason.PUSHED_BACK,
        Reason.AT_CONCURRENCY_LIMIT,
        Reason.QUEUE_TOO_LONG,
        Reason.KV_FULL,
        Reason.TTFT_BEYOND_BOUND,
        Reason.TPOT_BEYOND_BOUND,
        Reason.PREFIX_ELSEWHERE,
    }
)
_COMING = frozenset({Lifecycle.STARTING.value, Lifecycle.LOADING.value})


def may_pass(decision: Decision) -> bool:
    """Whether anything that nobody could take now may be taken later as it is."""
    return any(map(_passes, decision.rejected))


def _passes(rejection: Rejection) -> bool:
    if rejection.reason is Reason.NOT_READY:
        return rejection.has in _COMING
    return rejection.reason in _PASSING
