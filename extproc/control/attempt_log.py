"""A log of single attempts: those that an instance turned down or broke, also where Envoy then went on to another.

The log of a request tells its last attempt only. Of a first choice that Envoy had to leave it does not say whether
that refused the connection (a failure) or answered 503 (backpressure), nor what `Retry-After` it asked for.
"""

from __future__ import annotations

from datetime import timedelta

from envoy_data_plane.envoy.config.accesslog.v3 import (
    AccessLog,
    AccessLogFilter,
    ComparisonFilter,
    ComparisonFilterOp,
    OrFilter,
    ResponseFlagFilter,
    StatusCodeFilter,
)
from envoy_data_plane.envoy.config.core.v3 import ApiVersion, GrpcService, RuntimeUInt32
from envoy_data_plane.envoy.extensions.access_loggers.grpc.v3 import CommonGrpcAccessLogConfig, HttpGrpcAccessLogConfig
from envoy_data_plane.envoy.type.tracing.v3 import CustomTag
from envoy_data_plane.google.protobuf import Any as AnyMessage

ATTEMPT_TAG = "attempted"  # the endpoint of an attempt; where it stands, the entry is no request's

_FLAGS = ["UF", "UC", "UR", "UPE", "UT", "SI"]  # connection failed, was cut, was reset, spoke no HTTP; silent too long
_STATUSES = (429, 502, 503, 504)


def attempt_log(service: GrpcService) -> AccessLog:
    """For `upstream_log` of the router filter."""
    return AccessLog(
        name="envoy.access_loggers.http_grpc",
        filter=AccessLogFilter(or_filter=OrFilter(filters=[_flagged(), *map(_answered, _STATUSES)])),
        typed_config=AnyMessage.pack(
            HttpGrpcAccessLogConfig(
                common_config=CommonGrpcAccessLogConfig(
                    log_name="extproc-attempts",
                    transport_api_version=ApiVersion.V3,
                    buffer_flush_interval=timedelta(milliseconds=50),
                    grpc_service=service,
                    custom_tags=[CustomTag(tag=ATTEMPT_TAG, value="%UPSTREAM_HOST%")],
                ),
                additional_response_headers_to_log=["retry-after"],
            )
        ),
    )


def _flagged() -> AccessLogFilter:
    return AccessLogFilter(response_flag_filter=ResponseFlagFilter(flags=_FLAGS))


def _answered(status: int) -> AccessLogFilter:
    value = RuntimeUInt32(default_value=status, runtime_key=f"extproc.attempts.{status}")
    comparison = ComparisonFilter(op=ComparisonFilterOp.EQ, value=value)
    return AccessLogFilter(status_code_filter=StatusCodeFilter(comparison=comparison))
