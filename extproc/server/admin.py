"""The service's own HTTP pages: metrics for Prometheus; fleet, latest decisions and why, for people and tools."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import orjson
from aiohttp import web

from extproc.addresses import Access, Endpoint
from extproc.server.binding import OWN_GROUP, removed, serve_pages


class Admin:
    """GET /metrics, /fleet, /decisions, /decisions/ID. Nothing here can change anything."""

    def __init__(
        self,
        metrics_page: Callable[[], bytes],
        fleet: Callable[[], Any],
        decisions: Callable[[], Any],
        explain: Callable[[str], Any],
    ) -> None:
        async def metrics(_request: web.Request) -> web.Response:
            return web.Response(body=metrics_page(), headers={"content-type": "text/plain; version=0.0.4"})

        async def decision(request: web.Request) -> web.Response:
            explanation = explain(request.match_info["id"])
            if explanation is None:
                return _json({"error": "no such request among the latest decisions"}, status=404)
            return _json(explanation)

        app = web.Application()
        app.router.add_get("/metrics", metrics)
        app.router.add_get("/fleet", _json_page(fleet))
        app.router.add_get("/decisions", _json_page(decisions))
        app.router.add_get("/decisions/{id}", decision)
        self._runner = web.AppRunner(app, access_log=None)
        self._where: Endpoint | None = None

    async def start(self, where: Endpoint, access: Access = OWN_GROUP) -> int:
        """Listen; port 0 takes a free one. Returns the port, 0 of a socket. Raises ConfigError if it is taken."""
        await self._runner.setup()
        port = await serve_pages(self._runner, where, access)
        self._where = where
        return port

    async def stop(self) -> None:
        """Close the listener and all connections."""
        await self._runner.cleanup()
        if self._where is not None:
            removed(self._where)
            self._where = None


def _json_page(read: Callable[[], Any]) -> Callable[[web.Request], Any]:
    async def page(_request: web.Request) -> web.Response:
        return _json(read())

    return page


def _json(value: Any, status: int = 200) -> web.Response:
    return web.Response(body=orjson.dumps(value), content_type="application/json", status=status)
