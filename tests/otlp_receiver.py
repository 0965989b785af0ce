"""A receiver of OTLP over HTTP that keeps the spans it is sent."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from aiohttp import web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)


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
        message = ExportTraceServiceRequest.FromString(body)
        for resource in message.resource_spans:
            service = next(
                each.value.string_value for each in resource.resource.attributes if each.key == "service.name"
            )
            for scope in resource.scope_spans:
                self.spans += [_got(service, span) for span in scope.spans]
        return web.Response(
            body=ExportTraceServiceResponse().SerializeToString(), content_type="application/x-protobuf"
        )


def _got(service: str, span: Any) -> Got:
    values = {each.key: getattr(each.value, str(each.value.WhichOneof("value"))) for each in span.attributes}
    took_s = 1e-9 * (span.end_time_unix_nano - span.start_time_unix_nano)
    return Got(service, span.name, span.trace_id.hex(), span.span_id.hex(), span.parent_span_id.hex(), took_s, values)
