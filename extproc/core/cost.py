"""The cost of a request on an instance, in seconds, term by term.

Own seconds: waiting, computing the prompt, producing the answer. And the seconds by which others are delayed, because
an instance that is best for one request may be the worst for all: every answer in the batch stands still while a long
prompt is computed, and every step takes longer with one more answer in it. Choosing by the sum of both makes all
requests together take the least time.
"""

from __future__ import annotations

import math

from extproc.core.cached import Belief
from extproc.core.classes import weights_for
from extproc.core.communication import communication_s, crossing_money
from extproc.core.fleet import Member
from extproc.core.host_pressure import host_s
from extproc.core.model import Candidate, Cost, Instance, Request
from extproc.core.money import compute_money, instance_s, money_s, typical_price
from extproc.core.snapshot import Snapshot
from extproc.core.speed import Speed
from extproc.core.staleness import doubt_s, doubt_share
from extproc.core.work import Work, block_size_tokens

_SURE = 4.0  # deviations beyond which an overflow is taken for impossible, or for certain
# What fetching a block from the host's memory takes, as a share of computing it: 131 KB a token of an 8B model over
# 25 GB/s of PCIe are 5 us, against about 40 us of an H100's prefill.
_FETCH_SHARE = 0.125
# Tokens of one engine step where the engine does not tell: vLLM's default on GPUs of 80 GB.
_STEP_TOKENS = 8192


class Pricing:
    """Prices one request on instances that fulfil all constraints."""

    def __init__(self, request: Request, snapshot: Snapshot, now: float) -> None:
        self._request = request
        self._snapshot = snapshot
        self._now = now
        self._weights = weights_for(request, snapshot.policy.classes)
        self._typical_price = None
        if self._weights.value_per_hour:
            self._typical_price = typical_price([member.instance for member in snapshot.members])
        self._tail_from_s = snapshot.tail.begins_s
        self._tail_weight = snapshot.tail.weight
        self._output_tokens = request.expected_output_tokens

    def at(self, member: Member, belief: Belief, handed_tokens: int = 0) -> Candidate:
        """What the request would cost on an instance that is believed to hold so much of its prompt.

        `handed_tokens` of these are yet to come from another instance: nothing to compute, but they need room.
        """
        request, now, instance = self._request, self._now, member.instance
        work = self._snapshot.ledger.work(instance.key)
        speed = self._snapshot.beliefs.speed(request.model, instance)
        hit, requests, output_tokens = belief.hit, work.requests, self._output_tokens
        uncached_tokens = request.prompt_tokens - hit.tokens
        context_tokens = work.context_tokens + request.prompt_tokens + output_tokens / 2
        step_s = speed.decode_step_s(requests + 1, context_tokens)
        prefill_s = speed.prefill_s(uncached_tokens, hit.tokens)
        if hit.lower_tokens:
            prefill_s += _FETCH_SHARE * speed.prefill_s(hit.lower_tokens, hit.gpu_tokens)
        if requests:
            # Each step that computes a piece of the prompt goes on with the answers of the batch as well.
            prefill_s += math.ceil(uncached_tokens / _STEP_TOKENS) * (step_s - speed.decode_step_s(0, 0))
        room_s, room_harm_s = _room(request, instance, work, uncached_tokens + handed_tokens, step_s)
        backlog_s = work.prefill_backlog_s(now) + work.foreign_waiting * prefill_s
        queue_s = max(backlog_s, room_s) + (step_s if requests else 0.0)
        harm_s = room_harm_s
        if requests:
            harm_s += work.decoding(now) * prefill_s + _sharing_s(request, work, speed)
        harm_s += _later_s(work, backlog_s, prefill_s, now)
        reach_s = communication_s(request, instance, self._snapshot.policy.zones) + host_s(request, instance.host)
        decode_s = output_tokens * step_s
        cost = self._sum(
            queue_s=queue_s,
            prefill_s=prefill_s,
            decode_s=decode_s,
            communication_s=reach_s,
            pressure_s=_pressure_s(request, instance, work, speed),
            harm_s=harm_s,
            doubt_s=self._doubt_s(member, prefill_s + decode_s),
            money_s=self._money_s(instance, prefill_s, decode_s, requests + 1),
        )
        # While prompts of others are computed, an answer stands still. That is seen in its TPOT, and is no part of its
        # cost: each of those prompts pays for it as harm.
        tpot_s = step_s / (1.0 - work.pace.prefill_share(now))
        return Candidate(instance, cost, hit.tokens, tpot_s, belief.claims, handed_tokens)

    def _sum(
        self,
        *,
        queue_s: float,
        prefill_s: float,
        decode_s: float,
        communication_s: float,
        pressure_s: float,
        harm_s: float,
        doubt_s: float,
        money_s: float,
    ) -> Cost:
        ttft_s = queue_s + prefill_s + communication_s
        tail_s = self._tail_weight * max(0.0, ttft_s - self._tail_from_s)
        total_s = self._weights.weigh(
            ttft_s=ttft_s + tail_s,
            completion_s=decode_s + doubt_s,
            pressure_s=pressure_s,
            harm_s=harm_s,
            money_s=money_s,
        )
        return Cost(
            queue_s=queue_s,
            prefill_s=prefill_s,
            decode_s=decode_s,
            communication_s=communication_s,
            pressure_s=pressure_s,
            harm_s=harm_s,
            tail_s=tail_s,
            doubt_s=doubt_s,
            money_s=money_s,
            total_s=total_s,
        )

    def _doubt_s(self, member: Member, own_s: float) -> float:
        age_s = self._snapshot.heard_at_s - member.observed_at_s
        share = doubt_share(max(0.0, age_s), self._snapshot.policy.stale_after_s)
        return doubt_s(own_s, share) if share else 0.0

    def _money_s(self, instance: Instance, prefill_s: float, decode_s: float, sequences: int) -> float:
        value_per_hour = self._weights.value_per_hour
        if not value_per_hour:
            return 0.0
        price = self._typical_price if instance.price_per_hour is None else instance.price_per_hour
        money = compute_money(price, instance_s(prefill_s, decode_s, sequences))
        money += crossing_money(self._request, instance, self._snapshot.policy.zones)
        return money_s(money, value_per_hour)


