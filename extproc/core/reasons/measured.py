"""What was measured of a finished request, in the terms in which it was predicted."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from extproc.core.values.outcome import Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One request as it went; None where it cannot be told."""

    instance: str  # that answered; its address if the id is not known, "" if none did
    status: int
    attempts: int
    duration_s: float
    ttft_s: float | None  # from the moment at which Envoy began to send to the engine
    tpot_s: float | None
    prompt_tokens: int | None
    completion_tokens: int | None
    cached_tokens: int | None
    flags: tuple[str, ...] = ()  # Envoy's word of what went wrong, by the names of its access log


class Served(msgspec.Struct, frozen=True):
    """The instance that answered a request."""

    key: str
    kind: str  # its hardware, parallelism and precision, as its profile is named


class PredictionErrors(msgspec.Struct, frozen=True):
    """How far predictions were off; None where the outcome shows nothing of them."""

    ttft_ratio: float | None = None  # actual over predicted
    tpot_ratio: float | None = None
    cached_share: float | None = None  # of the prompt: cached more (above 0) or less than believed


def measured_s(outcome: Outcome) -> tuple[float | None, float | None]:
    """TTFT and TPOT that are comparable to predicted ones, None where they cannot be told.

    Only a streamed answer shows its first token; only one answer in a body shows the pace of each.
    """
    features = outcome.features
    if features is None or not features.stream or outcome.ttft_s is None:
        return None, None
    ttft_s = max(0.0, outcome.ttft_s - (outcome.routing_s or 0.0))
    tokens = outcome.completion_tokens or 0
    if features.choices != 1 or tokens < 2:
        return ttft_s, None
    return ttft_s, max(0.0, outcome.duration_s - outcome.ttft_s) / (tokens - 1)


def measured(outcome: Outcome) -> Measured:
    """All that is told of a finished request."""
    ttft_s, tpot_s = measured_s(outcome)
    return Measured(
        instance=outcome.address,
        status=outcome.status,
        attempts=outcome.attempts,
        duration_s=outcome.duration_s,
        ttft_s=ttft_s,
        tpot_s=tpot_s,
        prompt_tokens=outcome.prompt_tokens,
        completion_tokens=outcome.completion_tokens,
        cached_tokens=outcome.cached_tokens,
        flags=outcome.flags,
    )


def prediction_errors(outcome: Outcome, served_key: str) -> PredictionErrors:
    """Errors of a request that succeeded where it was sent: of any other, something else was timed.

    `served_key`: of the instance that answered. Envoy may choose another without a retry, such as where it does not
    know the one that was named, or where an instance that is now another incarnation has the address.
    """
    features = outcome.features
    if features is None or not 200 <= outcome.status < 300 or outcome.attempts > 1:
        return PredictionErrors()
    if features.instance_key != served_key:
        return PredictionErrors()
    ttft_s, tpot_s = measured_s(outcome)
    cached_share = None
    # The one that answers a pair's request counts what was handed over to it as cached.
    if outcome.cached_tokens is not None and outcome.prompt_tokens and not features.partner_key:
        cached_share = (outcome.cached_tokens - features.cached_tokens) / outcome.prompt_tokens
    # In shadow what Envoy had sent a moment before is not known yet, so that queues look shorter than they are.
    ttft_ratio = None if features.shadow_key else _ratio(ttft_s, features.ttft_s)
    return PredictionErrors(ttft_ratio, _ratio(tpot_s, features.tpot_s), cached_share)


def _ratio(actual_s: float | None, predicted_s: float) -> float | None:
    return None if actual_s is None or predicted_s <= 0 else actual_s / predicted_s
