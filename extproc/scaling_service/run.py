"""Puts the autoscaler together and runs it until it is told to stop, or for one look."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial

from extproc.adapters.destinations import Destinations, Gate
from extproc.adapters.http_client import HttpClient
from extproc.adapters.leader import LEASE_S, Leader
from extproc.adapters.redis_settings import RedisSettings
from extproc.adapters.registry import Registry
from extproc.adapters.scaling_memory import ScalingMemory
from extproc.adapters.webhook import Target, Webhook
from extproc.addresses import Access, Endpoint, TlsFiles, UnixSocket
from extproc.config_file.reload import Reload, changed
from extproc.core.fleet.fleet import Fleet
from extproc.core.pricing.classes import ClassPolicy
from extproc.core.scaling.counting import LOOK_S
from extproc.core.scaling.rules import ScalingRules
from extproc.core.scaling.scaler import Scaler
from extproc.core.speeds.speed_records import KindRecord
from extproc.errors import RegistryError
from extproc.observe.config_metrics import ConfigCollector
from extproc.observe.scaling_metrics import ScalingMetrics
from extproc.scaling_service import pages as own_pages
from extproc.scaling_service.doing import Doing
from extproc.scaling_service.instance_command import AT_ONCE, TIMEOUT_S, InstanceCommand
from extproc.scaling_service.loop import SETTLE_S, Loop, Parts
from extproc.scaling_service.scaling_webhook import ScalingWebhook
from extproc.scaling_service.sights import Sights
from extproc.scaling_service.word import Word
from extproc.server.binding import told
from extproc.server.certificates import Certificates
from extproc.server.external_scaler import ExternalScaler
from extproc.server.tasks import Stop, begin, end

_WEBHOOK_TIMEOUT_S = 5.0
_WEBHOOK_BUDGET_S = 15.0  # of all attempts at one message: after that it holds something new
_FAREWELL_S = 2.0
_COMMANDS_END_S = 20.0  # of the 30 s that Kubernetes grants; they end with us
_SYNC_S = 3.0  # that the first turn waits for the fleet to be known

_TWO_HANDS = (
    "an instance is drained here, and whoever obeys --keda-listen takes another one away: leave out --drain, --exec and"
    " --webhook where KEDA scales (docs/autoscale-kubernetes.md)"
)

log = logging.getLogger("extproc.autoscale")


@dataclass(frozen=True, slots=True, kw_only=True)
class AutoscaleSettings:
    """What `extproc autoscale` needs to know."""

    pages: Endpoint = ("127.0.0.1", 9004)
    keda: Endpoint | None = None  # None: no gRPC for KEDA
    access: Access = field(default_factory=Access)  # of those that are Unix sockets
    tls: TlsFiles | None = None  # of `keda`; None: in the clear
    redis: RedisSettings = field(default_factory=RedisSettings)
    fleet: str = "default"
    destinations: Destinations = field(default_factory=Destinations)
    rules: ScalingRules = field(default_factory=ScalingRules)
    classes: ClassPolicy = field(default_factory=ClassPolicy)
    speed_priors: tuple[KindRecord, ...] = ()
    command: tuple[str, ...] = ()  # program and arguments that start and stop instances
    command_timeout_s: float = TIMEOUT_S
    commands_at_once: int = AT_ONCE
    webhook: Target | None = None
    drains: bool = False  # give drain orders though nothing here stops instances
    dry_run: bool = False
    lease_s: float = LEASE_S
    settle_s: float = SETTLE_S
    said: Mapping[str, str] = field(default_factory=dict)  # all flags by their keys, to tell which have changed

    @property
    def acts(self) -> bool:
        """Whether anything is done to instances."""
        return not self.dry_run and bool(self.command or self.webhook or self.drains)


def in_force(old: AutoscaleSettings, new: AutoscaleSettings) -> tuple[AutoscaleSettings, tuple[str, ...]]:
    """What of new settings an autoscaler that runs can take, its rules, and the keys of what it cannot: its flags."""
    return replace(old, rules=new.rules, classes=new.classes), tuple(changed(old.said, new.said))


async def run_autoscale(settings: AutoscaleSettings, news: Reload[AutoscaleSettings] | None = None) -> None:
    """Serve until SIGTERM or SIGINT. Raises ConfigError if an address cannot be listened on.

    `news` has other settings while it serves.
    """
    stop = Stop()
    if settings.keda is not None and settings.acts:
        log.warning(_TWO_HANDS)
    async with _made(settings) as made:
        scaler = ExternalScaler(made.loop.latest, made.loop.now_s) if settings.keda is not None else None
        certificates = Certificates(settings.tls) if settings.tls else None
        pages = own_pages.Pages(
            made.metrics.page,
            lambda: own_pages.status(made.loop, made.leader, settings.fleet),
            lambda: own_pages.alive(made.loop),
        )
        tasks: list[asyncio.Task[None]] = []
        try:
            port = await pages.start(settings.pages, settings.access)
            shown = told(settings.pages, port)
            if scaler is not None and settings.keda is not None:
                keda_port = scaler.bind(settings.keda, certificates, settings.access)
                await scaler.start()
                made.loop.changed = scaler.changed
                log.info("serving KEDA on %s, pages on %s", told(settings.keda, keda_port), shown)
            else:
                log.info("autoscaling fleet %s, pages on %s", settings.fleet, shown)
            if certificates is not None:
                tasks.append(begin("certificates", certificates.watch()))
            synced = asyncio.Event()
            tasks.append(begin("registry", made.registry.watch(made.fleet, synced=synced)))
            if made.leader is not None:
                tasks.append(begin("leader", made.leader.run()))
            turning = begin("autoscaler", _turning(made.loop, synced))
            tasks.append(turning)
            if news is not None:
                made.metrics.add(ConfigCollector(news.counts))
                tasks.append(begin("settings", news.run(made.use)))
            await stop.wait()
            await end([turning])
            await made.farewell()
        finally:
            if scaler is not None:
                await scaler.stop()
            await pages.stop()
            await end(tasks)  # the leader gives its lease up


async def look_once(settings: AutoscaleSettings) -> Word:
    """Two looks a tick or more apart, of which the second is returned: rates are seen between them.

    What these few seconds call for is told, where the service waits whether it lasts. Raises RegistryError.
    """
    async with _made(settings, partial(Scaler, glance=True)) as made:
        made.fleet.resync(await made.registry.state(), time.monotonic())
        await made.loop.recall()
        await made.loop.look()
        await asyncio.sleep(max(settings.rules.tick_s, LOOK_S))
        made.fleet.resync(await made.registry.state(), time.monotonic())
        return await made.loop.look()


async def _turning(loop: Loop, synced: asyncio.Event) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(_SYNC_S):
            await synced.wait()
    await loop.run()


class _Made:
    """What was put together."""

    def __init__(
        self,
        settings: AutoscaleSettings,
        registry: Registry,
        webhook: ScalingWebhook | None,
        new_scaler: Callable[[ScalingRules, ClassPolicy], Scaler],
    ) -> None:
        self.registry, self.fleet, self.webhook = registry, Fleet(), webhook
        self._name = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}"
        about = told(settings.pages, 0 if isinstance(settings.pages, UnixSocket) else settings.pages[1])
        link, base = registry.link, registry.base
        leads = not settings.dry_run
        self.leader = Leader(link, base, self._name, about, lease_s=settings.lease_s) if leads else None
        command = None
        if settings.command and settings.acts:
            command = InstanceCommand(
                settings.command,
                settings.fleet,
                at_once=settings.commands_at_once,
                timeout_s=settings.command_timeout_s,
            )
        self.doing = Doing(registry, command)
        self.metrics = ScalingMetrics(lambda: own_pages.gauges(self.loop, self.fleet, self.doing, webhook))
        parts = Parts(
            rules=settings.rules,
            classes=settings.classes,
            sights=Sights(settings.rules, registry, self.fleet, settings.speed_priors),
            new_scaler=new_scaler,
            fleet=self.fleet,
            memory=ScalingMemory(link, base),
            leader=self.leader,
            doing=self.doing,
            webhook=webhook,
            metrics=self.metrics,
            acts=settings.acts,
        )
        self.loop = Loop(parts, self._name, about, settle_s=settings.settle_s)

    def use(self, settings: AutoscaleSettings) -> None:
        """Go by what of other settings can be taken (`in_force`)."""
        self.loop.use(settings.rules, settings.classes)

    async def farewell(self) -> None:
        """Let what was begun come to its end, and leave everything to the next leader."""
        await self.doing.end(_COMMANDS_END_S)
        if self.webhook is not None:
            await self.webhook.end(_FAREWELL_S)
        try:
            async with asyncio.timeout(_FAREWELL_S):
                await self.loop.end()
        except (RegistryError, TimeoutError):
            log.warning("what was learned lately is not written down: Redis is not there")


@asynccontextmanager
async def _made(
    settings: AutoscaleSettings, new_scaler: Callable[[ScalingRules, ClassPolicy], Scaler] = Scaler
) -> AsyncIterator[_Made]:
    async with AsyncExitStack() as stack:
        webhook = None
        if settings.webhook is not None and settings.acts:
            client = await stack.enter_async_context(HttpClient(timeout_s=_WEBHOOK_TIMEOUT_S))
            caller = Webhook(settings.webhook, client, time.time, budget_s=_WEBHOOK_BUDGET_S)
            webhook = ScalingWebhook(caller, settings.fleet)
        registry = await stack.enter_async_context(
            Registry(settings.redis, settings.fleet, Gate(settings.destinations))
        )
        yield _Made(settings, registry, webhook, new_scaler)