def _sharing_s(request: Request, work: Work, speed: Speed) -> float:
    """Seconds by which the steps of others take longer with one more answer among them, summed.

    Of two answers of unknown length about half of either is produced together.
    """
    output_tokens = request.expected_output_tokens
    tokens = request.prompt_tokens + output_tokens / 2
    longer_s = speed.decode_step_s(1, tokens) - speed.decode_step_s(0, 0)
    return work.requests * output_tokens / 2 * longer_s


def _later_s(work: Work, backlog_s: float, prefill_s: float, now: float) -> float:
    """Seconds by which requests will wait longer that come before this prompt is computed, summed over them.

    Those come at the rate at which others came; on the average they find half of this prompt's computation ahead.
    """
    return work.pace.rps(now) * (backlog_s + prefill_s / 2) * prefill_s


def _room(request: Request, instance: Instance, work: Work, new_tokens: int, step_s: float) -> tuple[float, float]:
    """Seconds until the batch and the KV blocks have room for the request, and what its taking them costs others.

    `new_tokens`: of its prompt, that are not held yet.
    Room comes with the end of answers: of n, one ends every n-th part of the time that an answer takes.
    """
    requests = work.requests
    if not requests:
        return 0.0, 0.0
    answer_s = (work.mean_output_tokens or request.expected_output_tokens) * step_s
    ends = 0
    if instance.max_num_seqs is not None:
        ends = max(0, requests + 1 - instance.max_num_seqs)
    harm_s = 0.0
    if instance.kv_blocks is not None:
        lacking_tokens = work.held_tokens + new_tokens - instance.kv_blocks * block_size_tokens(instance)
        if lacking_tokens > 0:
            per_request_tokens = max(1.0, work.held_tokens / requests)
            ends = max(ends, math.ceil(lacking_tokens / per_request_tokens))
            harm_s = (new_tokens + request.expected_output_tokens) / per_request_tokens * answer_s / requests
    return ends * answer_s / requests, harm_s


def _pressure_s(request: Request, instance: Instance, work: Work, speed: Speed) -> float:
    """Expected seconds lost to preemption: somebody is computed a second time if the KV blocks run out.

    Answers are of unknown length, about as uncertain as they are long (exponential). So what n of them will still
    grow is nearly normal, with a deviation of the n-th root of the mean growth; the chance that it does not fit is
    taken from there (logistic approximation of the normal distribution, off by less than 0.01).
    """
    if instance.kv_blocks is None:
        return 0.0
    growth_tokens = work.growth_tokens + request.expected_output_tokens
    free_tokens = instance.kv_blocks * block_size_tokens(instance) - work.held_tokens - request.prompt_tokens
    deviation_tokens = max(1.0, growth_tokens) / math.sqrt(work.requests + 1)
    z = (free_tokens - growth_tokens) / deviation_tokens
    if z > _SURE:
        return 0.0
    chance = 1.0 / (1.0 + math.exp(1.702 * max(-_SURE, z)))
    return chance * speed.prefill_s(request.prompt_tokens, 0)
