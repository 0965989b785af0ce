"""What a span tells of one outcome: what was predicted beside what came, with units; what is not known is absent."""

from __future__ import annotations

from extproc.core.reasons.measured import Served, measured, prediction_errors
from extproc.core.values.instance import id_of
from extproc.core.values.outcome import Features, Outcome
from extproc.observe.decided import Told


def finished(features: Features, outcome: Outcome, served: Served | None) -> Told:
    """All that is known of it. `served`: the instance that answered, None if it is not known."""
    actual = measured(outcome)
    errors = prediction_errors(outcome, served.key) if served is not None else None
    told: dict[str, str | int | float | None] = {
        "request": features.request_id,
        "model": features.model,
        "chosen": id_of(features.instance_key),
        "instance": None if served is None else id_of(served.key),
        "endpoint": outcome.address or None,
        "status": outcome.status,
        "flags": " ".join(outcome.flags) or None,
        "attempts": outcome.attempts,
        "duration_s": outcome.duration_s,
        "routing_s": outcome.routing_s,
        "ttft_s": actual.ttft_s,
        "tpot_s": actual.tpot_s,
        "prompt_tokens": outcome.prompt_tokens,
        "cached_tokens": outcome.cached_tokens,
        "output_tokens": outcome.completion_tokens,
        "predicted.ttft_s": features.ttft_s,
        "predicted.tpot_s": features.tpot_s,
        "predicted.prompt_tokens": features.prompt_tokens,
        "predicted.cached_tokens": features.cached_tokens,
        "predicted.output_tokens": features.output_tokens,
        "ttft_ratio": errors.ttft_ratio if errors else None,
        "tpot_ratio": errors.tpot_ratio if errors else None,
    }
    return {name: value for name, value in told.items() if value is not None}
