"""The pages /healthz and /readyz that orchestrators ask, beside a process's other pages."""

from __future__ import annotations

from collections.abc import Callable

from aiohttp import web


def add_health(app: web.Application, ready: Callable[[], bool]) -> None:
    """GET /healthz: 200 while the event loop turns. GET /readyz: 200 while requests are taken, else 503.

    Neither looks at Redis or at engines: a restart would not bring them back, and without them it still serves.
    """

    async def healthz(_request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def readyz(_request: web.Request) -> web.Response:
        return web.Response(text="ready\n") if ready() else web.Response(text="not ready\n", status=503)

    app.router.add_get("/healthz", healthz)
    app.router.add_get("/readyz", readyz)
