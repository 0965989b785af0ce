"""The cost of a request on an instance, in seconds, term by term."""

from __future__ import annotations

from extproc.core.beliefs import Speed
from extproc.core.cached import Belief
from extproc.core.ledger import Work, block_size_tokens
from extproc.core.model import Candidate, Cost, Instance, Request

# Below this share of its KV blocks an instance is not believed to preempt.
_PRESSURE_FROM = 0.8
# What fetching a block from the host's memory takes, as a share of computing it: 131 KB a token of an 8B model over
# 25 GB/s of PCIe are 5 us, against about 40 us of an H100's prefill.
_FETCH_SHARE = 0.125


def price(request: Request, instance: Instance, work: Work, speed: Speed, belief: Belief, now: float) -> Candidate:
    """Price a request on an instance that fulfils all constraints.

    A busy engine first ends its running step, half of one on average, and computes the prompt in a step that decodes
    for the others too: together about one decode step, which counts as queue.
    """
    output_tokens = request.expected_output_tokens
    hit = belief.hit
    prefill_s = speed.prefill_s(request.prompt_tokens - hit.tokens, hit.tokens)
    if hit.lower_tokens:
        prefill_s += _FETCH_SHARE * speed.prefill_s(hit.lower_tokens, hit.gpu_tokens)
    context_tokens = work.context_tokens + request.prompt_tokens + output_tokens / 2
    tpot_s = speed.decode_step_s(work.requests + 1, context_tokens)
    decode_s = output_tokens * tpot_s
    cost = Cost(
        queue_s=_queue_s(instance, work, prefill_s, decode_s, now) + (tpot_s if work.requests else 0.0),
        prefill_s=prefill_s,
        decode_s=decode_s,
        pressure_s=_pressure_s(request, instance, work, speed),
    )
    return Candidate(instance, cost, hit.tokens, tpot_s, belief.claims)


def _queue_s(instance: Instance, work: Work, prefill_s: float, decode_s: float, now: float) -> float:
    """Seconds until the engine begins with the request: prompts ahead of it, then a free place in the batch.

    Prompts of foreign requests are unknown; each is taken to be as long as this one. A full batch of S requests gives
    up a place every 1/S of a decode.
    """
    queue_s = work.prefill_backlog_s(now) + work.foreign_waiting * prefill_s
    places = instance.max_num_seqs
    if places is not None and work.requests >= places:
        queue_s += (work.requests - places + 1) * decode_s / places
    return queue_s


def _pressure_s(request: Request, instance: Instance, work: Work, speed: Speed) -> float:
    """Expected seconds lost to preemption by recomputation, convex in the projected KV occupancy.

    Occupancy counts every request at its expected end, this one included. From full blocks on, the request is taken
    to be computed a second time, and again for every further filling.
    """
    if instance.kv_blocks is None:
        return 0.0
    capacity_tokens = instance.kv_blocks * block_size_tokens(instance)
    tokens = request.prompt_tokens + request.expected_output_tokens
    occupancy = (work.kv_tokens + tokens) / capacity_tokens
    if occupancy <= _PRESSURE_FROM:
        return 0.0
    excess = (occupancy - _PRESSURE_FROM) / (1.0 - _PRESSURE_FROM)
    return excess * excess * speed.prefill_s(tokens, 0)
