"""Hard constraints: what an instance must fulfil before its cost is of interest, cheapest check first."""

from __future__ import annotations

import math

from extproc.core.classes import limit_for, weights_for
from extproc.core.fleet import Member
from extproc.core.limits import limits_of
from extproc.core.model import Instance, Lifecycle, Reason, Rejection, Request, Role
from extproc.core.placed import misplaced
from extproc.core.snapshot import Policy, Snapshot
from extproc.core.work import Work, block_size_tokens


def check(request: Request, member: Member, snapshot: Snapshot, *, whole: bool = True) -> Rejection | None:
    """First constraint that an instance fails for a request, None if it may serve it.

    `whole`: it is to serve it alone, and not to be one of a pair.
    """
    instance = member.instance
    # While a model loads, the engine lists no models yet; the lifecycle below tells more than "not served".
    if request.model not in instance.models and instance.models:
        return Rejection(instance.id, Reason.MODEL_NOT_SERVED, request.model, instance.models)
    if request.needs and instance.capabilities is not None:
        missing = request.needs.difference(instance.capabilities)
        if missing:
            return Rejection(instance.id, Reason.CAPABILITY_MISSING, tuple(sorted(missing)), instance.capabilities)
    rejection = misplaced(request.placement, instance)
    if rejection is not None:
        return rejection
    if whole and instance.role is not Role.BOTH:
        return Rejection(instance.id, Reason.ROLE_TAKES_HALF, Role.BOTH.value, instance.role.value)
    rejection = _too_long(request, instance)
    if rejection is not None:
        return rejection
    if instance.lifecycle is not Lifecycle.READY:
        return Rejection(instance.id, Reason.NOT_READY, Lifecycle.READY.value, instance.lifecycle.value)
    return _too_busy(request, instance, snapshot.ledger.work(instance.key), snapshot.policy)


def doubtful(member: Member, snapshot: Snapshot, now: float) -> Rejection | None:
    """Whether an instance just failed, was full or not heard of for too long: only asked when no other is left."""
    instance, limit_s = member.instance, snapshot.policy.stale_after_s
    rest_s = snapshot.cooldowns.remaining_s(instance.key, now)
    if rest_s:
        return Rejection(instance.id, Reason.COOLING_DOWN, 0.0, rest_s)
    pause_s = snapshot.backpressure.remaining_s(instance.key, now)
    if pause_s:
        return Rejection(instance.id, Reason.PUSHED_BACK, 0.0, pause_s)
    age_s = snapshot.heard_at_s - member.observed_at_s
    return Rejection(instance.id, Reason.STALE, limit_s, age_s) if age_s > limit_s else None


def cramped(request: Request, instance: Instance) -> Rejection | None:
    """Whether the prompt and all the output that its client allows are too long: many engines then refuse at once."""
    limit = instance.max_model_len_tokens
    if limit is None or request.context_tokens <= limit:
        return None
    return Rejection(instance.id, Reason.CONTEXT_TOO_LONG, math.ceil(request.context_tokens), limit)


def room_tokens(instance: Instance) -> float:
    """Longest sequence that an instance can hold at all, infinite if it is not known."""
    room = float("inf") if instance.max_model_len_tokens is None else float(instance.max_model_len_tokens)
    if instance.kv_blocks is None:
        return room
    return min(room, instance.kv_blocks * block_size_tokens(instance))


def _too_long(request: Request, instance: Instance) -> Rejection | None:
    """Whether the prompt alone is too long for the context or for all KV blocks, beyond the estimate's error."""
    limit = instance.max_model_len_tokens
    if limit is not None and request.sure_tokens > limit:
        return Rejection(instance.id, Reason.CONTEXT_TOO_LONG, math.ceil(request.longest_tokens), limit)
    if instance.kv_blocks is not None:
        blocks = math.ceil(request.sure_tokens / block_size_tokens(instance))
        if blocks > instance.kv_blocks:
            return Rejection(instance.id, Reason.KV_TOO_SMALL, blocks, instance.kv_blocks)
    return None


def _too_busy(request: Request, instance: Instance, work: Work, policy: Policy) -> Rejection | None:
    """Whether the limits on running and queued requests are reached, as far as the request's class may fill them."""
    if policy.max_in_flight is None and policy.max_queued is None and not instance.tags:
        return None
    limits = limits_of(instance, policy)
    weights = weights_for(request, policy.classes)
    limit = limit_for(weights, limits.max_in_flight)
    if limit is not None and work.requests >= limit:
        return Rejection(instance.id, Reason.AT_CONCURRENCY_LIMIT, work.requests + 1, limit)
    limit = limit_for(weights, limits.max_queued)
    if limit is not None and instance.max_num_seqs is not None:
        queued = work.requests + 1 - instance.max_num_seqs
        if queued > limit:
            return Rejection(instance.id, Reason.QUEUE_TOO_LONG, queued, limit)
    return None
