"""Hard constraints: what an instance must fulfil before its cost is of interest, cheapest check first.

`fitting` and `with_kv_room` find who fulfils them, for all instances at once; `misfit` and `obstacle` say of one what
it fails, in which order, and by how much.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Set
from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from extproc.core.eligibility.continuation import continuable, no_continuation, takes_continuations
from extproc.core.eligibility.kv_room import short, shortage
from extproc.core.eligibility.limits import limits_of
from extproc.core.eligibility.placed import misplaced
from extproc.core.fleet.fleet import Member
from extproc.core.flight.work import Work, block_size_tokens, ranks
from extproc.core.pricing.classes import limit_for, limits_for, weights_for
from extproc.core.values.arrays import Flags, Floats
from extproc.core.values.decision import Reason, Rejection
from extproc.core.values.instance import COMING, Capability, Instance, Lifecycle, Role
from extproc.core.values.placement import Placement
from extproc.core.values.request import Request

if TYPE_CHECKING:
    from extproc.core.column_tables import Standing
    from extproc.core.snapshot import Policy, Snapshot


_MAY_COME = COMING | {Lifecycle.UNHEALTHY}  # one that failed before it had loaded is started again


class Demand(NamedTuple):
    """What a request demands that an instance has or has not, whatever happens. Many requests share one."""

    model: str
    needs: frozenset[Capability]
    placement: Placement
    whole: bool  # it is to be served by one alone, and not by a pair


class Doubt(IntEnum):
    """What speaks against an instance that could serve, the least first: in this order they are asked after all.

    One that says "too much" is alive. Of one that fell silent its agent may be all that is ill. One that just failed
    will most likely fail again.
    """

    NONE = 0
    PUSHED_BACK = 1
    STALE = 2
    COOLING_DOWN = 3


DOUBTS = {
    Reason.PUSHED_BACK: Doubt.PUSHED_BACK,
    Reason.STALE: Doubt.STALE,
    Reason.COOLING_DOWN: Doubt.COOLING_DOWN,
}


class Fitting(msgspec.Struct, frozen=True):
    """Who may serve a request. `draining` are rows, and `able` only if the request is a continuation there."""

    able: Flags  # nothing stands against them that is never waived
    long_enough: Flags | None  # for all the output that may be asked for, too; None: all are
    sound: Flags | None  # nothing speaks against them that is waived where no better one is left (`Doubt`); None: all
    standing: Standing
    draining: tuple[int, ...] = ()

    @property
    def fit(self) -> Flags:
        """Those that fulfil all constraints."""
        fit = self.able if self.long_enough is None else self.able & self.long_enough
        return fit if self.sound is None else fit & self.sound

    @property
    def any_waivable(self) -> bool:
        """Whether anybody may fail a constraint that is waived where no better one is left."""
        return self.sound is not None or self.long_enough is not None


def demand_of(request: Request, *, whole: bool = True) -> Demand:
    """The part of a request's constraints that depends on no numbers."""
    return Demand(request.model, request.needs, request.placement, whole)


def misfit(demand: Demand, instance: Instance) -> Rejection | None:
    """First demand that an instance does not fulfil, None if there is none."""
    if not may_serve(demand.model, instance):
        return Rejection(instance.id, Reason.MODEL_NOT_SERVED, demand.model, instance.models or instance.loadable)
    if demand.needs and instance.capabilities is not None:
        missing = demand.needs.difference(instance.capabilities)
        if missing:
            return Rejection(instance.id, Reason.CAPABILITY_MISSING, tuple(sorted(missing)), instance.capabilities)
    rejection = misplaced(demand.placement, instance)
    if rejection is not None:
        return rejection
    if demand.whole and instance.role is not Role.BOTH:
        return Rejection(instance.id, Reason.ROLE_TAKES_HALF, Role.BOTH.value, instance.role.value)
    return None


def may_serve(model: str, instance: Instance) -> bool:
    """Whether an instance answers to a model's name, or may once it has started.

    An engine that starts lists no models yet, and nobody knows the adapters that it will have: then its lifecycle tells
    more than "not served". One that sleeps, failed or left may be long in coming back: only as what it would load.
    """
    if instance.models or instance.lifecycle is Lifecycle.READY:
        return model in instance.models
    if instance.loadable and (instance.asleep or instance.lifecycle not in COMING):
        return model in instance.loadable
    return instance.lifecycle in _MAY_COME


