"""The control plane's own HTTP pages: /metrics for Prometheus, /xds with what is published and who follows it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import orjson
from aiohttp import web

from extproc.control.config_source import Transport
from extproc.control.xds.membership import Endpoint, Membership
from extproc.control.xds.resources import Snapshot
from extproc.core.fleet.fleet import Fleet
from extproc.observe.xds_metrics import XdsGauges
from extproc.server.health_pages import add_health
from extproc.server.http_pages import HttpPages
from extproc.server.xds_service import KINDS, Discovery, Link


class Pages(HttpPages):
    """GET /metrics, /xds, /healthz, /readyz. Nothing here can change anything."""

    def __init__(self, metrics_page: Callable[[], bytes], status: Callable[[], Any], ready: Callable[[], bool]) -> None:
        async def metrics(_request: web.Request) -> web.Response:
            return web.Response(body=metrics_page(), headers={"content-type": "text/plain; version=0.0.4"})

        async def xds(_request: web.Request) -> web.Response:
            return web.Response(body=orjson.dumps(status()), content_type="application/json")

        app = web.Application()
        app.router.add_get("/metrics", metrics)
        app.router.add_get("/xds", xds)
        add_health(app, ready)
        super().__init__(app)


def gauges(discovery: Discovery, membership: Membership, fleet: Fleet, now: float) -> XdsGauges:
    """What a scrape reads at this moment."""
    snapshot = _any(discovery)
    streams = Counter((link.transport.value, _protocol(link)) for link in discovery.links)
    waiting = {
        kind: sum(len(link.stream.subscriptions[type_url].unanswered) for link in discovery.links)
        for type_url, kind in KINDS.items()
    }
    return XdsGauges(
        streams=streams,
        unanswered=waiting,
        resources={kind: len(snapshot.resources[type_url]) if snapshot else 0 for type_url, kind in KINDS.items()},
        endpoints=Counter(endpoint.health.value for endpoint in membership.endpoints),
        registry_silence_s=max(0.0, now - fleet.contact_at_s),
    )


def status(discovery: Discovery, membership: Membership) -> dict[str, Any]:
    """What is published and who follows it, as plain values for JSON. Versions are None before there is anything."""
    snapshot = _any(discovery)
    return {
        "versions": {kind: snapshot.versions[type_url] if snapshot else None for type_url, kind in KINDS.items()},
        "endpoints": [_endpoint(each) for each in membership.endpoints],
        "streams": [_stream(link) for link in discovery.links],
        "last_refusals": discovery.refusals,
    }


def _endpoint(endpoint: Endpoint) -> dict[str, Any]:
    host, port = endpoint.address
    return {
        "id": endpoint.id,
        "pool": endpoint.pool,
        "cluster": endpoint.cluster,
        "address": f"[{host}]:{port}" if ":" in host else f"{host}:{port}",
        "health": endpoint.health,
    }


def _stream(link: Link) -> dict[str, Any]:
    subscriptions = {
        kind: {
            "wildcard": held.wildcard,
            "names": sorted(held.names),
            "resources": len(held.sent),
            "unanswered": len(held.unanswered),
        }
        for type_url, kind in KINDS.items()
        if (held := link.stream.subscriptions[type_url]).begun
    }
    return {"node": link.stream.node, "transport": link.transport, "protocol": _protocol(link)} | subscriptions


def _protocol(link: Link) -> str:
    return "delta" if link.stream.delta else "sotw"


def _any(discovery: Discovery) -> Snapshot | None:
    """All transports have the same resources, but for where clusters say that their endpoints are."""
    return discovery.snapshots[Transport.AGGREGATED] if discovery.snapshots else None
