"""Hard constraints: what an instance must fulfil before its cost is of interest, cheapest check first."""

from __future__ import annotations

import math

from extproc.core.fleet import Member
from extproc.core.ledger import Work, block_size_tokens
from extproc.core.model import Instance, Lifecycle, Reason, Rejection, Request
from extproc.core.snapshot import Snapshot


def check(request: Request, member: Member, snapshot: Snapshot) -> Rejection | None:
    """First constraint that an instance fails for a request, None if it may serve it."""
    instance = member.instance
    # While a model loads, the engine lists no models yet; the lifecycle below tells more than "not served".
    if request.model not in instance.models and instance.models:
        return Rejection(instance.id, Reason.MODEL_NOT_SERVED, request.model, instance.models)
    if request.needs and instance.capabilities is not None:
        missing = request.needs.difference(instance.capabilities)
        if missing:
            return Rejection(instance.id, Reason.CAPABILITY_MISSING, tuple(sorted(missing)), instance.capabilities)
    if instance.lifecycle is not Lifecycle.READY:
        return Rejection(instance.id, Reason.NOT_READY, Lifecycle.READY.value, instance.lifecycle.value)
    return _room(request, instance, snapshot.ledger.work(instance.key), snapshot)


def doubtful(member: Member, snapshot: Snapshot, now: float) -> Rejection | None:
    """Whether an instance just failed or was not heard of for too long: only to be asked when no other is left."""
    instance, limit_s = member.instance, snapshot.policy.stale_after_s
    rest_s = snapshot.cooldowns.remaining_s(instance.key, now)
    if rest_s:
        return Rejection(instance.id, Reason.COOLING_DOWN, 0.0, rest_s)
    age_s = snapshot.heard_at_s - member.observed_at_s
    return Rejection(instance.id, Reason.STALE, limit_s, age_s) if age_s > limit_s else None


def _room(request: Request, instance: Instance, work: Work, snapshot: Snapshot) -> Rejection | None:
    """Whether the request fits: context length, KV blocks, concurrency and queue."""
    # Only what is too long beyond the estimate's error is refused; between the two the engine's exact count answers.
    limit = instance.max_model_len_tokens
    if limit is not None and request.sure_tokens > limit:
        return Rejection(instance.id, Reason.CONTEXT_TOO_LONG, request.prompt_tokens, limit)
    if instance.kv_blocks is not None:
        blocks = math.ceil(request.sure_tokens / block_size_tokens(instance))
        if blocks > instance.kv_blocks:
            return Rejection(instance.id, Reason.KV_TOO_SMALL, blocks, instance.kv_blocks)
    policy = snapshot.policy
    if policy.max_in_flight is not None and work.requests >= policy.max_in_flight:
        return Rejection(instance.id, Reason.AT_CONCURRENCY_LIMIT, work.requests + 1, policy.max_in_flight)
    if policy.max_queued is not None and instance.max_num_seqs is not None:
        queued = work.requests + 1 - instance.max_num_seqs
        if queued > policy.max_queued:
            return Rejection(instance.id, Reason.QUEUE_TOO_LONG, queued, policy.max_queued)
    return None
