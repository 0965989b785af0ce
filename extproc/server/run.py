"""Runs a service until it is told to stop: begins its parts in their order, and ends them."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, nullcontext
from functools import partial
from typing import Any

from extproc.adapters.http_client import HttpClient
from extproc.adapters.intents import Intents
from extproc.adapters.start_memory import StartMemory
from extproc.adapters.tokenizers import Tokenizers
from extproc.adapters.traffic_counts import TrafficCounts
from extproc.adapters.webhook import Webhook
from extproc.config import ServeSettings
from extproc.observe.cold_metrics import ColdCollector
from extproc.observe.config_metrics import ConfigCollector
from extproc.observe.traffic_metrics import JudgedCollector
from extproc.server.binding import see_free, told
from extproc.server.certificates import Certificates
from extproc.server.intents_keeper import IntentsKeeper
from extproc.server.parts import Parts
from extproc.server.prefix_keeper import PrefixKeeper
from extproc.server.reload import News
from extproc.server.service import Service
from extproc.server.tasks import Stop, begin, beside, end
from extproc.server.telling import telling
from extproc.server.traffic_keeper import TrafficKeeper
from extproc.server.views import held_by_model
from extproc.server.warm_start import warm_up

# After reporting "not serving", new requests still come until Envoy's next health check; its interval is 0.5 s.
_HEALTH_LAG_S = 1.5
_WEBHOOK_TIMEOUT_S = 5.0  # of one attempt
_FIRST_STATE_S = 5.0  # how long to wait for Redis before serving without it

log = logging.getLogger("extproc.serve")


async def serve(
    settings: ServeSettings, serves: Callable[[int], None] = lambda port: None, news: News | None = None
) -> None:
    """Serve until SIGTERM or SIGINT, then drain. Raises ConfigError if an address cannot be listened on.

    `serves` is told the port, 0 of a socket, once requests may come. `news` has other settings while it serves.
    """
    see_free(settings.listen, pages=settings.pages)  # before anything begins that would have to be ended for it
    stop = Stop()
    certificates = Certificates(settings.tls) if settings.tls else None
    tokenizers = await asyncio.to_thread(Tokenizers.load, settings.tokenizers, settings.count_budget_s)
    parts = Parts(settings, tokenizers, certificates)
    async with _connected(parts):
        tasks = _following(parts, news)
        try:
            serves(await _opened(parts, tasks, stop))
            await stop.wait()
            await _drain(parts.service, parts.live.settings.drain_s, stop.at_once)
        finally:
            await _end(parts, tasks)


@asynccontextmanager
async def _connected(parts: Parts) -> AsyncIterator[None]:
    """What stands around all the rest, and ends after it."""
    async with (
        parts.reader,
        parts.registry,
        parts.siblings or nullcontext(),
        telling(parts.settings, parts.router, parts.observer, parts.metrics, parts.registry.link),
        keeping_intents(parts),
        telling_traffic(parts),
    ):
        yield


def _following(parts: Parts, news: News | None) -> list[asyncio.Task[Any]]:
    """Begin to follow Redis, and the operator's settings."""
    watching = parts.registry.watch(parts.router.fleet, parts.taken, synced=parts.fleet_known)
    tasks = [
        begin("registry", watching),
        begin("KV feed", parts.feed.run(parts.kv_known)),
        begin("bookings", parts.bookings.run()),
    ]
    for what, counts in (("strict bookings", parts.strict), ("limits", parts.live.charges)):
        if counts is not None:
            tasks.append(begin(what, counts.run()))
    if news is not None:
        if news.counts is not None:
            parts.metrics.add(ConfigCollector(news.counts))
        tasks.append(begin("settings", news.run(parts.live.take)))
    return tasks


