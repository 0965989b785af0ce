"""What a router does all day, to see that it still can after it has taken in something strange."""

from __future__ import annotations

import math

import msgspec

from extproc.core.reasons.explanation import explain, material
from extproc.core.router import Router
from extproc.core.values.outcome import Outcome
from tests.core.builders import MODEL, blocks, request

NOW_S = 12.0


def use(made: Router) -> None:
    """Decide, explain, learn and release; what is said of costs must be numbers, and nothing of ours stays booked."""
    for number, session in enumerate(("", "s")):
        wish = request(f"mine-{number}", model=MODEL, prefix=blocks(1, 20), session=session, expected_output_tokens=50)
        decision = made.choose(wish, NOW_S, 0.5)
        assert all(math.isfinite(each.cost.total_s) and each.cost.total_s >= 0 for each in decision.candidates)
        told = msgspec.json.encode(explain(material(wish, decision, made.snapshot(), NOW_S), ""))
        assert b"NaN" not in told
        if decision.chosen is not None:
            chosen = decision.chosen.instance
            made.served_by(wish, chosen.address, NOW_S + 0.1, 200)
            features = made.features(wish, decision.chosen)
            made.release(wish.id, NOW_S + 0.5)
            made.learn(_outcome(features, chosen.address), NOW_S + 0.6)
        made.release(wish.id, NOW_S + 0.7)
    assert not [key for key in made.ledger.booked() if key.startswith("mine-")]
    made.take(made.fleet.heard(NOW_S + 1.0))


def _outcome(features: object, address: str) -> Outcome:
    return Outcome(
        features=features,  # type: ignore[arg-type]
        address=address,
        status=200,
        flags=(),
        attempts=1,
        duration_s=1.0,
        ttft_s=0.2,
        routing_s=0.001,
        prompt_tokens=1000,
        completion_tokens=50,
        cached_tokens=320,
    )
