"""The service's own HTTP pages: metrics for Prometheus; the dashboard; fleet, latest decisions and why, as JSON."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import orjson
from aiohttp import web

from extproc.server.dashboard_pages import add_dashboard
from extproc.server.health_pages import add_health
from extproc.server.http_pages import HttpPages


async def _no_overview() -> dict[str, Any]:
    return {}


class Admin(HttpPages):
    """GET /, /dashboard, /overview, /metrics, /fleet, /held, /decisions, /decisions/ID, /healthz, /readyz.

    Nothing can change anything.
    """

    def __init__(
        self,
        metrics_page: Callable[[], bytes],
        fleet: Callable[[], Any],
        decisions: Callable[[], Any],
        explain: Callable[[str], Any],
        held: Callable[[], Any],
        overview: Callable[[], Awaitable[Any]] = _no_overview,
        *,
        ready: Callable[[], bool] = lambda: True,
    ) -> None:
        async def metrics(_request: web.Request) -> web.Response:
            return web.Response(body=metrics_page(), headers={"content-type": "text/plain; version=0.0.4"})

        async def decision(request: web.Request) -> web.Response:
            explanation = explain(request.match_info["id"])
            if explanation is None:
                return _json({"error": "no such request among the latest decisions"}, status=404)
            return _json(explanation)

        async def overview_page(_request: web.Request) -> web.Response:
            return _json(await overview())

        app = web.Application()
        app.router.add_get("/metrics", metrics)
        app.router.add_get("/fleet", _json_page(fleet))
        app.router.add_get("/held", _json_page(held))
        app.router.add_get("/decisions", _json_page(decisions))
        app.router.add_get("/decisions/{id}", decision)
        app.router.add_get("/overview", overview_page)
        add_dashboard(app)
        add_health(app, ready)
        super().__init__(app)


def _json_page(read: Callable[[], Any]) -> Callable[[web.Request], Any]:
    async def page(_request: web.Request) -> web.Response:
        return _json(read())

    return page


def _json(value: Any, status: int = 200) -> web.Response:
    headers = {"x-content-type-options": "nosniff"}
    return web.Response(body=orjson.dumps(value), content_type="application/json", status=status, headers=headers)
