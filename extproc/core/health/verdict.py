"""What an answer, or the lack of one, says of the instance it came from."""

from __future__ import annotations

from collections.abc import Collection
from enum import StrEnum

import msgspec


class Verdict(StrEnum):
    """How an instance stands after one attempt."""

    WELL = "well"  # it answered
    BROKEN = "broken"  # it could not be reached, cut the line, or a proxy before it says so
    FULL = "full"  # it is alive and takes nothing more for now: backpressure
    ERRED = "erred"  # one odd prompt, or the instance is broken: that shows when it goes on (`Strikes`)
    NEUTRAL = "neutral"  # says nothing of it: the client's own mistake, or Envoy's own refusal


class Attempt(msgspec.Struct, frozen=True):
    """One try of Envoy's to send a request to an instance, and what came of it."""

    address: str  # of the endpoint that was tried, "" if none was
    status: int  # 0 without an answer
    flags: tuple[str, ...] = ()
    retry_after_s: float | None = None  # as the instance asks for
    duration_s: float = 0.0  # from when it was sent


# Envoy's response flags by the names of `envoy.data.accesslog.v3.ResponseFlags`.
_BROKEN_FLAGS = frozenset(
    {
        "upstream_connection_failure",
        "upstream_connection_termination",
        "upstream_remote_reset",
        "upstream_protocol_error",
    }
)
_UNKNOWN_CLUSTER = "no_cluster_found"
# With these Envoy answered by itself; no instance has seen the request.
_LOCAL_FLAGS = frozenset(
    {
        "upstream_overflow",
        "no_healthy_upstream",
        "no_route_found",
        _UNKNOWN_CLUSTER,
        "rate_limited",
        "rate_limit_service_error",
        "fault_injected",
        "overload_manager",
    }
)
# Nothing moved for too long: the instance's fault if it had not begun to answer; else a client may not have read.
_SILENT_FLAGS = frozenset({"stream_idle_timeout", "upstream_request_timeout"})
_BROKEN_STATUSES = frozenset({502, 504})
_FULL_STATUSES = frozenset({429, 503})
_SERVER_ERROR = 500  # and what is above


def verdict(status: int, flags: Collection[str]) -> Verdict:
    """Judge one attempt by its HTTP status, 0 if there was none, and Envoy's response flags.

    A client that hung up is not held against an instance, and any other 4xx is the client's own mistake.
    """
    if not _BROKEN_FLAGS.isdisjoint(flags):
        return Verdict.BROKEN
    if not _LOCAL_FLAGS.isdisjoint(flags):
        return Verdict.NEUTRAL
    if not _SILENT_FLAGS.isdisjoint(flags):
        return Verdict.BROKEN if status in (0, 504) else Verdict.NEUTRAL
    if status in _BROKEN_STATUSES:
        return Verdict.BROKEN
    if status in _FULL_STATUSES:
        return Verdict.FULL
    if status >= _SERVER_ERROR:
        return Verdict.ERRED
    return Verdict.WELL if 200 <= status < 300 else Verdict.NEUTRAL


def unknown_cluster(flags: Collection[str]) -> bool:
    """Whether Envoy does not know the cluster that the decision named: then it tried nobody."""
    return _UNKNOWN_CLUSTER in flags
