"""OpenTelemetry spans: one for each decision, in the trace that Envoy's request belongs to, and under it its outcome's.

The outcome comes later, from Envoy's access log and to any router. The decision's span rides with the features until
then, so that nothing is kept here, and an outcome has a span if its decision had one.

The only importer of `opentelemetry`, and imported only where tracing is on. Spans are sent by the SDK's own thread from
a bounded queue: a collector that is slow or gone costs spans, and no request waits for it. They go as JSON: protobuf's
exporter needs `opentelemetry-proto`, whose files the wheel `xds-protos` overwrites with older ones of their names.
"""

from __future__ import annotations

import asyncio
import re
import threading
import time
from types import TracebackType

from msgspec import structs
from opentelemetry.exporter.otlp.json.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanLimits, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
from opentelemetry.trace import (
    NonRecordingSpan,
    Span,
    SpanContext,
    SpanKind,
    StatusCode,
    TraceFlags,
    set_span_in_context,
)

from extproc import __version__
from extproc.addresses import http_url
from extproc.core.reasons.measured import Served
from extproc.core.values.outcome import Outcome
from extproc.errors import ConfigError
from extproc.observe.decided import Told, decided
from extproc.observe.finished import finished
from extproc.observe.settings import TracingSettings
from extproc.stream.exchange import Exchange
from extproc.stream.messages import Reply, RouteTo

# https://www.w3.org/TR/trace-context/#traceparent-header: later versions may append fields.
_TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(?:-.*)?")
_SAMPLED = 0x01
_MOST_SPANS = 2048  # that wait to be sent
_BATCH_SPANS = 512
_EVERY_MS = 2000
_EXPORT_TIMEOUT_S = 5.0
_END_S = 3.0  # what the collector gets for the last spans


class Tracing:
    """An async context in which decisions become spans."""

    def __init__(self, settings: TracingSettings, name: str, exporter: SpanExporter | None = None) -> None:
        """`name` tells this process from others; `exporter` takes the place of the one that sends to the endpoint."""
        resource = Resource.create(
            {"service.name": "extproc", "service.version": __version__, "service.instance.id": name}
        )
        self._share = settings.share
        self._provider = TracerProvider(
            sampler=ParentBased(TraceIdRatioBased(settings.share)),
            resource=resource,
            shutdown_on_exit=False,
            span_limits=SpanLimits(max_attributes=64),
        )
        self._exporter = exporter or OTLPSpanExporter(url_of(settings.endpoint), timeout=_EXPORT_TIMEOUT_S)
        self._tracer = self._provider.get_tracer("extproc", __version__)

    async def __aenter__(self) -> Tracing:
        """Begin to send."""
        self._provider.add_span_processor(
            BatchSpanProcessor(
                self._exporter,
                max_queue_size=_MOST_SPANS,
                schedule_delay_millis=_EVERY_MS,
                max_export_batch_size=_BATCH_SPANS,
            )
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Send what waits, but do not wait for a collector that does not answer."""
        ending = threading.Thread(target=self._provider.shutdown, daemon=True)
        ending.start()
        await asyncio.to_thread(ending.join, _END_S)

    def routed(self, exchange: Exchange, reply: RouteTo, took_s: float) -> RouteTo:
        """A request is about to be routed: its span ends now, and its features name it if it is recorded."""
        span = self._decided(exchange, reply, took_s)
        if span is None:
            return reply
        features = structs.replace(reply.features, trace=_named(span.get_span_context()))
        return structs.replace(reply, features=features)

    def replied(self, exchange: Exchange, reply: Reply, took_s: float) -> None:
        """A request was answered; unless it was routed its span ends now."""
        if not isinstance(reply, RouteTo):
            self._decided(exchange, reply, took_s)

    def finished(self, outcome: Outcome, served: Served | None) -> None:
        """A request has ended: its span is as long as it was, on Envoy's clock."""
        features = outcome.features
        parent = parent_of(features.trace) if features is not None else None
        if features is None or parent is None:
            return
        begin_s = time.time() - outcome.duration_s if outcome.started_s is None else outcome.started_s
        span = self._tracer.start_span(
            "extproc outcome",
            set_span_in_context(NonRecordingSpan(parent)),
            SpanKind.INTERNAL,
            attributes=_attributes(finished(features, outcome, served)),
            start_time=round(1e9 * begin_s),
        )
        if outcome.failed:
            span.set_status(StatusCode.ERROR)
        span.end(round(1e9 * (begin_s + outcome.duration_s)))

    def _decided(self, exchange: Exchange, reply: Reply, took_s: float) -> Span | None:
        """The span of a decision, which has ended; None if it is not recorded."""
        parent = parent_of(exchange.trace_parent)
        if parent is None:
            if not self._share:
                return None
            context = None
        elif not parent.trace_flags & _SAMPLED:
            return None
        else:
            context = set_span_in_context(NonRecordingSpan(parent))
        end_ns = time.time_ns()
        span = self._tracer.start_span(
            "extproc decide",
            context,
            SpanKind.SERVER,
            start_time=end_ns - round(1e9 * (took_s + (exchange.held_s or 0.0))),
        )
        if not span.is_recording():
            return None
        span.set_attributes(_attributes(decided(exchange, reply)))
        span.end(end_ns)
        return span


def _attributes(told: Told) -> Told:
    return {f"extproc.{name}": value for name, value in told.items()}


def _named(span: SpanContext) -> str:
    """A span as W3C's `traceparent`."""
    return f"00-{span.trace_id:032x}-{span.span_id:016x}-{span.trace_flags:02x}"


def parent_of(traceparent: str) -> SpanContext | None:
    """The span that a W3C `traceparent` names; None if it names none, or is not well formed."""
    found = _TRACEPARENT.fullmatch(traceparent) if traceparent else None
    if found is None or (traceparent.startswith("00") and len(traceparent) != 55):
        return None
    trace, span, flags = (int(each, 16) for each in found.groups())
    return SpanContext(trace, span, is_remote=True, trace_flags=TraceFlags(flags))


def url_of(endpoint: str) -> str:
    """Where spans are posted: `/v1/traces` of an endpoint that names no path. Raises ConfigError."""
    parts = http_url(endpoint)
    if parts is None:
        raise ConfigError(f"--otlp-endpoint {endpoint!r} is not a URL such as http://127.0.0.1:4318")
    return endpoint if parts.path.strip("/") else f"{endpoint.rstrip('/')}/v1/traces"
