"""Puts the service together and runs it until it is told to stop."""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import NoReturn

from extproc.adapters.body_reader import APART_BYTES, BodyReader
from extproc.adapters.bookings import Bookings
from extproc.adapters.destinations import Gate
from extproc.adapters.http_client import HttpClient
from extproc.adapters.intents import Intents
from extproc.adapters.kv_log import KvLog
from extproc.adapters.prefix_memory import PrefixMemory
from extproc.adapters.profile_memory import ProfileMemory
from extproc.adapters.rate_limits import RateLimits
from extproc.adapters.registry import Registry
from extproc.adapters.scaling_memory import ScalingMemory
from extproc.adapters.start_memory import StartMemory
from extproc.adapters.strict_bookings import StrictBookings
from extproc.adapters.tokenizers import Tokenizers
from extproc.adapters.traffic_counts import TrafficCounts
from extproc.adapters.webhook import Webhook
from extproc.config import ServeSettings
from extproc.core.fleet.fleet import Change
from extproc.core.router import Router
from extproc.core.scaling.tally import Tally
from extproc.core.tokens.tokens import ExactCount
from extproc.observe.cold_metrics import ColdCollector
from extproc.observe.config_metrics import ConfigCollector
from extproc.observe.dashboard.watch import Watch
from extproc.observe.fleet_metrics import FleetCollector
from extproc.observe.metrics import Metrics
from extproc.observe.observer import Observer
from extproc.observe.traffic_metrics import JudgedCollector
from extproc.server.admin import Admin
from extproc.server.advice import Advice
from extproc.server.binding import see_free, told
from extproc.server.certificates import Certificates
from extproc.server.cold_waits import ColdWaits
from extproc.server.holding import Holding
from extproc.server.intents_keeper import IntentsKeeper
from extproc.server.kv_feed import KvFeed
from extproc.server.ladder import LadderWatch
from extproc.server.live_settings import LiveSettings
from extproc.server.overview import Overview
from extproc.server.prefix_keeper import PrefixKeeper
from extproc.server.profile_keeper import ProfileKeeper
from extproc.server.reload import News
from extproc.server.service import Service
from extproc.server.shell import Shell
from extproc.server.siblings import Siblings
from extproc.server.tasks import begin, beside, end, told_to_stop
from extproc.server.telling import telling
from extproc.server.traffic_keeper import TrafficKeeper
from extproc.server.views import fleet_gauges, fleet_view, gauges, guards, held_by_model, served
from extproc.server.warm_start import warm_up
from extproc.stream.errands import CountTokens

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
    stop = told_to_stop()
    certificates = Certificates(settings.tls) if settings.tls else None
    router = Router(settings.policy, settings.speed_priors)
    tokenizers = await asyncio.to_thread(Tokenizers.load, settings.tokenizers, settings.count_budget_s)
    gate = Gate(settings.destinations)
    registry = Registry(settings.redis, settings.fleet, gate)
    name = secrets.token_hex(6)
    bookings = Bookings(registry.link, registry.base, name, router.ledger)
    fleet_known, kv_known = asyncio.Event(), asyncio.Event()
    feed = KvFeed(router, KvLog(registry.link, registry.base), fleet_known)
    ladder, reader = LadderWatch(router, feed), BodyReader()
    strict = StrictBookings(registry.link, registry.base, name) if settings.rules.strict else None
    metrics = Metrics(
        lambda: replace(
            gauges(router, tokenizers, bookings, strict, ladder, guards(service, gate, certificates), service.holding),
            limits=live.charges.counts if live.charges is not None else None,
            bodies_apart={outcome.value: count for outcome, count in reader.outcomes.items()},
        )
    )
    observer, tally, watch = observing(router, metrics)
    live = LiveSettings(
        settings,
        router,
        tally,
        partial(replace, counted_models=tokenizers.models, read_apart_bytes=APART_BYTES),
        partial(RateLimits, registry.link, registry.base, name),
    )
    cold_waits = ColdWaits(router)
    siblings = Siblings(settings.worker) if settings.worker is not None else None
    service = Service(
        Shell(
            router,
            observer,
            time.monotonic,
            random.random,
            settings.cluster_header,
            live.rules,
            partial(counted_by, tokenizers),
            strict,
            settings.max_streams,
            live.charges,
            cold_waits,
            siblings,
            reader.read,
        )
    )
    bookings.on_heard = service.holding.stir
    admin = Admin(
        observer.page,
        lambda: fleet_view(router, ladder, time.monotonic(), watch.lately),
        observer.recent,
        observer.explain if siblings is None else observer.told,
        service.holding.view,
        Overview(
            settings.fleet,
            router,
            observer,
            watch,
            ladder,
            service.holding,
            bookings,
            Advice(ScalingMemory(registry.link, registry.base)),
        ),
        ready=lambda: service.ready,
    )
    async with (
        reader,
        registry,
        siblings or nullcontext(),
        telling(settings, router, observer, metrics, registry.link),
        keeping_intents(router, registry, name, settings, metrics),
        telling_traffic(tally, TrafficCounts(registry.link, registry.base, name), router, service.holding, metrics),
    ):
        profiles = ProfileKeeper(router.beliefs.speeds, ProfileMemory(registry.link, registry.base), name)
        keeper = PrefixKeeper(router, PrefixMemory(registry.link, registry.base))
        tasks = [
            begin(
                "registry",
                registry.watch(router.fleet, partial(taken, cold_waits, service.holding), synced=fleet_known),
            ),
            begin("KV feed", feed.run(kv_known)),
            begin("bookings", bookings.run()),
            *counting(strict, live.charges),
            *following(news, live, service, metrics),
        ]
        try:
            pages_port = await admin.start(settings.pages, settings.access)
            port = service.bind(settings.listen, certificates, settings.access)
            if certificates is not None:
                tasks.append(begin("certificates", certificates.watch()))
            await asyncio.gather(first_state(fleet_known, kv_known, keeper, stop), profiles.restore())
            tasks.append(begin("prefix keeper", keeper.run()))
            tasks.append(begin("profile keeper", profiles.run()))
            warm_up(router, live.rules)
            await service.start()
            tasks.append(begin("ladder", ladder.run()))
            log.info(
                "serving ext_proc on %s, pages on %s", told(settings.listen, port), told(settings.pages, pages_port)
            )
            serves(port)
            await stop.wait()
            await _drain(service, live.settings.drain_s)
        finally:
            await service.stop(0.0)
            await admin.stop()
            await end([*tasks, *live.tasks])
            await keeper.try_to_write()
            await profiles.try_to_share()
            await farewell(bookings, live.charges)
            tokenizers.close()