def obstacle(
    request: Request,
    member: Member,
    snapshot: Snapshot,
    now: float,
    full: Set[str],
    cached_tokens: float,
    elsewhere_tokens: float = 0.0,
) -> Rejection | None:
    """First other constraint that an instance fails for a request, None if it may serve it.

    `cached_tokens` of the prompt it is believed to hold; the rest is as in `no_continuation`.
    """
    instance, lacking = member.instance, None
    drains = takes_continuations(member, snapshot)
    if drains:
        lacking = no_continuation(request, member, snapshot, now, cached_tokens, elsewhere_tokens)
    rejection = unable(request, instance, snapshot, full, continues=drains and lacking is None)
    if rejection is not None and rejection.reason is Reason.NOT_READY and lacking is not None:
        return msgspec.structs.replace(rejection, continuation=lacking)
    return (
        rejection
        or shortage(request, instance, snapshot, cached_tokens)
        or cramped(request, instance)
        or doubtful(member, snapshot, now)
    )


def unable(
    request: Request, instance: Instance, snapshot: Snapshot, full: Set[str], *, continues: bool = False
) -> Rejection | None:
    """First of those that are never waived, but for the KV room (`shortage`); None if it fulfils them.

    `continues`: it drains, and takes the request as a continuation.
    """
    rejection = _too_long(request, instance)
    if rejection is not None:
        return rejection
    if instance.lifecycle is not Lifecycle.READY and not continues:
        return Rejection(instance.id, Reason.NOT_READY, Lifecycle.READY.value, instance.lifecycle.value)
    rejection = _too_busy(request, instance, snapshot.ledger.work(instance.key), snapshot.policy)
    if rejection is not None:
        return rejection
    if instance.key in full:
        return Rejection(instance.id, Reason.AT_CONCURRENCY_LIMIT, "a place", "none")
    return None


def fitting(request: Request, snapshot: Snapshot, now: float, full: Set[str], *, whole: bool = True) -> Fitting:
    """Who fulfils all constraints but the limit of KV room, for which the prompt must be looked up (`with_kv_room`).

    The columns must be those of `now`. `full`: keys of instances without a place.
    """
    columns = snapshot.columns
    standing = columns.standing(demand_of(request, whole=whole))
    able = standing.fits
    draining = continuable(standing, snapshot, now) if columns.draining else ()
    if draining:
        able = able.copy()
        able[list(draining)] = True
    sure_tokens, context_tokens = request.sure_tokens, request.context_tokens
    if sure_tokens > columns.least_room_tokens:
        able = able & (columns.room_tokens >= sure_tokens)
    if columns.any_limit:
        weights = weights_for(request, snapshot.policy.classes)
        able = able & (columns.requests < limits_for(weights, columns.max_in_flight))
        able &= columns.batch_requests - columns.max_num_seqs <= limits_for(weights, columns.max_queued, least=0)
    if full:
        able = able.copy()
        for key in full:
            if key in columns.row_of:
                able[columns.row_of[key]] = False
    long_enough = None if context_tokens <= columns.least_longest_tokens else columns.longest_tokens >= context_tokens
    return Fitting(able, long_enough, _sound(snapshot, now), standing, draining)


def _sound(snapshot: Snapshot, now: float) -> Flags | None:
    """Those that are neither stale, nor cooling down, nor pushed back; None: all."""
    columns, stale_after_s = snapshot.columns, snapshot.policy.stale_after_s
    kept_back = [*snapshot.cooldowns.resting(now), *snapshot.backpressure.paused(now)]
    if not kept_back and snapshot.heard_at_s - columns.oldest_at_s <= stale_after_s:
        return None
    sound: Flags = snapshot.heard_at_s - columns.observed_at_s <= stale_after_s
    for key in kept_back:
        if key in columns.row_of:
            sound[columns.row_of[key]] = False
    return sound


def with_kv_room(found: Fitting, request: Request, snapshot: Snapshot, cached_tokens: Floats) -> Fitting:
    """Who has the KV room as well. `cached_tokens`: of the prompt, that each is believed to hold."""
    if not snapshot.columns.any_kv_limit:
        return found
    return msgspec.structs.replace(found, able=found.able > short(request, snapshot, cached_tokens))


