"""What is believed of a choice when its request is sent, to be held against what comes of it."""

from __future__ import annotations

from extproc.core.flight.work import Work
from extproc.core.values.decision import Candidate
from extproc.core.values.outcome import Features
from extproc.core.values.request import Request


def features_of(
    request: Request, chosen: Candidate, partner: Candidate | None, work: Work, load_s: float, *, booked: bool
) -> Features:
    """Features of a choice.

    `partner`: computes its prompt; `work`: what the chosen one does, this request included if it is `booked`; `load_s`:
    what loading an adapter takes there, without waiting for a slot.
    """
    output_tokens, loading_s = request.expected_output_tokens, chosen.cost.loading_s
    return Features(
        request_id=request.id,
        api=request.api,
        model=request.model,
        instance_key=chosen.instance.key,
        stream=request.stream,
        prompt_tokens=request.prompt_tokens,
        token_counts=request.token_counts,
        media_tokens=request.media_tokens,
        cached_tokens=chosen.cached_tokens,
        learned_tokens=chosen.claims.learned_tokens,
        told_tokens=-1 if chosen.claims.told_tokens is None else chosen.claims.told_tokens,
        recent_tokens=chosen.claims.recent_tokens,
        tenant=request.tenant,
        choices=request.choices,
        cap_tokens=-1 if request.max_output_tokens is None else request.max_output_tokens,
        output_tokens=output_tokens,
        output_p50_tokens=request.output_p50_tokens,
        output_p90_tokens=request.output_p90_tokens,
        queue_s=chosen.cost.queue_s + loading_s,
        ttft_s=chosen.cost.ttft_s,
        tpot_s=chosen.tpot_s,
        batch_requests=max(0, work.requests - booked),
        batch_tokens=max(0.0, work.context_tokens - booked * (request.prompt_tokens + output_tokens / 2)),
        engine_waiting=work.gauges.waiting or 0,
        # Waiting for a slot teaches nothing of loading.
        loading_s=loading_s if loading_s == load_s else 0.0,
        partner_key="" if partner is None else partner.instance.key,
        request_class=request.request_class.value,
    )
