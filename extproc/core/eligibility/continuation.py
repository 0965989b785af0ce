"""Whether an instance that drains takes a request after all: only a short continuation of a session that it has.

A session is known by its prefix: at least half of the prompt is held there, and by nobody who is Ready. A system prompt
that many share is held elsewhere too, or soon will be, so that it makes no new request a continuation. It is short if
what is yet to be computed, of the prompt and of the answer together, is no more than the operator allows.

And a drain ends, whatever sessions do. Who has nothing left to do takes nothing more: whoever stops those that are idle
can do so at any moment. And each has only some time from its drain's begin on, so that sessions that go on for ever
move before what runs would be cut off.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec

from extproc.core.fleet.fleet import Member
from extproc.core.values.arrays import Flags, Floats
from extproc.core.values.decision import NoContinuation, Why
from extproc.core.values.request import Request

if TYPE_CHECKING:
    from extproc.core.column_tables import Standing
    from extproc.core.eligibility.constraints import Fitting
    from extproc.core.snapshot import Snapshot

OWN_SHARE = 0.5  # of a prompt: with less of it held by this instance alone, most is as well computed anywhere else


def over(member: Member, snapshot: Snapshot, now: float) -> NoContinuation | None:
    """Why an instance that drains takes nothing at all any more; None if it may take continuations."""
    since_s, limit_s = member.draining_since_s, snapshot.policy.draining_continuation_s
    if since_s is not None and now - since_s >= limit_s:  # since before we first looked: that long at the least
        return NoContinuation(Why.DRAINS_TOO_LONG, limit_s, limit_s if math.isinf(since_s) else now - since_s)
    requests = snapshot.ledger.work(member.instance.key).requests
    return None if requests else NoContinuation(Why.IDLE, 1, requests)


def takes_continuations(member: Member, snapshot: Snapshot) -> bool:
    """Whether an instance drains, and the operator lets those take continuations."""
    return member.draining_since_s is not None and snapshot.policy.draining_continuation_tokens > 0


def no_continuation(
    request: Request, member: Member, snapshot: Snapshot, now: float, cached_tokens: float, elsewhere_tokens: float
) -> NoContinuation | None:
    """Why a request is no continuation for an instance that `takes_continuations`; None if it is one.

    Tokens of its prompt are believed to be held: so many by the instance itself, and `elsewhere_tokens` by the one that
    holds the most of those who are Ready and fulfil the request's demand.
    """
    ended = over(member, snapshot, now)
    if ended is not None:
        return ended
    needed_tokens, own_tokens = OWN_SHARE * request.prompt_tokens, cached_tokens - elsewhere_tokens
    if own_tokens < needed_tokens or not cached_tokens:
        return NoContinuation(Why.PREFIX_TOO_SHORT, needed_tokens, max(0.0, own_tokens))
    most_tokens = snapshot.policy.draining_continuation_tokens
    work_tokens = request.prompt_tokens - cached_tokens + request.expected_output_tokens
    return NoContinuation(Why.TOO_MUCH_WORK, work_tokens, most_tokens) if work_tokens > most_tokens else None


def held_elsewhere(ready: Flags, held_tokens: Floats) -> float:
    """The most tokens that one of these holds."""
    return float(held_tokens[ready].max(initial=0.0))


def continuable(standing: Standing, snapshot: Snapshot, now: float) -> tuple[int, ...]:
    """Rows of those that drain, fulfil a demand, and may take continuations."""
    if not snapshot.policy.draining_continuation_tokens:
        return ()
    members, misfits = snapshot.members, standing.misfits
    return tuple(
        [row for row in snapshot.columns.draining if misfits[row] is None and over(members[row], snapshot, now) is None]
    )


def with_continuations(
    found: Fitting, request: Request, snapshot: Snapshot, now: float, held_tokens: Floats
) -> Fitting:
    """Without those that drain and of which the request is no continuation.

    `held_tokens`: of the prompt, by each instance. The columns must be those of `now`.
    """
    able, elsewhere_tokens = found.able.copy(), held_elsewhere(found.standing.fits, held_tokens)
    for row in found.draining:
        cached_tokens = held_tokens.item(row)
        if no_continuation(request, snapshot.members[row], snapshot, now, cached_tokens, elsewhere_tokens) is not None:
            able[row] = False
    return msgspec.structs.replace(found, able=able)
