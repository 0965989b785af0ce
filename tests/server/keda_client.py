"""A client as KEDA is one: its messages are google.protobuf's, from descriptors built here when it runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import grpc
import grpc.aio
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_STRING, _BOOL, _INT64, _DOUBLE, _MESSAGE = 9, 8, 3, 1, 11  # FieldDescriptorProto.Type
_OPTIONAL, _REPEATED = 1, 3  # and .Label

# Of pkg/scalers/externalscaler/externalscaler.proto in kedacore/keda.
_MESSAGES: Mapping[str, tuple[tuple[str, int, int, str, int], ...]] = {
    "ScaledObjectRef": (
        ("name", 1, _STRING, "", _OPTIONAL),
        ("namespace", 2, _STRING, "", _OPTIONAL),
        ("scalerMetadata", 3, _MESSAGE, "ScaledObjectRef.ScalerMetadataEntry", _REPEATED),
    ),
    "IsActiveResponse": (("result", 1, _BOOL, "", _OPTIONAL),),
    "GetMetricSpecResponse": (("metricSpecs", 1, _MESSAGE, "MetricSpec", _REPEATED),),
    "MetricSpec": (
        ("metricName", 1, _STRING, "", _OPTIONAL),
        ("targetSize", 2, _INT64, "", _OPTIONAL),
        ("targetSizeFloat", 3, _DOUBLE, "", _OPTIONAL),
    ),
    "GetMetricsRequest": (
        ("scaledObjectRef", 1, _MESSAGE, "ScaledObjectRef", _OPTIONAL),
        ("metricName", 2, _STRING, "", _OPTIONAL),
    ),
    "GetMetricsResponse": (("metricValues", 1, _MESSAGE, "MetricValue", _REPEATED),),
    "MetricValue": (
        ("metricName", 1, _STRING, "", _OPTIONAL),
        ("metricValue", 2, _INT64, "", _OPTIONAL),
        ("metricValueFloat", 3, _DOUBLE, "", _OPTIONAL),
    ),
}


def _classes() -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(name="keda.proto", package="externalscaler", syntax="proto3")
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for field, number, kind, of, label in fields:
            type_name = f".externalscaler.{of}" if of else None
            message.field.add(name=field, number=number, type=kind, label=label, type_name=type_name)
    entry = file.message_type[0].nested_type.add(name="ScalerMetadataEntry")
    entry.options.map_entry = True
    for number, field in enumerate(("key", "value"), 1):
        entry.field.add(name=field, number=number, type=_STRING, label=_OPTIONAL)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    found = {name: pool.FindMessageTypeByName(f"externalscaler.{name}") for name in _MESSAGES}
    return {name: message_factory.GetMessageClass(descriptor) for name, descriptor in found.items()}


_OF = _classes()


class Keda:
    """The calls that KEDA makes for one ScaledObject."""

    def __init__(self, channel: grpc.aio.Channel, name: str = "h100", **metadata: str) -> None:
        self._channel = channel
        self._ref = _OF["ScaledObjectRef"](name=name, namespace="llm", scalerMetadata=metadata)

    def _call(self, method: str, answer: str, *, stream: bool = False) -> Any:
        make = self._channel.unary_stream if stream else self._channel.unary_unary
        return make(
            f"/externalscaler.ExternalScaler/{method}",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=_OF[answer].FromString,
        )

    async def is_active(self) -> bool:
        """One poll."""
        return bool((await self._call("IsActive", "IsActiveResponse")(self._ref, timeout=30)).result)

    def stream(self) -> Any:
        """As a trigger of type external-push."""
        return self._call("StreamIsActive", "IsActiveResponse", stream=True)(self._ref)

    async def target(self) -> tuple[str, int, float]:
        """Name and target, in whole numbers as an older KEDA reads it and with fractions."""
        (spec,) = (await self._call("GetMetricSpec", "GetMetricSpecResponse")(self._ref, timeout=30)).metricSpecs
        return spec.metricName, spec.targetSize, spec.targetSizeFloat

    async def value(self, metric: str = "extproc-instances") -> tuple[str, int, float]:
        """Name and value, likewise."""
        request = _OF["GetMetricsRequest"](scaledObjectRef=self._ref, metricName=metric)
        (value,) = (await self._call("GetMetrics", "GetMetricsResponse")(request, timeout=30)).metricValues
        return value.metricName, value.metricValue, value.metricValueFloat

    async def stream_metric_spec(self) -> Any:
        """What KEDA tries since 2.21, and does without where nobody knows it."""
        return await self._call("StreamMetricSpec", "GetMetricSpecResponse", stream=True)(self._ref).read()
