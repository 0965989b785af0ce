"""What a scrape and the pages are told of the service's state at one moment."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from itertools import islice
from typing import Any

from extproc.adapters.bookings import Bookings
from extproc.adapters.destinations import Gate
from extproc.adapters.strict_bookings import StrictBookings
from extproc.adapters.tokenizers import Tokenizers
from extproc.core.fleet.fleet import Member
from extproc.core.flight.work import Work
from extproc.core.reasons.measured import Served
from extproc.core.router import Router
from extproc.core.speeds.profile import profile_for
from extproc.core.values.decision import CacheSource
from extproc.core.values.instance import Instance, id_of
from extproc.core.values.outcome import Outcome
from extproc.observe.dashboard.lately import Lately
from extproc.observe.fleet_metrics import MOST_INSTANCES, FleetGauges
from extproc.observe.live_gauges import Gauges, Guards, Replicas
from extproc.server.certificates import Certificates
from extproc.server.holding import Holding
from extproc.server.ladder import LadderWatch
from extproc.server.service import Service

_TYPICAL_TOKENS = 2048  # prompt for which a speed is told
_NO_RATES = dict.fromkeys(("routed_per_s", "failed_per_s", "output_tokens_per_s"), 0.0)


def guards(service: Service, gate: Gate, certificates: Certificates | None) -> Guards:
    """What a scrape reads of what was kept out."""
    return Guards(
        service.refused_streams,
        service.rollout_share,
        {reason.value: count for reason, count in gate.refused.items()},
        certificates.expires_at_s if certificates is not None else None,
        certificates.refused if certificates is not None else 0,
    )


def gauges(
    router: Router,
    tokenizers: Tokenizers,
    bookings: Bookings,
    strict: StrictBookings | None,
    ladder: LadderWatch,
    kept_out: Guards,
    holding: Holding,
) -> Gauges:
    """What a scrape reads at this moment; `strict` is None without strict mode."""
    fleet = router.fleet
    in_flight = router.ledger.in_flight()
    members = _shown(router)
    ids = {member.instance.id for member in members}
    peers = bookings.sharing.peers
    return Gauges(
        in_flight={member.instance.id: in_flight.get(member.instance.key, 0) for member in members},
        ages_s={member.instance.id: fleet.age_s(member) for member in members},
        totals={each.instance.id: each.instance.totals for each in members if each.instance.totals is not None},
        registry_silence_s=max(0.0, time.monotonic() - fleet.contact_at_s),
        calibration=router.beliefs.outputs.calibration(),
        prefix_entries={
            CacheSource.LEARNED.value: router.prefixes.entries,
            CacheSource.TOLD.value: router.kv.entries,
        },
        kv_refused=router.kv.refused_blocks,
        prefix_agreement={
            (id_of(key), model, source.value): agreement.share
            for key, model, source, agreement in islice(router.trust.agreements(), MOST_INSTANCES)
            if id_of(key) in ids
        },
        exact_counts={outcome.value: count for outcome, count in tokenizers.outcomes.items()},
        replicas=Replicas(
            peers.number, peers.requests, peers.counts.lost_batches, peers.counts.expired_routers, bookings.unusable
        ),
        rungs=ladder.rungs(time.monotonic()),
        guards=kept_out,
        strict_unsettled=strict.unsettled if strict is not None else None,
        held=holding.by_class() if router.gate is not None else None,  # also once nobody is to be held any more
        left=holding.left,
    )


def _shown(router: Router) -> Sequence[Member]:
    """Instances that have series of their own; always the same ones of a fleet that is too large."""
    members = router.fleet.members()
    if len(members) <= MOST_INSTANCES:
        return members
    return sorted(members, key=lambda member: member.instance.id)[:MOST_INSTANCES]


def fleet_gauges(router: Router, now: float) -> FleetGauges:
    """What a scrape reads of the fleet at `now`, a monotonic time."""
    shown = [member.instance for member in _shown(router)]
    works = {instance.id: router.ledger.work(instance.key) for instance in shown}
    loads = [(instance.id, instance.load) for instance in shown]
    return FleetGauges(
        lifecycles=Counter(member.instance.lifecycle for member in router.fleet.members()),
        running={name: load.running for name, load in loads if load.running is not None},
        waiting={name: load.waiting for name, load in loads if load.waiting is not None},
        kv_usage={name: load.kv_usage for name, load in loads if load.kv_usage is not None},
        backlog_s={name: work.prefill_backlog_s(now) for name, work in works.items()},
    )


def served(router: Router, outcome: Outcome) -> Served | None:
    """The instance that answered a decided request; None if it is not known."""
    member, features = router.fleet.by_address(outcome.address), outcome.features
    if member is None or features is None:
        return None
    instance = member.instance
    kind = _kind(
        features.model,
        instance.hardware,
        instance.tensor_parallel,
        instance.precision,
        instance.pipeline_parallel,
    )
    return Served(instance.key, kind)


@lru_cache(maxsize=1024)  # each outcome asks, and most instances are of few kinds
def _kind(model: str, hardware: str, tensor_parallel: int, precision: str, pipeline_parallel: int) -> str:
    """Hardware, parallelism and precision, as the profile is named."""
    profile = profile_for(model, hardware, tensor_parallel, precision, pipeline_parallel)
    return profile.name.removeprefix(f"{model}/")


def held_by_model(router: Router, holding: Holding) -> Counter[str]:
    """Requests that wait here, for room or for their model to be loaded."""
    return holding.by_model() + router.cold.wishes.waiting


def _speeds(router: Router, instance: Instance, work: Work) -> dict[str, float | None]:
    """What is believed of its first model: prompt tokens a second alone there, TPOT in the batch that it has now."""
    if not instance.models:
        return {"prefill_tokens_per_s": None, "tpot_s": None}
    speed = router.beliefs.speed(instance.models[0], instance)
    return {
        "prefill_tokens_per_s": _TYPICAL_TOKENS / speed.prefill_s(_TYPICAL_TOKENS, 0),
        "tpot_s": speed.decode_step_s(max(1, work.requests), work.context_tokens),
    }


def fleet_view(router: Router, ladder: LadderWatch, now: float, lately: Lately | None = None) -> list[dict[str, Any]]:
    """Each instance with what this router knows of it, as plain values for JSON; `lately` tells rates, if known."""
    view, seen = [], ladder.seen(now)
    rates = {} if lately is None else lately.instance_rates(now)
    for member in router.fleet.members():
        instance = member.instance
        work = router.ledger.work(instance.key)
        view.append(
            {
                "id": instance.id,
                "incarnation": instance.incarnation,
                "address": instance.address,
                "cluster": instance.cluster,
                "models": instance.models,
                "hardware": instance.hardware,
                "lifecycle": instance.lifecycle,
                "lifecycle_reason": instance.lifecycle_reason,
                "age_s": router.fleet.age_s(member),
                "degraded": seen.rungs_of(instance.id),
                "running": instance.load.running,
                "waiting": instance.load.waiting,
                "kv_usage": instance.load.kv_usage,
                "in_flight": work.own_requests,
                "peers": work.peer_requests,
                "foreign": work.foreign_running + work.foreign_waiting,
                "prefill_backlog_s": work.prefill_backlog_s(now),
                "prefix_blocks": router.prefixes.size(instance.key),
                "kv_blocks_told": router.kv.size(instance.key) if instance.kv_events else None,
                "cooldown_s": router.cooldowns.remaining_s(instance.key, now),
                "zone": instance.zone,
                "role": instance.role,
                "engine": instance.engine,
                "max_num_seqs": instance.max_num_seqs,
                "loading_progress": instance.loading_progress,
                "ready_in_s": instance.ready_in_s,
                "price_per_hour": instance.price_per_hour,
                **_speeds(router, instance, work),
                **rates.get(instance.id, _NO_RATES if lately is not None else {}),
            }
        )
    return view