def last_resorts(found: Fitting, snapshot: Snapshot, now: float, *, pushed_back: bool = True) -> Iterator[Flags]:
    """Whom to ask where nobody fulfils all constraints: the first of these that is not empty; for a retry, the next.

    `pushed_back`: also those that said "too much", if there is no other way for the request but to be refused.

    If all have failed or fallen silent, a prompt or an agent is more likely to be ill than all engines at once.
    Where none has room for all the output, some engines still answer with less, and others say best what is wrong.
    """
    doubts = _doubts(snapshot, now)
    long_enough = np.ones_like(found.able) if found.long_enough is None else found.long_enough
    for room in (long_enough, ~long_enough):
        for doubt in Doubt:
            if doubt is Doubt.PUSHED_BACK and not pushed_back:
                continue
            yield found.able & room & (doubts == doubt)


def _doubts(snapshot: Snapshot, now: float) -> npt.NDArray[np.int8]:
    """The worst that speaks against each."""
    columns = snapshot.columns
    ages_s = snapshot.heard_at_s - columns.observed_at_s
    doubts: npt.NDArray[np.int8] = (ages_s > snapshot.policy.stale_after_s) * np.int8(Doubt.STALE)
    for doubt, keys in (
        (Doubt.PUSHED_BACK, snapshot.backpressure.paused(now)),
        (Doubt.COOLING_DOWN, snapshot.cooldowns.resting(now)),
    ):
        for key in keys:
            if key in columns.row_of:
                row = columns.row_of[key]
                doubts[row] = max(doubts.item(row), doubt)
    return doubts


def room_tokens(instance: Instance) -> float:
    """Longest sequence that an instance can hold at all, in one of its ranks; infinite if it is not known."""
    room = float("inf") if instance.max_model_len_tokens is None else float(instance.max_model_len_tokens)
    if instance.kv_blocks is None:
        return room
    return min(room, instance.kv_blocks // ranks(instance) * block_size_tokens(instance))


def _too_long(request: Request, instance: Instance) -> Rejection | None:
    """Whether the prompt alone is too long for the context or a rank's KV blocks, beyond the estimate's error."""
    limit, size_tokens = instance.max_model_len_tokens, block_size_tokens(instance)
    if limit is not None and request.sure_tokens > limit:
        return Rejection(instance.id, Reason.CONTEXT_TOO_LONG, math.ceil(request.longest_tokens), limit)
    blocks = None if instance.kv_blocks is None else instance.kv_blocks // ranks(instance)
    if blocks is not None and request.sure_tokens > blocks * size_tokens:
        return Rejection(instance.id, Reason.KV_TOO_SMALL, math.ceil(request.sure_tokens / size_tokens), blocks)
    return None


def _too_busy(request: Request, instance: Instance, work: Work, policy: Policy) -> Rejection | None:
    """Whether the limits on running and queued requests are reached, as far as the request's class may fill them."""
    limits = limits_of(instance, policy)
    weights = weights_for(request, policy.classes)
    limit = limit_for(weights, limits.max_in_flight)
    if limit is not None and work.requests >= limit:
        return Rejection(instance.id, Reason.AT_CONCURRENCY_LIMIT, work.requests + 1, limit)
    limit = limit_for(weights, limits.max_queued, least=0)
    if limit is not None and instance.max_num_seqs is not None:
        queued = work.requests + 1 - instance.max_num_seqs
        if queued > limit:
            return Rejection(instance.id, Reason.QUEUE_TOO_LONG, queued, limit)
    return None


def cramped(request: Request, instance: Instance) -> Rejection | None:
    """Whether the prompt and all the output that its client allows are too long: many engines then refuse at once."""
    limit = instance.max_model_len_tokens
    if limit is None or request.context_tokens <= limit:
        return None
    return Rejection(instance.id, Reason.CONTEXT_TOO_LONG, math.ceil(request.context_tokens), limit)


def doubtful(member: Member, snapshot: Snapshot, now: float) -> Rejection | None:
    """The worst that speaks against an instance that could serve (`Doubt`): only asked when no better one is left."""
    instance, limit_s = member.instance, snapshot.policy.stale_after_s
    rest_s = snapshot.cooldowns.remaining_s(instance.key, now)
    if rest_s:
        return Rejection(instance.id, Reason.COOLING_DOWN, 0.0, rest_s)
    age_s = snapshot.heard_at_s - member.observed_at_s
    if age_s > limit_s:
        return Rejection(instance.id, Reason.STALE, limit_s, age_s)
    pause_s = snapshot.backpressure.remaining_s(instance.key, now)
    return Rejection(instance.id, Reason.PUSHED_BACK, 0.0, pause_s) if pause_s else None
