"""When no instance can serve a request: the one that came nearest, what it lacked, and when that may have passed."""

from __future__ import annotations

from dataclasses import dataclass

from extproc.core.fleet import Member
from extproc.core.model import Decision, Lifecycle, Reason, Rejection, Request
from extproc.core.rejection_text import said
from extproc.core.snapshot import Snapshot

_REASONS = {reason: place for place, reason in enumerate(Reason)}  # those that pass with time stand last
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
    nearest = min((each for each in decision.rejected if each.reason is reason), key=_lack)
    member = next((each for each in snapshot.members if each.instance.id == nearest.instance_id), None)
    wait_s = None if member is None else _wait_s(request, nearest, member, snapshot, now)
    soon = "" if wait_s is None else f"; perhaps in {_rounded(wait_s)} s"
    return Miss(
        instance=nearest.instance_id,
        reason=nearest.reason,
        needs=nearest.needs,
        has=nearest.has,
        wait_s=wait_s,
        text=f"{nearest.instance_id} {said(nearest)}{soon}",
    )


def distance(rejection: Rejection) -> tuple[int, float]:
    """How far an instance is from serving: first by the order of reasons, then by how much it lacks."""
    return -_REASONS[rejection.reason], _lack(rejection)


def _lack(rejection: Rejection) -> float:
    """What is missing within one reason: the ratio of what is needed to what is there, where both are numbers."""
    needs, has = rejection.needs, rejection.has
    match rejection.reason:
        case Reason.MODEL_NOT_SERVED:
            return _FAR
        case Reason.NOT_READY:
            return _LIFECYCLES.get(str(has), _FAR)
        case Reason.CAPABILITY_MISSING:
            return float(len(needs)) if isinstance(needs, tuple) else 1.0
        case Reason.STALE | Reason.COOLING_DOWN:
            return has if isinstance(has, int | float) else _FAR
    if isinstance(needs, int | float) and isinstance(has, int | float):
        return needs / has if has > 0 else _FAR
    return _FAR


def _wait_s(request: Request, missed: Rejection, member: Member, snapshot: Snapshot, now: float) -> float | None:
    """Seconds until the constraint may hold, None where no time will do or none is known."""
    match missed.reason:
        case Reason.NOT_READY:
            return _start_s(member, snapshot)
        case Reason.COOLING_DOWN:
            return snapshot.cooldowns.remaining_s(member.instance.key, now)
        case Reason.AT_CONCURRENCY_LIMIT | Reason.QUEUE_TOO_LONG:
            return _place_s(request, missed, member, snapshot)
    return None


def _start_s(member: Member, snapshot: Snapshot) -> float | None:
    """What is left of a start, as its agent foretold."""
    ready_in_s = member.instance.ready_in_s
    if ready_in_s is None:
        return None
    return max(0.0, ready_in_s - max(0.0, snapshot.heard_at_s - member.observed_at_s))


def _place_s(request: Request, missed: Rejection, member: Member, snapshot: Snapshot) -> float | None:
    """Seconds until enough requests have ended there.

    Those that run are taken to produce as much as this one; B of them, begun at any time, end every 1/B of a decode.
    """
    work = snapshot.ledger.work(member.instance.key)
    if not work.requests:
        return None
    running = min(work.requests, member.instance.max_num_seqs or work.requests)
    tpot_s = snapshot.beliefs.speed(request.model, member.instance).decode_step_s(running, work.context_tokens)
    needs, has = missed.needs, missed.has
    ends = max(1.0, needs - has) if isinstance(needs, int | float) and isinstance(has, int | float) else 1.0
    return ends * max(1, request.expected_output_tokens) * tpot_s / running


def _rounded(wait_s: float) -> str:
    return f"{wait_s:.0f}" if wait_s >= 9.5 else f"{wait_s:.1f}"
