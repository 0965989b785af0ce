"""Puts the service together and runs it until it is told to stop."""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
import signal
import time
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from extproc.adapters.bookings import Bookings
from extproc.adapters.kv_log import KvLog
from extproc.adapters.prefix_memory import PrefixMemory
from extproc.adapters.registry import Registry
from extproc.adapters.strict_bookings import StrictBookings
from extproc.adapters.tokenizers import Tokenizers
from extproc.config import ServeSettings
from extproc.core.degradation import degradation
from extproc.core.model import CacheSource
from extproc.core.router import Router
from extproc.core.tokens import ExactCount
from extproc.errors import RegistryError
from extproc.observe.metrics import Gauges, Metrics, Replicas
from extproc.observe.observer import Observer
from extproc.server.admin import Admin
from extproc.server.kv_feed import KvFeed
from extproc.server.ladder import LadderWatch
from extproc.server.prefix_keeper import PrefixKeeper
from extproc.server.service import Service, Shell
from extproc.stream.messages import CountTokens

# After reporting "not serving", new requests still come until Envoy's next health check; its interval is 0.5 s.
_HEALTH_LAG_S = 1.5
_FIRST_STATE_S = 5.0  # how long to wait for Redis before serving without it

log = logging.getLogger("extproc.serve")


async def serve(settings: ServeSettings) -> None:
    """Serve until SIGTERM or SIGINT, then drain. Raises ConfigError if an address cannot be listened on."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    router = Router(settings.policy)
    tokenizers = await asyncio.to_thread(Tokenizers.load, settings.tokenizers, settings.count_budget_s)
    registry = Registry(settings.redis, settings.fleet)
    name = secrets.token_hex(6)
    bookings = Bookings(registry.link, registry.base, name, router.ledger)
    ladder = LadderWatch(router)
    observer = Observer(Metrics(lambda: _gauges(router, tokenizers, bookings, ladder)))
    admin = Admin(observer.page, lambda: fleet_view(router, time.monotonic()), observer.recent)
    rules = replace(settings.rules, counted_models=tokenizers.models)
    strict = StrictBookings(registry.link, registry.base, name) if rules.strict else None
    shell = Shell(
        router,
        observer,
        time.monotonic,
        random.random,
        settings.cluster_header,
        rules,
        partial(counted_by, tokenizers),
        strict,
    )
    service = Service(shell)
    async with registry:
        fleet_known, kv_known = asyncio.Event(), asyncio.Event()
        feed = KvFeed(router, KvLog(registry.link, registry.base), fleet_known)
        keeper = PrefixKeeper(router, PrefixMemory(registry.link, registry.base))
        tasks = [
            asyncio.create_task(registry.watch(router.fleet, router.take, synced=fleet_known)),
            asyncio.create_task(feed.run(kv_known)),
            asyncio.create_task(bookings.run()),
        ]
        if strict is not None:
            tasks.append(asyncio.create_task(strict.run()))
        try:
            pages_port = await admin.start(*settings.pages)
            port = service.bind(settings.listen)
            await _first_state(kv_known, stop)
            if kv_known.is_set():
                await keeper.restore()
            tasks.append(asyncio.create_task(keeper.run()))
            await service.start()
            tasks.append(asyncio.create_task(ladder.run()))
            log.info("serving ext_proc on port %s, pages on port %s", port, pages_port)
            await stop.wait()
            await _drain(service, settings.drain_s)
        finally:
            await service.stop(0.0)
            await admin.stop()
            for task in tasks:
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task
            with suppress(RegistryError):
                await keeper.write()
            await bookings.farewell()
            tokenizers.close()


async def counted_by(tokenizers: Tokenizers, wish: CountTokens) -> ExactCount | None:
    """Have the tokens counted that an exchange wishes to know; None if that is not possible in time."""
    return await tokenizers.count(wish.model, wish.what, wish.want_ids)


async def _first_state(known: asyncio.Event, stop: asyncio.Event) -> None:
    """Take no traffic before the fleet is known, and what its engines tell that they hold.

    But an unreachable Redis must not keep the service down.
    """
    waits = [asyncio.create_task(event.wait()) for event in (known, stop)]
    await asyncio.wait(waits, timeout=_FIRST_STATE_S, return_when=asyncio.FIRST_COMPLETED)
    for wait in waits:
        wait.cancel()
    if not known.is_set():
        log.warning("Redis did not answer; serving without a fleet until it does: Envoy balances by itself")


async def _drain(service: Service, drain_s: float) -> None:
    log.info("draining for up to %g s", drain_s)
    await service.drain()
    await asyncio.sleep(min(_HEALTH_LAG_S, drain_s))
    await service.stop(drain_s)


def _gauges(router: Router, tokenizers: Tokenizers, bookings: Bookings, ladder: LadderWatch) -> Gauges:
    fleet = router.fleet
    in_flight = router.ledger.in_flight()
    members = fleet.members()
    peers = bookings.sharing.peers
    return Gauges(
        in_flight={member.instance.id: in_flight.get(member.instance.key, 0) for member in members},
        ages_s={member.instance.id: fleet.age_s(member) for member in members},
        registry_silence_s=max(0.0, time.monotonic() - fleet.contact_at_s),
        calibration=router.beliefs.outputs.calibration(),
        prefix_entries={
            CacheSource.LEARNED.value: router.prefixes.entries,
            CacheSource.TOLD.value: router.kv.entries,
        },
        kv_refused=router.kv.refused_blocks,
        prefix_agreement={
            (key.partition("@")[0], model, source.value): agreement.share
            for key, model, source, agreement in router.trust.agreements()
        },
        exact_counts={outcome.value: count for outcome, count in tokenizers.outcomes.items()},
        replicas=Replicas(
            peers.number, peers.requests, peers.counts.lost_batches, peers.counts.expired_routers, bookings.unusable
        ),
        rungs=ladder.rungs(time.monotonic()),
    )


def fleet_view(router: Router, now: float) -> list[dict[str, Any]]:
    """Each instance with what this router knows of it, as plain values for JSON."""
    view, seen = [], degradation(router.fleet, router.policy.stale_after_s, now)
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
            }
        )
    return view
