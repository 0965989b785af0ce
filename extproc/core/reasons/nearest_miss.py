"""When no instance can serve a request: the one that came nearest, what it lacked, and when that may have passed."""

from __future__ import annotations

from dataclasses import dataclass

from extproc.core.pairs.lacking import with_stack
from extproc.core.reasons.rejection_text import said
from extproc.core.reasons.retry_after import wait_s
from extproc.core.snapshot import Snapshot
from extproc.core.values.decision import Decision, Reason, Rejection, nearness
from extproc.core.values.instance import Lifecycle
from extproc.core.values.request import Request

_LIFECYCLES = {
    lifecycle.value: float(place)
    for place, lifecycle in enumerate(
        (
            Lifecycle.READY,
            Lifecycle.LOADING,
            Lifecycle.STARTING,
            Lifecycle.DRAINING,
            Lifecycle.UNHEALTHY,
            Lifecycle.STOPPED,
        )
    )
}
_FAR = float("inf")


@dataclass(frozen=True, slots=True, kw_only=True)
class Miss:
    """The instance nearest to serving a request that none could serve."""

    instance: str
    reason: Reason
    needs: str | float | tuple[str, ...]
    has: str | float | tuple[str, ...]
    wait_s: float | None  # until it may have what is needed; None: not known, or never
    text: str


def nearest_miss(request: Request, decision: Decision, snapshot: Snapshot, now: float) -> Miss | None:
    """The miss of a decision without choice, None if there was a choice or nothing to choose from."""
    if decision.chosen is not None or not decision.rejected:
        return None
    reason = decision.reason  # the nearest of all; `distance` alone would be slower in a large fleet
    members = {member.instance.id: member for member in snapshot.members}

    def left_s_of(each: Rejection) -> float | None:
        member = members.get(each.instance_id)
        return None if member is None else wait_s(request, member, each, snapshot, now)

    def how_far(each: Rejection) -> tuple[float, float]:
        if reason is not Reason.NOT_READY:
            return _lack(each), 0.0
        # Of starts the one counts that is over first, however far it is: that is when a client may come again.
        left_s = left_s_of(each)
        return _FAR if left_s is None else left_s, _lack(each)

    nearest = min((each for each in decision.rejected if each.reason is reason), key=how_far)
    nearest = with_stack(nearest, snapshot.policy.hand_over)
    left_s = left_s_of(nearest)
    soon = "" if left_s is None else f"; perhaps in {_rounded(left_s)} s"
    return Miss(
        instance=nearest.instance_id,
        reason=nearest.reason,
        needs=nearest.needs,
        has=nearest.has,
        wait_s=left_s,
        text=f"{nearest.instance_id} {said(nearest)}{soon}",
    )


def distance(rejection: Rejection) -> tuple[float, float]:
    """How far an instance is from serving: first by the order of reasons, then by how much it lacks."""
    return -nearness(rejection), _lack(rejection)


def _lack(rejection: Rejection) -> float:
    """What is missing within one reason: mostly the ratio of what is needed to what is there."""
    needs, has = rejection.needs, rejection.has
    match rejection.reason:
        case Reason.MODEL_NOT_SERVED:
            return _FAR
        case Reason.NOT_READY:
            return _LIFECYCLES.get(str(has), _FAR)
        case Reason.CAPABILITY_MISSING:
            return float(len(needs)) if isinstance(needs, tuple) else 1.0
        case Reason.STALE | Reason.COOLING_DOWN | Reason.PUSHED_BACK:
            return has if isinstance(has, int | float) else _FAR
    if isinstance(needs, int | float) and isinstance(has, int | float):
        if rejection.reason is Reason.KV_FULL:  # many have none free
            return needs - has
        return needs / has if has > 0 else _FAR
    return _FAR


def _rounded(wait_s: float) -> str:
    return f"{wait_s:.0f}" if wait_s >= 9.5 else f"{wait_s:.1f}"
