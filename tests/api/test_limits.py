"""What clients are told of limits, in the formats that their libraries read."""

from __future__ import annotations

from math import inf

import orjson
import pytest

from extproc.api.errors import Dialect
from extproc.api.limits import duration, limit_headers, limits_unknown, moment, over_limit
from extproc.core.limits.charge import State, Verdict
from extproc.core.limits.rules import Bucket, Kind

AT_US = 1_800_000_000_000_000  # 2027-01-15T08:00:00Z
REQUESTS = Bucket(Kind.REQUESTS, "acme", None, 60, 60)
TOKENS = Bucket(Kind.TOKENS, "acme", None, 150_000, 150_000)
PLACES = Bucket(Kind.CONCURRENT, "acme", None, 4)
ALLOWED = Verdict(True, AT_US, (State(REQUESTS, 1.0), State(TOKENS, 16.0), State(PLACES, 1.0)))


@pytest.mark.parametrize(
    ("length_s", "told"),
    [
        (0.0, "0s"),
        (0.0000001, "0s"),  # rounding
        (0.012, "12ms"),
        (0.0121, "13ms"),
        (1.0, "1s"),
        (8.64, "8.64s"),
        (59.9999, "1m0s"),
        (360.0, "6m0s"),
        (61.5, "1m1.5s"),
        (3600.5, "1h0m0.5s"),
        (90_061.0, "25h1m1s"),
    ],
)
def test_durations_are_written_as_openai_writes_them(length_s: float, told: str) -> None:
    """Rounded up: who waits that long has waited long enough."""
    assert duration(length_s) == told


def test_moments_are_written_as_anthropic_writes_them() -> None:
    """RFC 3339, in UTC, rounded up to whole seconds."""
    assert moment(1_800_000_000.0) == "2027-01-15T08:00:00Z"
    assert moment(1_800_000_000.2) == "2027-01-15T08:00:01Z"


def test_each_dialect_has_headers_of_its_own() -> None:
    """Of requests at once there is none in either."""
    assert dict(limit_headers(ALLOWED, Dialect.OPENAI)) == {
        "x-ratelimit-limit-requests": "60",
        "x-ratelimit-remaining-requests": "59",
        "x-ratelimit-reset-requests": "1s",
        "x-ratelimit-limit-tokens": "150000",
        "x-ratelimit-remaining-tokens": "149984",
        "x-ratelimit-reset-tokens": "7ms",
    }
    assert dict(limit_headers(ALLOWED, Dialect.ANTHROPIC)) == {
        "anthropic-ratelimit-requests-limit": "60",
        "anthropic-ratelimit-requests-remaining": "59",
        "anthropic-ratelimit-requests-reset": "2027-01-15T08:00:01Z",
        "anthropic-ratelimit-tokens-limit": "150000",
        "anthropic-ratelimit-tokens-remaining": "149984",
        "anthropic-ratelimit-tokens-reset": "2027-01-15T08:00:01Z",
    }
    assert limit_headers(Verdict(True, AT_US, (State(PLACES, 1.0),)), Dialect.OPENAI) == ()


@pytest.mark.parametrize(
    ("full", "kind", "message", "wait_s"),
    [
        (
            State(REQUESTS, 60.0, 0.4),
            "requests",
            "requests per min (RPM): Limit 60, Used 60. Please try again in 1s",
            1,
        ),
        (
            State(TOKENS, 149_000.2, 8.2),
            "tokens",
            "tokens per min (TPM): Limit 150000, Used 149001, Requested 20000. Please try again in 9s",
            9,
        ),
        (State(PLACES, 4.0, inf), "requests", "at once: Limit 4, Used 4. Please try again later", 1),
    ],
)
def test_a_refusal_says_what_ran_out_and_when_to_come_again(full: State, kind: str, message: str, wait_s: int) -> None:
    """In OpenAI's shape the type names it, in Anthropic's only the text does."""
    verdict = Verdict(False, AT_US, (full,))
    refused = over_limit(verdict, "m", 20_000, Dialect.OPENAI)
    error = orjson.loads(refused.body)["error"]
    assert (refused.status, refused.retry_after_s) == (429, wait_s)
    assert refused.code == f"limit_{full.bucket.kind.value}"
    assert (error["type"], error["code"], error["param"]) == (kind, "rate_limit_exceeded", None)
    assert message in error["message"]
    theirs = orjson.loads(over_limit(verdict, "m", 20_000, Dialect.ANTHROPIC).body)
    assert theirs == {"type": "error", "error": {"type": "rate_limit_error", "message": error["message"]}}


def test_where_nobody_can_tell_it_is_no_fault_of_the_client() -> None:
    """503 in either shape, with a time to come again."""
    for dialect in Dialect:
        refused = limits_unknown(dialect)
        assert (refused.status, refused.retry_after_s) == (503, 1)
        assert b"error" in refused.body
