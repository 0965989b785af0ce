"""KEDA's external scaler over gRPC: tells KEDA how many replicas each pool needs, and at once when one wakes up.

What KEDA does with answers and errors decides what they are here (kedacore/keda, pkg/scalers/external_scaler.go and
pkg/scaling/scale_handler.go):

* GetMetricSpec is asked before GetMetrics at each poll, and an error there is no failure that `fallback` counts
  (keda#8056); of an error while a ScaledObject is new, KEDA before 2.20 makes an HPA on CPU (keda#7729). So it has an
  answer whenever the pool may exist. GetMetrics fails where nothing true can be said, and `fallback` counts that.
* A stream that ends with an error is opened anew after a pause that doubles each time, up to a minute, and only a clean
  end resets it. So a stream stays open while recommendations are stale, and ends cleanly when the service stops.
* Health is that of the service, not of what it knows: were all replicas taken out of a Kubernetes Service for stale
  recommendations, KEDA would reach none, and `fallback` would not apply.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

import grpc
import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from extproc.adapters.keda_messages import (
    SERVICE,
    GetMetricSpecResponse,
    GetMetricsRequest,
    GetMetricsResponse,
    IsActiveResponse,
    MetricSpec,
    MetricValue,
    ScaledObjectRef,
)
from extproc.addresses import Access, Endpoint
from extproc.core.scaling.hpa import INSTANCE, TOLERANCE, Steering
from extproc.core.scaling.recommendation import Recommendation
from extproc.core.scaling.replicas import replicas
from extproc.server.binding import LONG_STREAMS, OWN_GROUP, bind
from extproc.server.certificates import Certificates

METRIC = "extproc-instances"
"""As the HPA names it, behind KEDA's own `s0-`. Its unit is a hundredth of an instance."""

STALE_AFTER_S = 60.0

_END_S = 1.0  # that streams have to end by themselves
_MOST_KEPT = 1024  # triggers and ScaledObjects, after which memory of them begins anew

log = logging.getLogger("extproc.keda")


@dataclass(frozen=True, slots=True)
class _Trigger:
    """What a ScaledObject's trigger says in its `metadata`."""

    pool: str
    tolerance: float


