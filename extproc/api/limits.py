"""Rate limits as client libraries expect to be told of them: headers of every answer, and the body of a refusal.

Headers: OpenAI's "Rate limits in headers" (guides/rate-limits) with durations such as `6m0s` or `12ms`; Anthropic's
"Response headers" (api/rate-limits) with times as RFC 3339 writes them. Both tell what the limit is, what remains of it
and when all of it is back.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from math import ceil

from extproc.api.errors import Dialect, Refusal, refusal
from extproc.core.limits.charge import State, Verdict, whole_seconds
from extproc.core.limits.rules import Kind

Headers = tuple[tuple[str, str], ...]

_RATES = (Kind.REQUESTS, Kind.TOKENS)
_PER_MINUTE = {Kind.REQUESTS: "requests per min (RPM)", Kind.TOKENS: "tokens per min (TPM)"}


def limit_headers(verdict: Verdict, dialect: Dialect) -> Headers:
    """Headers that tell how much is left of the tightest limit of each kind; none where there is none."""
    return tuple(_headers(verdict, dialect))


def over_limit(verdict: Verdict, model: str, tokens: int, dialect: Dialect) -> Refusal:
    """429 for a request that `verdict` does not allow. `tokens`: what it was to be charged."""
    full = verdict.full
    assert full is not None  # somebody refused it
    wait_s = whole_seconds(full.wait_s)
    message, kind = _message(full, model, tokens, wait_s), full.bucket.kind
    # OpenAI's type names what ran out; a limit of requests at once is one of requests.
    of = "tokens" if kind is Kind.TOKENS else "requests"
    told = refusal(429, "rate_limit_exceeded", message, dialect, retry_after_s=wait_s, kind=of)
    return replace(told, code=f"limit_{kind.value}")


def limits_unknown(dialect: Dialect) -> Refusal:
    """503 where the operator wants no request whose limits cannot be told."""
    message = "Rate limits cannot be checked at the moment. Please try again."
    return refusal(503, "limits_unknown", message, dialect, retry_after_s=1)


def _headers(verdict: Verdict, dialect: Dialect) -> Iterator[tuple[str, str]]:
    for kind in _RATES:
        state = verdict.tightest(kind)
        if state is None:
            continue
        name, limit, remaining = kind.value, str(int(state.bucket.capacity)), str(state.remaining)
        if dialect is Dialect.ANTHROPIC:
            yield f"anthropic-ratelimit-{name}-limit", limit
            yield f"anthropic-ratelimit-{name}-remaining", remaining
            yield f"anthropic-ratelimit-{name}-reset", moment(verdict.at_us * 1e-6 + state.reset_s)
        else:
            yield f"x-ratelimit-limit-{name}", limit
            yield f"x-ratelimit-remaining-{name}", remaining
            yield f"x-ratelimit-reset-{name}", duration(state.reset_s)


def duration(length_s: float) -> str:
    """A duration as Go prints it, rounded up to milliseconds: 12ms, 8.64s, 6m0s, 1h0m0.5s."""
    whole_ms = ceil(round(length_s * 1000, 3))
    if whole_ms < 1000:
        return f"{whole_ms}ms" if whole_ms else "0s"
    minutes, rest_ms = divmod(whole_ms, 60_000)
    hours, minutes = divmod(minutes, 60)
    told = f"{rest_ms / 1000:g}s"
    if hours:
        return f"{hours}h{minutes}m{told}"
    return f"{minutes}m{told}" if minutes else told


def moment(at_s: float) -> str:
    """A time of the epoch as RFC 3339 writes it, rounded up to seconds."""
    return datetime.fromtimestamp(ceil(at_s), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _message(full: State, model: str, tokens: int, wait_s: int) -> str:
    bucket = full.bucket
    capacity, used = int(bucket.capacity), ceil(full.used)
    if bucket.kind is Kind.CONCURRENT:
        return f"Too many requests for '{model}' at once: Limit {capacity}, Used {used}. Please try again later."
    asked = f", Requested {tokens}" if bucket.kind is Kind.TOKENS else ""
    return (
        f"Rate limit reached for '{model}' on {_PER_MINUTE[bucket.kind]}: Limit {bucket.per_minute:.15g}, "
        f"Used {used}{asked}. Please try again in {wait_s}s."
    )
