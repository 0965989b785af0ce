"""Refusals in the shape that each client library expects."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from extproc.api import errors
from extproc.api.body import BodyError
from extproc.api.errors import Dialect
from extproc.core.values.decision import Decision, Reason, Rejection
from tests.core.builders import request

FAULT = BodyError("'messages' must be a non-empty array.", "messages")


def decision(reason: Reason) -> Decision:
    return Decision(None, rejected=(Rejection("i", reason, ("vision",), ("tools",)),))


def shape(refusal: errors.Refusal) -> dict[str, Any]:
    body = orjson.loads(refusal.body)
    assert isinstance(body, dict)
    return body


def test_openais_shape_names_the_field() -> None:
    refusal = errors.bad_body(FAULT, Dialect.OPENAI)
    assert (refusal.status, refusal.code) == (400, "invalid_request_body")
    assert shape(refusal) == {
        "error": {
            "message": FAULT.message,
            "type": "invalid_request_error",
            "param": "messages",
            "code": "invalid_request_body",
        }
    }


def test_anthropics_shape_names_the_field_in_its_message() -> None:
    assert shape(errors.bad_body(FAULT, Dialect.ANTHROPIC)) == {
        "type": "error",
        "error": {"type": "invalid_request_error", "message": FAULT.message},
    }


def test_a_missing_body_is_refused_in_either_shape() -> None:
    assert shape(errors.no_body())["error"]["type"] == "invalid_request_error"
    assert shape(errors.no_body(Dialect.ANTHROPIC))["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("reason", "status", "code", "openai", "anthropic"),
    [
        (Reason.MODEL_NOT_SERVED, 404, "model_not_found", "invalid_request_error", "not_found_error"),
        (Reason.CAPABILITY_MISSING, 400, "capability_missing", "invalid_request_error", "invalid_request_error"),
        (Reason.CONTEXT_TOO_LONG, 400, "context_length_exceeded", "invalid_request_error", "invalid_request_error"),
        (Reason.KV_TOO_SMALL, 400, "context_length_exceeded", "invalid_request_error", "invalid_request_error"),
        (Reason.ZONE_NOT_ALLOWED, 400, "zone_not_allowed", "invalid_request_error", "invalid_request_error"),
        (Reason.TOPOLOGY_NOT_ALLOWED, 400, "topology_not_allowed", "invalid_request_error", "invalid_request_error"),
        (Reason.ROLE_TAKES_HALF, 503, "role_takes_half", "server_error", "overloaded_error"),
        (Reason.NOT_READY, 503, "not_ready", "server_error", "overloaded_error"),
        (Reason.QUEUE_TOO_LONG, 503, "queue_too_long", "server_error", "overloaded_error"),
        (Reason.KV_FULL, 503, "kv_full", "server_error", "overloaded_error"),
        (Reason.TTFT_BEYOND_BOUND, 503, "overloaded", "server_error", "overloaded_error"),
        (Reason.TPOT_BEYOND_BOUND, 503, "overloaded", "server_error", "overloaded_error"),
        (Reason.HELD_TOO_LONG, 503, "overloaded", "server_error", "overloaded_error"),
        (Reason.HOLDING_FULL, 503, "overloaded", "server_error", "overloaded_error"),
        (Reason.DEADLINE_UNREACHABLE, 503, "deadline_unreachable", "server_error", "overloaded_error"),
    ],
)
def test_an_unroutable_request_gets_the_status_and_type_of_its_reason(
    reason: Reason, status: int, code: str, openai: str, anthropic: str
) -> None:
    for dialect, kind in ((Dialect.OPENAI, openai), (Dialect.ANTHROPIC, anthropic)):
        refusal = errors.unroutable(request(), decision(reason), 7, dialect)
        assert (refusal.status, refusal.code) == (status, code)
        assert shape(refusal)["error"]["type"] == kind
        assert (refusal.retry_after_s is not None) == (status == 503)


@pytest.mark.parametrize("reason", sorted(errors.SHED))
def test_a_gateway_gets_429_for_what_the_fleet_could_serve_but_not_well(reason: Reason) -> None:
    """As for any overload; its error names the reason, for programs the code tells enough."""
    refusal = errors.unroutable(request(), decision(reason), 7, gateway=True)
    assert (refusal.status, refusal.retry_after_s) == (429, 7)
    assert f"({reason})" in shape(refusal)["error"]["message"]


def test_a_missing_capability_is_named() -> None:
    assert "vision" in shape(errors.unroutable(request(), decision(Reason.CAPABILITY_MISSING), 7))["error"]["message"]


@pytest.mark.parametrize(
    ("status", "kind"), [(400, "invalid_request_error"), (429, "rate_limit_error"), (500, "api_error")]
)
def test_every_status_has_an_anthropic_type(status: int, kind: str) -> None:
    assert shape(errors.refusal(status, "c", "m", Dialect.ANTHROPIC))["error"]["type"] == kind
