"""When a refused request may come again: as soon as the first instance that could serve it is expected to take it."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate
from math import ceil

from extproc.core.eligibility.kv_room import free_tokens
from extproc.core.fleet.fleet import Member
from extproc.core.flight.work import Reservation, Work, block_size_tokens
from extproc.core.snapshot import Snapshot
from extproc.core.values.decision import Decision, Reason, Rejection
from extproc.core.values.instance import COMING
from extproc.core.values.request import Request

SHORTEST_S = 1
LONGEST_S = 60
_SPREAD = 0.5  # those who were refused together must not all come back together
_FULL = frozenset({Reason.AT_CONCURRENCY_LIMIT, Reason.QUEUE_TOO_LONG, Reason.KV_FULL, Reason.TPOT_BEYOND_BOUND})
_PAUSED = frozenset({Reason.COOLING_DOWN, Reason.PUSHED_BACK})


def retry_after_s(
    request: Request, decision: Decision, snapshot: Snapshot, now: float, jitter: float, ahead_s: float = 0.0
) -> int:
    """Whole seconds, 1 to 60, after which a request that `decision` refused is worth another try.

    `jitter` in [0, 1) adds up to half; `ahead_s` is what those who are held ahead of it will take (`Gate.ahead_s`).
    Where nothing is known of any instance the answer is 1, or 2 with jitter.
    """
    members = {member.instance.id: member for member in snapshot.members}
    waits_s = []
    for rejection in decision.rejected:
        member = members.get(rejection.instance_id)
        left_s = wait_s(request, member, rejection, snapshot, now) if member else None
        if left_s is not None:
            waits_s.append(left_s)
    spread_s = (1.0 + _SPREAD * jitter) * max(float(SHORTEST_S), min(waits_s, default=0.0) + ahead_s)
    return min(LONGEST_S, ceil(round(spread_s, 6)))


def wait_s(request: Request, member: Member, rejection: Rejection, snapshot: Snapshot, now: float) -> float | None:
    """Seconds until what stands against an instance has passed, None if that is not known or never."""
    instance, reason = member.instance, rejection.reason
    if reason is Reason.NOT_READY:
        if instance.lifecycle not in COMING or instance.ready_in_s is None:
            return None
        return max(0.0, instance.ready_in_s - (now - member.observed_at_s))
    if reason in _PAUSED:
        rest_s = snapshot.cooldowns.remaining_s(instance.key, now)
        return max(rest_s, snapshot.backpressure.remaining_s(instance.key, now))
    if reason is Reason.TTFT_BEYOND_BOUND:
        return max(0.0, _number(rejection.needs) - _number(rejection.has))
    if reason not in _FULL:
        return None
    work = snapshot.ledger.work(instance.key)
    speed = snapshot.beliefs.speed(request.model, instance)
    ends = ends_s(work, speed.decode_step_s(work.requests, work.context_tokens), now)
    if reason is Reason.TPOT_BEYOND_BOUND:
        return _reached(ends, 1.0, _one)
    if reason is Reason.KV_FULL:
        needed_tokens = _number(rejection.needs) * block_size_tokens(instance)
        return _reached(ends, needed_tokens - free_tokens(request, instance, snapshot), _freed_tokens)
    return _reached(ends, _number(rejection.needs) - _number(rejection.has), _one)


def ends_s(work: Work, tpot_s: float, now: float) -> list[tuple[float, Reservation]]:
    """Seconds until each booked request is expected to end, the first one first.

    Each decodes at `tpot_s` from the moment on at which its prompt is computed. One that is overdue is expected
    to be over any moment.
    """
    ends = [
        (max(0.0, work.prefilled_at_s[place] + reservation.output_tokens * tpot_s - now), reservation)
        for place, reservation in work.active.items()
    ]
    return sorted(ends, key=lambda end: end[0])


def _reached(
    ends: list[tuple[float, Reservation]], lacking: float, given: Callable[[Reservation], float]
) -> float | None:
    """Seconds until enough has ended; until the last known end where that is not enough, None if there is none."""
    sums = accumulate(given(reservation) for _, reservation in ends)
    known_s = ends[-1][0] if ends else None
    return next((end_s for (end_s, _), given_up in zip(ends, sums, strict=True) if given_up >= lacking), known_s)


def _freed_tokens(reservation: Reservation) -> float:
    """KV tokens of its own; what it shares with others stays."""
    return reservation.uncached_tokens + reservation.output_tokens


def _one(_: Reservation) -> float:
    return 1.0


def _number(value: object) -> float:
    """Of places, one is lacking where the registry says only that there is none."""
    return float(value) if isinstance(value, int | float) else 0.0
