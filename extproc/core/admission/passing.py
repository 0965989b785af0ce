"""Which reasons against an instance may be gone in a while, so that a request can wait for that.

A start is none of them: it is not waited for as room is, which comes within a share of a class's TTFT. Where the model
is loaded nowhere, the rules of cold models say what becomes of the request (`core.models.cold`); without them it is
refused with the time that the start has left.
"""

from __future__ import annotations

from extproc.core.values.decision import Decision, Reason

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


def may_pass(decision: Decision) -> bool:
    """Whether anything that nobody could take now may be taken later as it is."""
    return any(rejection.reason in _PASSING for rejection in decision.rejected)
