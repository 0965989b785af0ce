"""Whether an instance that drains takes a request after all: only a short continuation of a session that it has.

A session is known by its prefix: at least half of the prompt is held there, and by nobody who is Ready. A system prompt
that many share is held elsewhere too, or soon will be, so that it makes no new request a continuation. It is short if
what is yet to be computed, of the prompt and of the answer together, is no more than the operator allows. And it must
come within some time of the drain's begin, so that a session that goes on for ever moves before its instance stops.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from extproc.core.fleet.fleet import Member
from extproc.core.values.arrays import Flags, Floats
from extproc.core.values.decision import NoContinuation, Why
from extproc.core.values.request import Request

if TYPE_CHECKING:
    from extproc.core.column_tables import Standing
    from extproc.core.eligibility.constraints import Fitting
    from extproc.core.snapshot import Policy, Snapshot

OWN_SHARE = 0.5  # of a prompt: with less of it held by this instance alone, most is as well computed anywhere else


class Held(NamedTuple):
    """Tokens of one prompt that are believed to be held."""

    here_tokens: float  # by the instance itself
    elsewhere_tokens: float = 0.0  # the most that one has who is Ready and fulfils the request's demand


def may_continue(member: Member, policy: Policy, now: float) -> bool:
    """Whether an instance drains and still takes continuations, if a request is one."""
    since_s = member.draining_since_s
    in_time = since_s is not None and now - since_s < policy.draining_continuation_s
    return in_time and policy.draining_continuation_tokens > 0


def no_continuation(request: Request, member: Member, policy: Policy, now: float, held: Held) -> NoContinuation | None:
    """Why a request is no continuation that an instance takes which drains; None if it is one.

    None too where there is nothing to say: the instance does not drain, or the operator lets it take none.
    """
    since_s, most_tokens = member.draining_since_s, policy.draining_continuation_tokens
    if since_s is None or not most_tokens:
        return None
    limit_s = policy.draining_continuation_s
    if now - since_s >= limit_s:  # since before we first looked: that long at the least
        return NoContinuation(Why.DRAINS_TOO_LONG, limit_s, limit_s if math.isinf(since_s) else now - since_s)
    needed_tokens, own_tokens = OWN_SHARE * request.prompt_tokens, held.here_tokens - held.elsewhere_tokens
    if own_tokens < needed_tokens or not held.here_tokens:
        return NoContinuation(Why.PREFIX_TOO_SHORT, needed_tokens, max(0.0, own_tokens))
    work_tokens = request.prompt_tokens - held.here_tokens + request.expected_output_tokens
    return NoContinuation(Why.TOO_MUCH_WORK, work_tokens, most_tokens) if work_tokens > most_tokens else None


def held_elsewhere(ready: Flags, held_tokens: Floats) -> float:
    """The most tokens that one of these holds."""
    return float(held_tokens[ready].max(initial=0.0))


def continuable(standing: Standing, snapshot: Snapshot, now: float) -> tuple[int, ...]:
    """Rows of those that drain, fulfil a demand, and still take continuations."""
    members, policy = snapshot.members, snapshot.policy
    rows = snapshot.columns.draining if policy.draining_continuation_tokens else ()
    return tuple([row for row in rows if standing.misfits[row] is None and may_continue(members[row], policy, now)])


def with_continuations(
    found: Fitting, request: Request, snapshot: Snapshot, now: float, held_tokens: Floats
) -> Fitting:
    """Without those that drain and of which the request is no continuation.

    `held_tokens`: of the prompt, by each instance. The columns must be those of `now`.
    """
    able, elsewhere_tokens = found.able.copy(), held_elsewhere(found.standing.fits, held_tokens)
    for row in found.draining:
        held = Held(held_tokens.item(row), elsewhere_tokens)
        if no_continuation(request, snapshot.members[row], snapshot.policy, now, held) is not None:
            able[row] = False
    return msgspec.structs.replace(found, able=able)