async def _opened(parts: Parts, tasks: list[asyncio.Task[Any]], stop: asyncio.Event) -> int:
    """Learn what is known of the fleet, then take the address and requests; returns the port, 0 of a socket."""
    settings, service = parts.settings, parts.service
    pages_port = await parts.admin.start(settings.pages, settings.access)
    if parts.certificates is not None:
        tasks.append(begin("certificates", parts.certificates.watch()))
    await asyncio.gather(first_state(parts.fleet_known, parts.kv_known, parts.prefixes, stop), parts.profiles.restore())
    tasks.append(begin("prefix keeper", parts.prefixes.run()))
    tasks.append(begin("profile keeper", parts.profiles.run()))
    warm_up(parts.router, parts.live.rules)
    # Not before: who connects to an address that is listened on, and nobody answers at, waits. One that nobody listens
    # on is left out at once.
    port = service.bind(settings.listen, parts.certificates, settings.access)
    await service.start()
    tasks.append(begin("ladder", parts.ladder.run()))
    known = len(parts.router.fleet.members())
    log.info("fleet %s in Redis at %s, instances: %d", settings.fleet, parts.registry.link.where, known)
    log.info("serving ext_proc on %s, pages on %s", told(settings.listen, port), told(settings.pages, pages_port))
    return port


async def _end(parts: Parts, tasks: list[asyncio.Task[Any]]) -> None:
    """End all, and tell Redis what it ought to know once nothing is under way here, each within a second or two."""
    await parts.service.stop(0.0)
    await parts.admin.stop()
    await end([*tasks, *parts.live.tasks])
    await parts.prefixes.try_to_write()
    await parts.profiles.try_to_share()
    await parts.bookings.farewell()
    if parts.live.charges is not None:
        await parts.live.charges.farewell()
    parts.tokenizers.close()


@asynccontextmanager
async def keeping_intents(parts: Parts) -> AsyncIterator[None]:
    """Write down which models are wanted for as long as the context is open; nothing without rules of cold models."""
    router, settings, link, base = parts.router, parts.settings, parts.registry.link, parts.registry.base
    if router.cold.policy is None:
        yield
        return
    async with HttpClient(timeout_s=_WEBHOOK_TIMEOUT_S) as http:
        webhook = None if settings.intent_target is None else Webhook(settings.intent_target, http, time.time)
        intents = Intents(link, base, parts.name)
        keeper = IntentsKeeper(router, intents, StartMemory(link, base), settings.fleet, webhook)
        parts.metrics.add(ColdCollector(keeper.counts))
        async with beside("intents keeper", keeper.run()):
            yield


@asynccontextmanager
async def telling_traffic(parts: Parts) -> AsyncIterator[None]:
    """Tell what was counted of requests, and how many are held, for as long as the context is open."""
    counts = TrafficCounts(parts.registry.link, parts.registry.base, parts.name)
    keeper = TrafficKeeper(parts.tally, counts, partial(held_by_model, parts.router, parts.service.holding))
    parts.metrics.add(JudgedCollector(keeper.judged))
    async with beside("traffic keeper", keeper.run()):
        yield


async def first_state(
    fleet_known: asyncio.Event, kv_known: asyncio.Event, keeper: PrefixKeeper, stop: asyncio.Event
) -> None:
    """Take no traffic before the fleet is known, what its engines tell that they hold, and what was learned of them.

    But neither an unreachable nor a slow Redis must keep the service down, or keep it from being stopped.
    """

    async def all_known() -> None:
        await fleet_known.wait()
        await keeper.restore()
        await kv_known.wait()

    waits = [begin("first state", all_known()), begin("stop", stop.wait())]
    await asyncio.wait(waits, timeout=_FIRST_STATE_S, return_when=asyncio.FIRST_COMPLETED)
    await end(waits)
    if stop.is_set():
        return
    if not fleet_known.is_set():
        log.warning("Redis did not answer; serving without a fleet until it does: Envoy balances by itself")
    elif not kv_known.is_set():
        log.warning("Redis is slow: what engines hold is not yet known; serving without")


async def _drain(service: Service, drain_s: float, at_once: asyncio.Event) -> None:
    log.info("draining for up to %g s; Ctrl-C ends that", drain_s)
    await service.drain()
    await asyncio.sleep(min(_HEALTH_LAG_S, drain_s))
    await service.stop(drain_s, at_once)
