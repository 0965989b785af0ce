"""The autoscaler's own HTTP pages: what is recommended and why, metrics, and whether it is alive."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec
import orjson
from aiohttp import web

from extproc.observe.scaling_metrics import ScalingGauges
from extproc.scaling_service.loop import Loop, Role
from extproc.server.external_scaler import STALE_AFTER_S
from extproc.server.http_pages import HttpPages

if TYPE_CHECKING:
    from extproc.adapters.leader import Leader
    from extproc.core.fleet.fleet import Fleet
    from extproc.core.scaling.recommendation import Recommendation
    from extproc.scaling_service.doing import Doing
    from extproc.scaling_service.scaling_webhook import ScalingWebhook
    from extproc.scaling_service.word import Word

_LONGEST_TURN_S = 60.0  # beyond, the loop has come to a halt


class Pages(HttpPages):
    """GET /recommendations, /metrics, /healthz. Nothing here can change anything."""

    def __init__(self, metrics_page: Callable[[], bytes], status: Callable[[], Any], alive: Callable[[], bool]) -> None:
        async def recommendations(_request: web.Request) -> web.Response:
            return web.Response(body=orjson.dumps(status()), content_type="application/json")

        async def metrics(_request: web.Request) -> web.Response:
            return web.Response(body=metrics_page(), headers={"content-type": "text/plain; version=0.0.4"})

        async def healthz(_request: web.Request) -> web.Response:
            return web.Response(status=200 if alive() else 503, text="ok\n" if alive() else "no turn for too long\n")

        app = web.Application()
        app.router.add_get("/recommendations", recommendations)
        app.router.add_get("/metrics", metrics)
        app.router.add_get("/healthz", healthz)
        super().__init__(app)


def alive(loop: Loop) -> bool:
    """Whether the loop turns. Redis may be lost: a restart of this process would not bring it back."""
    return time.monotonic() - loop.due_at_s < _LONGEST_TURN_S + loop.tick_s


def status(loop: Loop, leader: Leader | None, fleet_name: str) -> dict[str, Any]:
    """What is recommended, by whom, and how old it is, as plain values for JSON."""
    led = leader.led if leader is not None else None
    refused = f"this replica cannot lead: {leader.refused}" if leader is not None and leader.refused else ""
    word = loop.word
    return {
        "fleet": fleet_name,
        "role": loop.role.value,
        "leader": {"name": led.name, "about": led.about} if led is not None and led.name else None,
        "said_by": None if word is None else word.name,
        "age_s": age_s(loop),
        "stale": not fresh(loop),
        "trouble": loop.trouble or refused,
        "outside": [] if word is None else list(word.outside),
        "recommendations": shown(word),
    }


def shown(word: Word | None) -> list[dict[str, Any]]:
    """Each recommendation as plain values, with the signal that decided first."""
    if word is None:
        return []
    return [_shown(each, word.pending.get(each.pool, 0)) for each in word.recommendations]


def gauges(loop: Loop, fleet: Fleet, doing: Doing, webhook: ScalingWebhook | None) -> ScalingGauges:
    """What a scrape reads at this moment."""
    word = loop.word
    return ScalingGauges(
        recommendations=word.recommendations if word is not None else (),
        fresh=fresh(loop),
        age_s=age_s(loop),
        pending=word.pending if word is not None else {},
        outside=len(word.outside) if word is not None else 0,
        leads=loop.role is Role.LEADER,
        actions=dict(doing.done),
        messages=dict(webhook.told) if webhook is not None else {},
        registry_silence_s=max(0.0, time.monotonic() - fleet.contact_at_s),
    )


def age_s(loop: Loop) -> float | None:
    """How old the last word is, for people."""
    age = loop.age_s()
    return None if age is None else round(age, 3)


def fresh(loop: Loop) -> bool:
    """Whether the last word is young enough to be acted on."""
    age = loop.age_s()
    return age is not None and age < STALE_AFTER_S


def _shown(recommendation: Recommendation, pending: int) -> dict[str, Any]:
    fields: dict[str, Any] = msgspec.to_builtins(recommendation)
    drivers = fields.pop("drivers")
    driver = drivers[0] if drivers else None
    return {"pool": fields.pop("pool"), "desired": fields.pop("desired"), "pending": pending, "driver": driver} | (
        fields | {"drivers": drivers}
    )
