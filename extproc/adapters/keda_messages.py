"""Messages of KEDA's external scaler protocol, as kedacore/keda publishes it.

Fields and numbers are those of pkg/scalers/externalscaler/externalscaler.proto. `targetSize` and `metricValue` are
deprecated there in favour of their Float forms, which KEDA reads since 2.17 and then prefers.
"""

# ruff: noqa: RUF009 (these calls only describe a field)

from __future__ import annotations

from dataclasses import dataclass

import betterproto2
from betterproto2 import TYPE_BOOL, TYPE_DOUBLE, TYPE_INT64, TYPE_MESSAGE, TYPE_STRING, Message

SERVICE = "externalscaler.ExternalScaler"


@dataclass(eq=False, repr=False)
class ScaledObjectRef(Message):
    """Who asks: a ScaledObject, and what its trigger's `metadata` holds."""

    name: str = betterproto2.field(1, TYPE_STRING)
    namespace: str = betterproto2.field(2, TYPE_STRING)
    scaler_metadata: dict[str, str] = betterproto2.field(
        3, "map", map_meta=betterproto2.map_meta(TYPE_STRING, TYPE_STRING)
    )


@dataclass(eq=False, repr=False)
class IsActiveResponse(Message):
    """Whether there should be any replica."""

    result: bool = betterproto2.field(1, TYPE_BOOL)


@dataclass(eq=False, repr=False)
class MetricSpec(Message):
    """A metric and its target."""

    metric_name: str = betterproto2.field(1, TYPE_STRING)
    target_size: int = betterproto2.field(2, TYPE_INT64)
    target_size_float: float = betterproto2.field(3, TYPE_DOUBLE)


@dataclass(eq=False, repr=False)
class GetMetricSpecResponse(Message):
    """All metrics of a ScaledObject."""

    metric_specs: list[MetricSpec] = betterproto2.field(1, TYPE_MESSAGE, repeated=True)


@dataclass(eq=False, repr=False)
class GetMetricsRequest(Message):
    """Asks for one metric's value."""

    scaled_object_ref: ScaledObjectRef | None = betterproto2.field(1, TYPE_MESSAGE, optional=True)
    metric_name: str = betterproto2.field(2, TYPE_STRING)


@dataclass(eq=False, repr=False)
class MetricValue(Message):
    """A metric's value."""

    metric_name: str = betterproto2.field(1, TYPE_STRING)
    metric_value: int = betterproto2.field(2, TYPE_INT64)
    metric_value_float: float = betterproto2.field(3, TYPE_DOUBLE)


@dataclass(eq=False, repr=False)
class GetMetricsResponse(Message):
    """The values asked for."""

    metric_values: list[MetricValue] = betterproto2.field(1, TYPE_MESSAGE, repeated=True)
