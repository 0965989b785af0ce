"""The parts of a service: what each is made from, and who knows of whom. Nothing runs yet."""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
import time
from dataclasses import replace
from functools import partial

from extproc.adapters.body_reader import APART_BYTES, BodyReader
from extproc.adapters.bookings import Bookings
from extproc.adapters.destinations import Gate
from extproc.adapters.kv_log import KvLog
from extproc.adapters.prefix_memory import PrefixMemory
from extproc.adapters.profile_memory import ProfileMemory
from extproc.adapters.rate_limits import RateLimits
from extproc.adapters.registry import Registry
from extproc.adapters.scaling_memory import ScalingMemory
from extproc.adapters.strict_bookings import StrictBookings
from extproc.adapters.tokenizers import Tokenizers
from extproc.config import ServeSettings
from extproc.core.fleet.fleet import Change
from extproc.core.fleet.shared_ids import SharedIds
from extproc.core.router import Router
from extproc.core.scaling.tally import Tally
from extproc.core.tokens.tokens import ExactCount
from extproc.observe.dashboard.watch import Watch
from extproc.observe.fleet_metrics import FleetCollector
from extproc.observe.live_gauges import Gauges
from extproc.observe.metrics import Metrics
from extproc.observe.observer import Observer
from extproc.server.admin import Admin
from extproc.server.advice import Advice
from extproc.server.certificates import Certificates
from extproc.server.cold_waits import ColdWaits
from extproc.server.kv_feed import KvFeed
from extproc.server.ladder import LadderWatch
from extproc.server.live_settings import LiveSettings
from extproc.server.overview import Overview
from extproc.server.prefix_keeper import PrefixKeeper
from extproc.server.profile_keeper import ProfileKeeper
from extproc.server.service import Service
from extproc.server.shell import Shell
from extproc.server.siblings import Siblings
from extproc.server.views import fleet_gauges, fleet_view, gauges, guards, served
from extproc.stream.errands import CountTokens

log = logging.getLogger("extproc.serve")


class Parts:
    """Those of one process, to be made in its event loop. `certificates`: None without TLS."""

    def __init__(self, settings: ServeSettings, tokenizers: Tokenizers, certificates: Certificates | None) -> None:
        self.settings, self.tokenizers, self.certificates = settings, tokenizers, certificates
        self.name = secrets.token_hex(6)
        self._shared_ids = SharedIds()
        self.router = router = Router(settings.policy, settings.speed_priors)
        self.gate = Gate(settings.destinations)
        self.registry = Registry(settings.redis, settings.fleet, self.gate)
        link, base = self.registry.link, self.registry.base
        self.bookings = Bookings(link, base, self.name, router.ledger)
        self.strict = StrictBookings(link, base, self.name) if settings.rules.strict else None
        self.prefixes = PrefixKeeper(router, PrefixMemory(link, base))
        self.profiles = ProfileKeeper(router.beliefs.speeds, ProfileMemory(link, base), self.name)
        self.fleet_known, self.kv_known = asyncio.Event(), asyncio.Event()
        self.feed = KvFeed(router, KvLog(link, base), self.fleet_known)
        self.ladder, self.reader, self.cold_waits = LadderWatch(router, self.feed), BodyReader(), ColdWaits(router)
        self.siblings = Siblings(settings.worker) if settings.worker is not None else None
        self.tally, self.watch = Tally(router.policy.classes), Watch(time.monotonic)
        self.metrics = Metrics(self._gauges)
        self.metrics.add(FleetCollector(lambda: fleet_gauges(router, time.monotonic())))
        self.observer = Observer(self.metrics, partial(served, router), self.tally, self.watch)
        self.live = LiveSettings(
            settings,
            router,
            self.tally,
            partial(replace, counted_models=tokenizers.models, read_apart_bytes=APART_BYTES),
            partial(RateLimits, link, base, self.name),
        )
        self.live.service = self.service = Service(self._shell())
        self.bookings.on_heard = self.service.holding.stir
        self.admin = self._admin()

    def taken(self, change: Change) -> None:
        """The fleet has changed; perhaps there is room for who is held."""
        for text in self._shared_ids.take(change):
            log.warning("%s", text)
        self.cold_waits.take(change)
        self.service.holding.stir()

    def _shell(self) -> Shell:
        return Shell(
            self.router,
            self.observer,
            time.monotonic,
            random.random,
            self.settings.cluster_header,
            self.live.rules,
            partial(counted_by, self.tokenizers),
            self.strict,
            self.settings.max_streams,
            self.live.charges,
            self.cold_waits,
            self.siblings,
            self.reader.read,
        )

    def _admin(self) -> Admin:
        observer, holding = self.observer, self.service.holding
        advice = Advice(ScalingMemory(self.registry.link, self.registry.base))
        return Admin(
            observer.page,
            lambda: fleet_view(self.router, self.ladder, time.monotonic(), self.watch.lately),
            observer.recent,
            observer.explain if self.siblings is None else observer.told,
            holding.view,
            Overview(
                self.settings.fleet, self.router, observer, self.watch, self.ladder, holding, self.bookings, advice
            ),
            ready=lambda: self.service.ready,
        )

    def _gauges(self) -> Gauges:
        """What a scrape reads."""
        kept_out, charges = guards(self.service, self.gate, self.certificates), self.live.charges
        return replace(
            gauges(
                self.router,
                self.tokenizers,
                self.bookings,
                self.strict,
                self.ladder,
                kept_out,
                self.service.holding,
            ),
            limits=None if charges is None else charges.counts,
            bodies_apart={outcome.value: count for outcome, count in self.reader.outcomes.items()},
        )


async def counted_by(tokenizers: Tokenizers, wish: CountTokens) -> ExactCount | None:
    """Have the tokens counted that an exchange wishes to know; None if that is not possible in time."""
    return await tokenizers.count(wish.model, wish.what, wish.want_ids)
