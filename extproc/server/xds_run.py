"""Puts the control plane together and runs it until it is told to stop."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field
from pathlib import Path

from extproc.adapters.destinations import Destinations, Gate
from extproc.adapters.redis_settings import RedisSettings
from extproc.adapters.registry import Registry
from extproc.addresses import Access, Endpoint, TlsFiles
from extproc.control.settings import EnvoySettings, XdsSource
from extproc.control.xds.files import XdsFiles
from extproc.control.xds.membership import FORGET_AFTER_S, Membership
from extproc.control.xds.resources import Resources
from extproc.core.fleet.fleet import Fleet
from extproc.errors import ConfigError
from extproc.observe.xds_metrics import XdsMetrics
from extproc.server.binding import told
from extproc.server.certificates import Certificates
from extproc.server.tasks import Stop, begin, end
from extproc.server.xds_files import FilePublisher
from extproc.server.xds_keeper import SETTLE_S, Keeper, Publisher
from extproc.server.xds_pages import Pages, gauges, status
from extproc.server.xds_service import Discovery, XdsService

log = logging.getLogger("extproc.xds")


@dataclass(frozen=True, slots=True, kw_only=True)
class XdsSettings:
    """What `extproc xds` needs to know."""

    listen: Endpoint = ("127.0.0.1", 18000)
    write: str = ""  # directory of files, written instead of listening
    write_seen_as: str = ""  # the same as Envoy sees it; "": by the same path
    pages: Endpoint = ("127.0.0.1", 18001)  # metrics, status
    access: Access = field(default_factory=Access)  # of those that are Unix sockets
    tls: TlsFiles | None = None  # of `listen`; None: in the clear
    destinations: Destinations = field(default_factory=Destinations)  # that Envoy may be sent to
    redis: RedisSettings = field(default_factory=RedisSettings)
    fleet: str = "default"
    envoy: EnvoySettings = field(default_factory=lambda: EnvoySettings(xds=XdsSource()))  # what clusters are like
    forget_after_s: float = FORGET_AFTER_S  # an instance whose record ran out
    settle_s: float = SETTLE_S  # after an empty registry, until its first instances are published


async def run_xds(settings: XdsSettings) -> None:
    """Serve, or write, until SIGTERM or SIGINT.

    Raises ConfigError if an address cannot be listened on, or the directory cannot be written to.
    """
    stop = Stop()
    certificates = Certificates(settings.tls) if settings.tls else None
    gate = Gate(settings.destinations)
    fleet = Fleet()
    membership = Membership(settings.envoy.shape, settings.envoy.default_pool, settings.forget_after_s)
    metrics = XdsMetrics(lambda: gauges(discovery, membership, fleet, time.monotonic()))
    discovery = Discovery(metrics)
    publisher = _publisher(settings, discovery)
    keeper = Keeper(fleet, membership, Resources(settings.envoy), publisher, metrics, settings.settle_s)
    service = None if settings.write else XdsService(discovery)
    pages = Pages(metrics.page, lambda: status(discovery, membership), keeper.first_published.is_set)

    async def report_healthy() -> None:
        await keeper.first_published.wait()
        if service is not None:
            await service.serving()
        pools = ", ".join(sorted({endpoint.pool for endpoint in membership.endpoints}))
        log.info("the fleet is known: %s instances are published; pools: %s", len(membership.endpoints), pools)

    async with Registry(settings.redis, settings.fleet, gate) as registry:
        tasks = [
            begin("registry", registry.watch(fleet, keeper.take)),
            begin("keeper", keeper.run()),
        ]
        try:
            pages_port = await pages.start(settings.pages, settings.access)
            shown = told(settings.pages, pages_port)
            if service is None:
                log.info("writing xDS to %s, pages on %s", settings.write, shown)
            else:
                port = service.bind(settings.listen, certificates, settings.access)
                if certificates is not None:
                    tasks.append(begin("certificates", certificates.watch()))
                await service.start()
                log.info("serving xDS on %s, pages on %s", told(settings.listen, port), shown)
            tasks.append(begin("health", report_healthy()))  # the service begins as one that is not
            await stop.wait()
        finally:
            if service is not None:
                await service.stop()
            await pages.stop()
            await end(tasks)


def _publisher(settings: XdsSettings, discovery: Discovery) -> Publisher:
    if not settings.write:
        return discovery
    try:
        return FilePublisher(XdsFiles(Path(settings.write), settings.write_seen_as), discovery)
    except OSError as error:
        raise ConfigError(f"cannot write to {settings.write}: {error.strerror or error}") from None
