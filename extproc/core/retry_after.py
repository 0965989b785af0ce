"""When a refused request may come again: as soon as the first instance that could serve it is expected to take it."""

from __future__ import annotations

from math import ceil

from extproc.core.decision import Decision, Reason
from extproc.core.fleet import Member
from extproc.core.instance import Lifecycle
from extproc.core.request import Request
from extproc.core.snapshot import Snapshot
from extproc.core.work import Work

SHORTEST_S = 1
LONGEST_S = 60
_SPREAD = 0.5  # those who were refused together must not all come back together
_STARTING = frozenset({Lifecycle.STARTING, Lifecycle.LOADING})
_FULL = frozenset({Reason.AT_CONCURRENCY_LIMIT, Reason.QUEUE_TOO_LONG})
_PAUSED = frozenset({Reason.COOLING_DOWN, Reason.PUSHED_BACK})


def retry_after_s(request: Request, decision: Decision, snapshot: Snapshot, now: float, jitter: float) -> int:
    """Whole seconds, 1 to 60, after which a request that `decision` refused is worth another try.

    `jitter` in [0, 1) adds up to half. Where nothing is known of any instance the answer is 1, or 2 with jitter.
    """
    members = {member.instance.id: member for member in snapshot.members}
    waits_s = []
    for rejection in decision.rejected:
        member = members.get(rejection.instance_id)
        left_s = wait_s(request, member, rejection.reason, snapshot, now) if member else None
        if left_s is not None:
            waits_s.append(left_s)
    spread_s = (1.0 + _SPREAD * jitter) * max(float(SHORTEST_S), min(waits_s, default=0.0))
    return min(LONGEST_S, ceil(round(spread_s, 6)))


def wait_s(request: Request, member: Member, reason: Reason, snapshot: Snapshot, now: float) -> float | None:
    """Seconds until what stands against an instance has passed, None if that is not known or never."""
    instance = member.instance
    if reason is Reason.NOT_READY:
        if instance.lifecycle not in _STARTING or instance.ready_in_s is None:
            return None
        return max(0.0, instance.ready_in_s - (now - member.observed_at_s))
    if reason in _PAUSED:
        rest_s = snapshot.cooldowns.remaining_s(instance.key, now)
        return max(rest_s, snapshot.backpressure.remaining_s(instance.key, now))
    if reason in _FULL:
        work = snapshot.ledger.work(instance.key)
        speed = snapshot.beliefs.speed(request.model, instance)
        return first_end_s(work, speed.decode_step_s(work.requests, work.context_tokens), now)
    return None


def first_end_s(work: Work, tpot_s: float, now: float) -> float | None:
    """Seconds until the first booked request is expected to end; None if none is booked.

    Each decodes at `tpot_s` from the moment on at which its prompt is computed. One that is overdue is expected
    to be over any moment.
    """
    ends_s = [
        work.prefilled_at_s[place] + reservation.output_tokens * tpot_s for place, reservation in work.active.items()
    ]
    return max(0.0, min(ends_s) - now) if ends_s else None
