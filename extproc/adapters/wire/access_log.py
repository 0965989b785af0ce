"""Envoy's access log: what became of requests, and of their single attempts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from envoy.data.accesslog.v3 import accesslog_pb2
from envoy.service.accesslog.v3 import als_pb2

from extproc.adapters.wire.features import has_features, read_features
from extproc.adapters.wire.wire_error import WireError
from extproc.core.health.verdict import Attempt
from extproc.core.values.outcome import Outcome

ACCESS_LOG_METHOD = ("envoy.service.accesslog.v3.AccessLogService", "StreamAccessLogs")

_EARLY = frozenset(map(accesslog_pb2.AccessLogType.Value, ("DownstreamStart", "DownstreamPeriodic")))
_USAGE_NAMESPACE = "usage"
_LONGEST_TAG = 16  # digits of microseconds: some decades
_MOST_TOKENS = 2**53  # beyond, a double does not count one by one
_ATTEMPT_TAG = "attempted"  # as `extproc.control.attempt_log` names it


def decode_access_log(data: bytes) -> list[Outcome | Attempt]:
    """Requests and single attempts of one StreamAccessLogsMessage, in order. Raises WireError."""
    try:
        message = als_pb2.StreamAccessLogsMessage.FromString(data)
    except Exception as error:  # protobuf's DecodeError has no common home across its backends
        raise WireError(f"not a StreamAccessLogsMessage: {error}") from None
    entries = [(entry, entry.common_properties) for entry in message.http_logs.log_entry]
    return [_entry(entry, common) for entry, common in entries if common.access_log_type not in _EARLY]


def access_log_answer() -> bytes:
    """The empty answer that ends an access-log stream."""
    return bytes(als_pb2.StreamAccessLogsResponse().SerializeToString())


def _entry(entry: Any, common: Any) -> Outcome | Attempt:
    attempted = common.custom_tags.get(_ATTEMPT_TAG)
    return _outcome(entry, common) if attempted is None else _attempt(entry, common, attempted)


def _attempt(entry: Any, common: Any, address: str) -> Attempt:
    return Attempt(
        address=address,
        status=entry.response.response_code.value,
        flags=_flags(common),
        retry_after_s=_whole_s(entry.response.response_headers.get("retry-after", "")),
        duration_s=_duration_s(common),
    )


def _whole_s(value: str) -> float | None:
    """Seconds of a Retry-After header; its other form, a date, is not worth a calendar."""
    return float(value) if value.isascii() and value.isdigit() and len(value) < 10 else None


def _outcome(entry: Any, common: Any) -> Outcome:
    metadata, tags = common.metadata.filter_metadata, common.custom_tags
    usage = metadata[_USAGE_NAMESPACE].fields if _USAGE_NAMESPACE in metadata else {}
    start = common.start_time if common.HasField("start_time") else None
    features = read_features(metadata)
    return Outcome(
        features=features,
        address=_address(common.upstream_remote_address),
        status=entry.response.response_code.value,
        flags=_flags(common),
        attempts=common.upstream_request_attempt_count,
        duration_s=_duration_s(common),
        ttft_s=_tag_s(tags.get("ttft_us")),
        routing_s=_tag_s(tags.get("dispatched_us")),
        prompt_tokens=_prompt_tokens(usage),
        completion_tokens=_first(usage, "completion_tokens", "output_tokens"),
        cached_tokens=_first(usage, "cached_tokens", "cache_read_tokens"),
        started_s=None if start is None else start.seconds + start.nanos * 1e-9,
        features_unread=features is None and has_features(metadata),
    )


def _address(address: Any) -> str:
    socket = address.socket_address
    return f"{socket.address}:{socket.port_value}" if socket.address else ""


def _flags(common: Any) -> tuple[str, ...]:
    if not common.HasField("response_flags"):  # of most requests there are none
        return ()
    return tuple(field.name for field, value in common.response_flags.ListFields() if value is True)


def _duration_s(common: Any) -> float:
    length = common.duration if common.HasField("duration") else common.time_to_last_downstream_tx_byte
    return float(length.seconds + length.nanos * 1e-9)


def _tag_s(tag: str | None) -> float | None:
    """Seconds of a duration tag in microseconds; Envoy writes "-" where there was no such moment."""
    return int(tag) * 1e-6 if tag and tag.isascii() and tag.isdigit() and len(tag) < _LONGEST_TAG else None


def _prompt_tokens(usage: Mapping[str, Any]) -> int | None:
    """Anthropic leaves what was read from the cache, or written to it, out of its input tokens; no other API does."""
    tokens = _first(usage, "prompt_tokens", "input_tokens")
    if tokens is None or "prompt_tokens" in usage:
        return tokens
    return tokens + sum(_first(usage, name) or 0 for name in ("cache_read_tokens", "cache_creation_tokens"))


def _first(usage: Mapping[str, Any], *names: str) -> int | None:
    """The count under the first of the names that has one: OpenAI's before others, where an engine tells both.

    What nobody counts to is none: an engine may say anything, and Envoy reads a text such as "nan" as a number.
    """
    for name in names:
        value = usage.get(name)
        if value is not None and value.HasField("number_value") and 0 <= (told := value.number_value) <= _MOST_TOKENS:
            return int(told)
    return None
