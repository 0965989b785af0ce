"""What a line of the log and a span tell of one decision: plain values by name, with units, and nothing of its text."""

from __future__ import annotations

from extproc.core.reasons.explanation import terms
from extproc.core.values.decision import Candidate, Decision
from extproc.observe.recorder import told
from extproc.stream.exchange import Exchange
from extproc.stream.messages import Reply, RouteTo

Told = dict[str, str | int | float | bool]


def decided(exchange: Exchange, reply: Reply) -> Told:
    """All that is known of it; what is not known is absent."""
    found: Told = {"reply": told(reply), "trace_request_id": exchange.trace_id}
    request, decision = exchange.request, exchange.decision
    if exchange.asked:
        found["asked_model"] = exchange.asked
    if exchange.held_s is not None:
        found["held_s"] = exchange.held_s
    if request is not None:
        found |= {
            "request": request.id,
            "api": request.api,
            "model": request.model,
            "class": request.request_class.value,
            "prompt_tokens": request.prompt_tokens,
            "expected_output_tokens": request.expected_output_tokens,
        }
    if decision is not None:
        found |= _of_decision(decision, routed=isinstance(reply, RouteTo))
    return found


def _of_decision(decision: Decision, *, routed: bool) -> Told:
    found: Told = {"rejected": len(decision.rejected)}
    if decision.reason is not None:
        found["reason"] = decision.reason.value
    if decision.waived is not None:
        found["waived"] = decision.waived.value
    if decision.partner is not None:
        found["partner"] = decision.partner.instance.id
    if decision.chosen is not None and routed:
        found |= _of_choice(decision.chosen)
        second = decision.second
        if second is not None:
            found |= {
                "second.instance": second.candidate.instance.id,
                "second.total_s": second.candidate.cost.total_s,
            }
    return found


def _of_choice(chosen: Candidate) -> Told:
    costs = {f"cost.{name}_s": value for name, value in terms(chosen.cost).items()}
    return {
        "instance": chosen.instance.id,
        "endpoint": chosen.instance.address,
        "cached_tokens": chosen.cached_tokens,
        "predicted.ttft_s": chosen.cost.ttft_s,
        "predicted.tpot_s": chosen.tpot_s,
        "cost.total_s": chosen.cost.total_s,
        **costs,
    }