def taken(cold_waits: ColdWaits, holding: Holding, change: Change) -> None:
    """The fleet has changed; perhaps there is room for who is held."""
    cold_waits.take(change)
    holding.stir()


def counting(strict: StrictBookings | None, charges: RateLimits | None) -> list[asyncio.Task[None]]:
    """Begin to count over all routers what the operator limits."""
    both = (("strict bookings", strict), ("limits", charges))
    return [begin(what, counts.run()) for what, counts in both if counts is not None]


def following(
    news: News | None, live: LiveSettings, service: Service, metrics: Metrics
) -> list[asyncio.Task[NoReturn]]:
    """Begin to take other settings while the service runs."""
    live.service = service
    if news is None:
        return []
    if news.counts is not None:
        metrics.add(ConfigCollector(news.counts))
    return [begin("settings", news.run(live.take))]


async def farewell(bookings: Bookings, charges: RateLimits | None) -> None:
    """Tell Redis what it ought to know once nothing is under way here; each takes a second at the most."""
    await bookings.farewell()
    if charges is not None:
        await charges.farewell()


@asynccontextmanager
async def keeping_intents(
    router: Router, registry: Registry, name: str, settings: ServeSettings, metrics: Metrics
) -> AsyncIterator[None]:
    """Write down which models are wanted for as long as the context is open; nothing without rules of cold models."""
    if router.cold.policy is None:
        yield
        return
    intents, memory = Intents(registry.link, registry.base, name), StartMemory(registry.link, registry.base)
    async with HttpClient(timeout_s=_WEBHOOK_TIMEOUT_S) as http:
        webhook = None if settings.intent_target is None else Webhook(settings.intent_target, http, time.time)
        keeper = IntentsKeeper(router, intents, memory, settings.fleet, webhook)
        metrics.add(ColdCollector(keeper.counts))
        async with beside("intents keeper", keeper.run()):
            yield


def observing(router: Router, metrics: Metrics) -> tuple[Observer, Tally, Watch]:
    """Who watches requests, and what that one counts of them for the autoscaler and for the dashboard."""
    watch = Watch(time.monotonic)
    metrics.add(FleetCollector(lambda: fleet_gauges(router, time.monotonic())))
    tally = Tally(router.policy.classes)
    return Observer(metrics, partial(served, router), tally, watch), tally, watch


@asynccontextmanager
async def telling_traffic(
    tally: Tally, counts: TrafficCounts, router: Router, holding: Holding, metrics: Metrics
) -> AsyncIterator[None]:
    """Tell what was counted of requests, and how many are held, for as long as the context is open."""
    keeper = TrafficKeeper(tally, counts, partial(held_by_model, router, holding))
    metrics.add(JudgedCollector(keeper.judged))
    async with beside("traffic keeper", keeper.run()):
        yield


async def counted_by(tokenizers: Tokenizers, wish: CountTokens) -> ExactCount | None:
    """Have the tokens counted that an exchange wishes to know; None if that is not possible in time."""
    return await tokenizers.count(wish.model, wish.what, wish.want_ids)


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


async def _drain(service: Service, drain_s: float) -> None:
    log.info("draining for up to %g s", drain_s)
    await service.drain()
    await asyncio.sleep(min(_HEALTH_LAG_S, drain_s))
    await service.stop(drain_s)
