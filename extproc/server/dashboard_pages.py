"""The dashboard's page and files, at paths of an application whose other paths have the data."""

from __future__ import annotations

from aiohttp import web

from extproc.observe.dashboard.assets import HEADERS, PAGE, Asset, read_assets


def add_dashboard(app: web.Application) -> None:
    """The page at / and /dashboard, its files beneath; it asks for /overview, /fleet and /decisions/ID."""
    assets = read_assets()
    page = assets.pop(PAGE)

    async def dashboard(_request: web.Request) -> web.Response:
        return _sent(page)

    async def file(request: web.Request) -> web.Response:
        asset = assets.get(request.match_info["name"])
        if asset is None:
            raise web.HTTPNotFound
        return _sent(asset)

    app.router.add_get("/", dashboard)
    app.router.add_get("/dashboard", dashboard)
    app.router.add_get("/dashboard/{name}", file)


def _sent(asset: Asset) -> web.Response:
    return web.Response(body=asset.body, content_type=asset.content_type, charset="utf-8", headers=HEADERS)
