"""A receiver of OTLP over HTTP that keeps the spans it is sent as JSON."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web


@dataclass(frozen=True, slots=True)
class Got:
    """One span."""

    service: str
    name: str
    trace: str  # hexadecimal, as are the spans
    span: str
    parent: str
    took_s: float
    attributes: dict[str, Any] = field(default_factory=dict)


class Receiver:
    """Listens on a free port while its context is open."""

    def __init__(self) -> None:
        self.spans: list[Got] = []
        self.bodies = b""
        self.url = ""

    async def __aenter__(self) -> Receiver:
        app = web.Application()
        app.router.add_post("/v1/traces", self._take)
        self._runner = web.AppRunner(app)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()

    async def _take(self, request: web.Request) -> web.Response:
        body = await request.read()
        self.bodies += body
        if request.content_type != "application/json":  # Envoy's own spans come as protobuf
            return web.Response(content_type="application/x-protobuf")
        for resource in json.loads(body)["resourceSpans"]:
            service = _values(resource["resource"]["attributes"])["service.name"]
            for scope in resource["scopeSpans"]:
                self.spans += [_got(service, span) for span in scope["spans"]]
        return web.json_response({})


def _got(service: str, span: dict[str, Any]) -> Got:
    took_s = 1e-9 * (int(span["endTimeUnixNano"]) - int(span["startTimeUnixNano"]))
    values = _values(span.get("attributes", []))
    return Got(service, span["name"], span["traceId"], span["spanId"], span.get("parentSpanId", ""), took_s, values)


def _values(attributes: list[dict[str, Any]]) -> dict[str, Any]:
    """Attributes; whole numbers are texts in OTLP's JSON (https://opentelemetry.io/docs/specs/otlp/)."""
    found = {}
    for each in attributes:
        [(kind, value)] = each["value"].items()
        found[each["key"]] = int(value) if kind == "intValue" else value
    return found
