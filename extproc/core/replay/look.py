"""Looks at what a decision looks at, before anything is booked, and keeps it as plain values."""

from __future__ import annotations

import math
from collections.abc import Sequence, Set
from dataclasses import asdict, replace

import msgspec

from extproc.core.admission.bounds import Bounds
from extproc.core.fleet.fleet import Member
from extproc.core.flight.work import IDLE, Work
from extproc.core.health.slow_start import WINDOW_S
from extproc.core.models.joint import session_mark
from extproc.core.replay.seen import BoundsSeen, InstanceSeen, OptionSeen, PolicySeen, Seen, Sent, Told, WorkSeen
from extproc.core.snapshot import Policy, Snapshot
from extproc.core.speeds.speed import Speed
from extproc.core.values.option import Option
from extproc.core.values.request import Request

_IDLE = WorkSeen()


def look(
    options: Sequence[Option],
    snapshot: Snapshot,
    now: float,
    draw: float,
    full: Set[str] = frozenset(),
    bounds: Bounds | None = None,
) -> Seen:
    """What `decide` sees with these arguments. To be called before its choice is booked; it costs by instances."""
    resting, paused = snapshot.cooldowns.resting(now), snapshot.backpressure.paused(now)
    doubtful = frozenset((*resting, *paused))
    return Seen(
        now=now,
        draw=draw,
        heard_at_s=_finite(snapshot.heard_at_s),
        tail_begins_s=snapshot.tail.begins_s,
        instances=tuple([_instance(member, snapshot, now, doubtful) for member in snapshot.members]),
        options=tuple([_option(option, snapshot, now) for option in options]),
        full=tuple(full),
        bounds=None if bounds is None else _bounds(bounds),
    )


def policy_seen(policy: Policy) -> PolicySeen:
    """The rules in a form that can be written down."""
    crossings = tuple((here, there, way) for (here, there), way in policy.zones.crossings.items())
    return PolicySeen(replace(policy, zones=replace(policy.zones, crossings={})), crossings)


def _finite(at_s: float) -> float | None:
    return None if at_s == -math.inf else at_s


def _bounds(bounds: Bounds) -> BoundsSeen:
    fields = asdict(bounds)
    return {name: "inf" if value == math.inf else value for name, value in fields.items()}


def _instance(member: Member, snapshot: Snapshot, now: float, doubtful: Set[str]) -> InstanceSeen:
    instance, key = member.instance, member.instance.key
    is_new = now - member.ready_since_s < WINDOW_S
    model = instance.models[0] if instance.models else ""
    layout = snapshot.kv.layout(instance, model)
    return InstanceSeen(
        instance,
        member.observed_at_s,
        _finite(member.ready_since_s),
        _work(snapshot.ledger.work(key)),
        snapshot.cooldowns.remaining_s(key, now) if key in doubtful else 0.0,
        snapshot.backpressure.remaining_s(key, now) if key in doubtful else 0.0,
        snapshot.warm_ups.progress(key, member.ready_since_s, now) if is_new else 1.0,
        snapshot.adapters.row(key),
        None if layout is None else layout.block_size_tokens,
        None if member.draining_since_s is None else _finite(member.draining_since_s),
    )


def _work(work: Work) -> WorkSeen:
    if work is IDLE:
        return _IDLE
    pace = work.pace
    return WorkSeen(
        tuple(
            [
                Sent(work.prefilled_at_s[place], each.output_tokens, each.uncached_tokens)
                for place, each in work.active.items()
            ]
        ),
        pace.requests,
        pace.prefill_s,
        _finite(pace.at_s),
        work.foreign_running,
        work.foreign_waiting,
        work.foreign_kv_tokens,
        work.booked_tokens,
        work.booked_prompt_tokens,
        work.held_tokens,
        work.prefill_free_at_s,
    )


def _option(option: Option, snapshot: Snapshot, now: float) -> OptionSeen:
    request = option.request
    model, hits = request.model, snapshot.kv.hits(request.chains) if request.chains else {}
    return OptionSeen(
        option=msgspec.structs.replace(option, request=_bare(request)),
        prefix_blocks=len(request.prefix),
        learned=tuple(snapshot.prefixes.matches(request.prefix).items()),
        recent=tuple(snapshot.recent.matches(request.prefix, now).items()),
        layouts=tuple((layout.block_size_tokens, layout.model) for layout in request.chains),
        told=tuple(
            Told(key, layout.block_size_tokens, layout.model, hit.gpu_tokens, hit.lower_tokens)
            for (layout, key), hit in hits.items()
        ),
        shares=dict(snapshot.trust.shares(model)),
        distrusted=tuple(snapshot.trust.distrusted(model)),
        loaded=tuple(snapshot.adapters.loaded(model)),
        speeds=_speeds(model, snapshot),
    )


def _speeds(model: str, snapshot: Snapshot) -> dict[str, Speed]:
    instances = (member.instance for member in snapshot.members)
    serving = [each for each in instances if model in each.models or not each.models]  # some tell of none
    return {instance.key: snapshot.beliefs.speed(model, instance) for instance in serving}


def _bare(request: Request) -> Request:
    """Without what is made from the prompt's words, which no decision reads but to look it up, and what clients say."""
    return msgspec.structs.replace(
        request, prefix=(), chains={}, token_counts=(), session=session_mark(request.session)
    )