class ExternalScaler:
    """Serves recommendations. Each replica of the autoscaler may: they tell the same."""

    def __init__(
        self,
        latest: Callable[[], Mapping[str, Recommendation]],
        now_s: Callable[[], float],
        stale_after_s: float = STALE_AFTER_S,
    ) -> None:
        """`latest` has the newest recommendation of each pool by its name, empty while nothing is known.

        `now_s` is on the clock of `Recommendation.at_s`; older than `stale_after_s` they are not told any more.
        """
        self._latest = latest
        self._now_s = now_s
        self._stale_after_s = stale_after_s
        self._streams: set[asyncio.Event] = set()
        self._ending = False
        self._steering: dict[_Trigger, Steering] = {}
        self._refused: set[str] = set()  # ScaledObjects, told to the log once
        self._server = grpc.aio.server(options=LONG_STREAMS)
        unary, stream = grpc.unary_unary_rpc_method_handler, grpc.unary_stream_rpc_method_handler
        methods = {
            "IsActive": unary(self._is_active, ScaledObjectRef.parse, bytes),
            "StreamIsActive": stream(self._stream_is_active, ScaledObjectRef.parse, bytes),
            "GetMetricSpec": unary(self._metric_spec, ScaledObjectRef.parse, bytes),
            "GetMetrics": unary(self._metrics, GetMetricsRequest.parse, bytes),
        }
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, methods),))
        self._health = health.aio.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)

    def bind(self, where: Endpoint, certificates: Certificates | None = None, access: Access = OWN_GROUP) -> int:
        """Take an address (port 0 takes a free one) without answering yet; returns the port, 0 of a socket.

        Raises ConfigError if it cannot be listened on.
        """
        return bind(self._server, where, certificates, access)

    async def start(self) -> None:
        """Answer on the bound address."""
        for name in ("", SERVICE):
            await self._health.set(name, health_pb2.HealthCheckResponse.SERVING)
        await self._server.start()

    def changed(self) -> None:
        """To be called after each look, whatever came of it: `latest` may have something new to tell."""
        for stream in self._streams:
            stream.set()

    async def stop(self) -> None:
        """End all streams, cleanly, and the service."""
        self._ending = True
        self.changed()
        await self._server.stop(_END_S)

    async def _metric_spec(self, ref: ScaledObjectRef, context: Any) -> GetMetricSpecResponse:
        await self._trigger(ref, context)
        return GetMetricSpecResponse(metric_specs=[MetricSpec(METRIC, INSTANCE, float(INSTANCE))])

    async def _metrics(self, request: GetMetricsRequest, context: Any) -> GetMetricsResponse:
        ref = request.scaled_object_ref or ScaledObjectRef()
        trigger = await self._trigger(ref, context)
        told = await self._fresh(trigger.pool, ref, context)
        if trigger not in self._steering and len(self._steering) >= _MOST_KEPT:
            self._steering.clear()
        steering = self._steering.setdefault(trigger, Steering(trigger.tolerance))
        value = steering.metric(replicas(told), told.ready + told.coming + told.leaving + told.broken)
        # There is one metric, and KEDA before 2.7 asks for it with its own prefix.
        return GetMetricsResponse(metric_values=[MetricValue(request.metric_name or METRIC, value, float(value))])

    async def _is_active(self, ref: ScaledObjectRef, context: Any) -> IsActiveResponse:
        trigger = await self._trigger(ref, context)
        return IsActiveResponse(result=(await self._fresh(trigger.pool, ref, context)).desired > 0)

    async def _stream_is_active(self, ref: ScaledObjectRef, context: Any) -> AsyncIterator[IsActiveResponse]:
        """What holds, as soon as it is known, then each change, until KEDA ends it or the service stops."""
        trigger = await self._trigger(ref, context)
        news = asyncio.Event()
        self._streams.add(news)
        told: bool | None = None
        try:
            while not self._ending:
                news.clear()
                latest = self._latest().get(trigger.pool)
                if latest is not None and self._age_s(latest) <= self._stale_after_s and told != (latest.desired > 0):
                    told = latest.desired > 0
                    yield IsActiveResponse(result=told)
                else:
                    await news.wait()
        finally:
            self._streams.discard(news)

    async def _trigger(self, ref: ScaledObjectRef, context: Any) -> _Trigger:
        """What is asked about. Aborts the call with INVALID_ARGUMENT or NOT_FOUND."""
        metadata, pools = ref.scaler_metadata, self._latest()
        known = f"pools: {', '.join(sorted(pools))}" if pools else "no pool is known yet"
        pool = metadata.get("pool", "")
        if not pool:
            words = f"the trigger's metadata name no pool, as in `pool: NAME`; {known}"
            await self._refuse(ref, context, grpc.StatusCode.INVALID_ARGUMENT, words)
        if pools and pool not in pools:
            words = f"no pool is called '{pool}', which the trigger's metadata name; {known}"
            await self._refuse(ref, context, grpc.StatusCode.NOT_FOUND, words)
        text = metadata.get("tolerance", "")
        tolerance = _tolerance(text)
        if tolerance is None:
            words = (
                f"`tolerance: {text}` in the trigger's metadata is no share from 0 to 1, such as that of the HPA, 0.1"
            )
            await self._refuse(ref, context, grpc.StatusCode.INVALID_ARGUMENT, words)
        return _Trigger(pool, tolerance)

    async def _fresh(self, pool: str, ref: ScaledObjectRef, context: Any) -> Recommendation:
        """What is recommended. Aborts the call with UNAVAILABLE if that is not known, or not any more."""
        latest = self._latest().get(pool)
        if latest is None:
            await self._refuse(ref, context, grpc.StatusCode.UNAVAILABLE, f"nothing is known of pool '{pool}' yet")
        if self._age_s(latest) > self._stale_after_s:
            words = f"what is known of pool '{pool}' is {self._age_s(latest):.0f} s old: is Redis there, and a leader?"
            await self._refuse(ref, context, grpc.StatusCode.UNAVAILABLE, words)
        self._refused.discard(_name(ref))
        return latest

    def _age_s(self, recommendation: Recommendation) -> float:
        return self._now_s() - recommendation.at_s

    async def _refuse(self, ref: ScaledObjectRef, context: Any, code: grpc.StatusCode, words: str) -> NoReturn:
        name = _name(ref)
        if name not in self._refused:
            if len(self._refused) >= _MOST_KEPT:
                self._refused.clear()
            self._refused.add(name)
            log.warning("ScaledObject %s: %s", name, words)
        await context.abort(code, words)
        raise AssertionError("abort raises")


def _name(ref: ScaledObjectRef) -> str:
    return f"{ref.namespace}/{ref.name}"


def _tolerance(text: str) -> float | None:
    """Of the HPA, as the trigger's metadata tell it; None if that is no share."""
    if not text:
        return TOLERANCE
    try:
        share = float(text)
    except ValueError:
        return None
    return share if 0 <= share < 1 else None
