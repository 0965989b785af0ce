"""The decision in its plainest form, one instance after the other: what the columns of the core are held against.

It reads the state itself, never `core.columns`, and shares with the core only what concerns one instance anyway: its
speed, the constraints' order and words, the constants.
"""

from __future__ import annotations

import math
from collections.abc import Set

import msgspec

from extproc.core.admission.bounds import Bounds
from extproc.core.column_rows import SURE
from extproc.core.eligibility.constraints import demand_of, misfit, obstacle
from extproc.core.eligibility.limits import limits_of
from extproc.core.fleet.fleet import Member
from extproc.core.flight.pace import MEMORY_S
from extproc.core.flight.work import Work, block_size_tokens, ranks, step_tokens
from extproc.core.health.slow_start import slow_start_s
from extproc.core.health.staleness import doubt_s, doubt_share
from extproc.core.prefixes.kv_index import Hit
from extproc.core.pricing import cost as core
from extproc.core.pricing.classes import weights_for
from extproc.core.pricing.communication import answer_bytes, network_wait_s, round_trips
from extproc.core.pricing.host_pressure import answer_work_s, first_token_work_s, waits
from extproc.core.pricing.money import typical_price
from extproc.core.snapshot import Snapshot
from extproc.core.speeds.speed import Speed
from extproc.core.values.decision import Candidate, Claims, Cost, Decision, Reason, Rejection
from extproc.core.values.instance import Instance, Lifecycle
from extproc.core.values.request import Request

_DOUBTS = (Reason.PUSHED_BACK, Reason.STALE, Reason.COOLING_DOWN)  # those of the first are asked first


def decide_one_by_one(
    request: Request,
    snapshot: Snapshot,
    now: float,
    draw: float,
    full: Set[str] = frozenset(),
    bounds: Bounds | None = None,
) -> Decision:
    """The same as `decide`."""
    rejected: list[Rejection] = []
    rungs: dict[int, list[Member]] = {}
    for member in snapshot.members:
        hit, _ = held(request, snapshot, member, now)
        rejection = misfit(demand_of(request), member.instance)
        rejection = rejection or obstacle(
            request, member, snapshot, now, full, hit.tokens, _most_held(request, snapshot, now)
        )
        rung = _rung(request, member, snapshot, now, rejection)
        if rejection is not None:
            rejected.append(rejection)
        if rung is not None:
            rungs.setdefault(rung, []).append(member)
    if bounds is not None:
        for pushed_back in (1, 5):  # who said "too much" is asked only where nobody can be held
            rungs.pop(pushed_back, None)
    eligible = rungs.pop(min(rungs)) if rungs else []
    ranked = _ranked(request, snapshot, eligible, now, bounds)
    if bounds is not None and ranked:
        broken = _broken(request, snapshot, ranked, bounds, now)
        rejected += [each for member in eligible if (each := broken[member.instance.id]) is not None]
        ranked = [each for each in ranked if broken[each.instance.id] is None]
    if not ranked:
        return Decision(None, (), tuple(rejected))
    policy, best_s = snapshot.policy, ranked[0].cost.total_s
    limit_s = best_s + min(policy.near_tie_s, best_s * policy.near_tie_share)
    ties = max(1, sum(candidate.cost.total_s <= limit_s for candidate in ranked))
    chosen = ranked.pop(min(ties - 1, int(draw * ties)))
    for rung in sorted(rungs):  # who is left out of a rung by bounds is not asked after all
        further = _ranked(request, snapshot, rungs[rung], now, bounds)
        broken = {} if bounds is None else _broken(request, snapshot, further, bounds, now)
        ranked += [each for each in further if broken.get(each.instance.id) is None]
    return Decision(chosen, tuple(ranked[: policy.alternatives]), tuple(rejected))


def _most_held(request: Request, snapshot: Snapshot, now: float) -> float:
    """Of the prompt, by one that is Ready and fulfils the request's demand."""
    if not snapshot.policy.draining_continuation_tokens:
        return 0.0
    ready = [each for each in snapshot.members if each.instance.lifecycle is Lifecycle.READY]
    fits = [each for each in ready if misfit(demand_of(request), each.instance) is None]
    return max((held(request, snapshot, each, now)[0].tokens for each in fits), default=0)


def _ranked(
    request: Request, snapshot: Snapshot, eligible: list[Member], now: float, bounds: Bounds | None
) -> list[Candidate]:
    """What the request would cost on each of those that are weighed against each other, the cheapest first."""
    harm_share = 1.0 if bounds is None else bounds.harm_share
    priced = [
        _held_back(price(request, snapshot, member, now, harm_share), member, eligible, snapshot, now)
        for member in eligible
    ]
    return sorted(priced, key=lambda candidate: candidate.cost.total_s)


def _broken(
    request: Request, snapshot: Snapshot, ranked: list[Candidate], bounds: Bounds, now: float
) -> dict[str, Rejection | None]:
    """The bound that each instance breaks; wider ones where nobody keeps them."""
    steps_s = {
        each.instance.id: snapshot.beliefs.speed(request.model, each.instance).decode_step_s(0, 0) for each in ranked
    }

    def own_s(each: Candidate) -> float:
        return each.cost.prefill_s + each.cost.communication_s if bounds.own_prompt else 0.0

    def slowed_s(each: Candidate) -> float:
        """What its prompt adds to the time per token of an answer there."""
        work = snapshot.ledger.work(each.instance.key)
        if not work.requests or not _decoding(work, now):
            return 0.0
        return each.cost.prefill_s / ranks(each.instance) / max(8.0, work.mean_output_tokens or 0.0)

    def judged(mine: Candidate, limit_s: float, tpot_limit_s: float) -> Rejection | None:
        name = mine.instance.id
        ttft_s = mine.cost.queue_s + mine.cost.loading_s + own_s(mine)
        if bounds.deadline_in_s is not None:
            prompt_s = 0.0 if bounds.own_prompt else mine.cost.prefill_s
            limit_s = min(limit_s, bounds.deadline_in_s - prompt_s - request.output_p50_tokens * steps_s[name])
        if bounds.ahead_s < math.inf:
            limit_s = min(limit_s, own_s(mine) + max(bounds.ahead_s, 1.5 * steps_s[name]))
        tpot_s = mine.tpot_s + min(slowed_s(mine), 0.5 * bounds.tpot_s)
        if own_s(mine) > limit_s:
            return Rejection(name, Reason.DEADLINE_UNREACHABLE, own_s(mine), max(0.0, limit_s))
        if ttft_s > limit_s:
            return Rejection(name, Reason.TTFT_BEYOND_BOUND, ttft_s, limit_s)
        return Rejection(name, Reason.TPOT_BEYOND_BOUND, tpot_s, tpot_limit_s) if tpot_s > tpot_limit_s else None

    limit_s = bounds.ttft_s - bounds.waited_s
    tpot_limit_s = bounds.tpot_s if request.expected_output_tokens > 1 else math.inf
    found = {each.instance.id: judged(each, limit_s, tpot_limit_s) for each in ranked}
    if all(found.values()):
        limit_s = max(limit_s, min(map(own_s, ranked)) + bounds.ttft_s / 2 - bounds.waited_s)
        tpot_limit_s = max(tpot_limit_s, (1.5 if bounds.own_prompt else 1.1) * min(steps_s.values()))
        found = {each.instance.id: judged(each, limit_s, tpot_limit_s) for each in ranked}
    for each in ranked if bounds.leaves_places else ():
        requests, places = snapshot.ledger.work(each.instance.key).requests + 1, _places(each.instance, snapshot)
        if requests > places and not found[each.instance.id]:
            found[each.instance.id] = Rejection(each.instance.id, Reason.AT_CONCURRENCY_LIMIT, requests, places)
    for each in ranked if bounds.keeps_prefix else ():
        if each.cached_tokens < max(other.cached_tokens for other in ranked) - 256 and not found[each.instance.id]:
            elsewhere = Rejection(each.instance.id, Reason.PREFIX_ELSEWHERE, "its prefix", "less of it than another")
            found[each.instance.id] = elsewhere
    return found


def _places(instance: Instance, snapshot: Snapshot) -> float:
    """Of an instance's places, seven of eight, and all but one at the most; of one place, that one."""
    limit = limits_of(instance, snapshot.policy).max_in_flight
    told = [each for each in (instance.max_num_seqs, limit) if each is not None]
    places = min(told, default=math.inf)
    return places if places < 2 else min(places - 1, places * 7 // 8)


def _held_back(priced: Candidate, member: Member, eligible: list[Member], snapshot: Snapshot, now: float) -> Candidate:
    """The same with what its start adds."""

    def progress(each: Member) -> float:
        if each.instance.lifecycle is Lifecycle.DRAINING:
            return 1.0
        return snapshot.warm_ups.progress(each.instance.key, each.ready_since_s, now)

    warm = [snapshot.ledger.work(each.instance.key).requests for each in eligible if progress(each) >= 1.0]
    requests = snapshot.ledger.work(member.instance.key).requests
    mean = sum(warm) / len(warm) if warm else None
    start_s = slow_start_s(priced.cost.total_s, requests, progress(member), mean)
    return msgspec.structs.replace(
        priced, cost=msgspec.structs.replace(priced.cost, start_s=start_s, total_s=priced.cost.total_s + start_s)
    )


def _rung(request: Request, member: Member, snapshot: Snapshot, now: float, rejection: Rejection | None) -> int | None:
    """How many others go before it: 0 if it fulfils all constraints; None if it fails one that is never waived."""
    if rejection is None:
        return 0
    if rejection.reason in _DOUBTS:
        return 1 + _DOUBTS.index(rejection.reason)
    limit = member.instance.max_model_len_tokens
    if rejection.reason is not Reason.CONTEXT_TOO_LONG or limit is None or request.sure_tokens > limit:
        return None
    key, age_s = member.instance.key, snapshot.heard_at_s - member.observed_at_s
    if snapshot.cooldowns.remaining_s(key, now):
        return 7
    if age_s > snapshot.policy.stale_after_s:
        return 6
    return 5 if snapshot.backpressure.remaining_s(key, now) else 4


def price(request: Request, snapshot: Snapshot, member: Member, now: float, harm_share: float = 1.0) -> Candidate:
    """What a request would cost on an instance."""
    instance, policy = member.instance, snapshot.policy
    work = snapshot.ledger.work(instance.key)
    speed = snapshot.beliefs.speed(request.model, instance)
    hit, claims = held(request, snapshot, member, now)
    requests, output_tokens = work.requests, request.expected_output_tokens
    uncached_tokens = request.prompt_tokens - hit.tokens
    step_s = speed.decode_step_s(requests + 1, work.context_tokens + request.prompt_tokens + output_tokens / 2)
    prefill_s = speed.prefill_s(uncached_tokens, hit.tokens)
    if hit.lower_tokens:
        prefill_s += core._FETCH_SHARE * speed.prefill_s(hit.lower_tokens, hit.gpu_tokens)
    if requests:
        prefill_s += math.ceil(uncached_tokens / step_tokens(instance)) * (step_s - speed.decode_step_s(0, 0))
    keep = math.exp(min(0.0, work.pace.at_s - now) / MEMORY_S) / MEMORY_S
    prompt_s = work.pace.prefill_s / work.pace.requests if work.pace.requests else 0.0
    tpot_s = step_s + requests / max(8.0, work.mean_output_tokens or output_tokens) * max(0.0, prompt_s - step_s)
    decode_s = output_tokens * step_s + answer_work_s(request) * waits(instance.host)
    room_s, taken_s = _room(request, member, work, uncached_tokens, step_s)
    held_back_s = prefill_s / ranks(instance)
    backlog_s = work.prefill_backlog_s(now) + work.foreign_waiting * held_back_s
    wait_s = queue_s = backlog_s + room_s
    harm_s = 0.0
    if requests:
        queue_s += step_s
        decoding = _decoding(work, now)
        longer_s = speed.decode_step_s(1, request.prompt_tokens + output_tokens / 2) - speed.decode_step_s(0, 0)
        harm_s += decoding * held_back_s + requests * output_tokens / 2 * longer_s
    loading_s, load_s = _loading(request, snapshot, member, now, step_s)
    if requests:
        harm_s += decoding * load_s / ranks(instance)
    harm_s += work.pace.requests * keep * (wait_s + held_back_s / 2) * (held_back_s + taken_s)
    crossing = policy.zones.to(instance.zone)
    reach_s = round_trips(request.body_bytes) * crossing.rtt_s + network_wait_s(request.body_bytes, instance)
    reach_s += request.body_bytes / crossing.bytes_s if crossing.bytes_s else 0.0
    reach_s += first_token_work_s(request) * waits(instance.host)
    weights = weights_for(request, policy.classes)
    money_s = 0.0
    if weights.value_per_hour:
        typical = typical_price([each.instance for each in snapshot.members]) or 0.0
        hourly = typical if instance.price_per_hour is None else instance.price_per_hour
        money = hourly * (prefill_s + decode_s / (requests + 1)) / 3600
        money += crossing.price_per_gb * (request.body_bytes + answer_bytes(request)) / 1e9
        money_s = money / weights.value_per_hour * 3600
    more = 0.0
    if weights.slo.tpot_s is not None:
        odds = max(0.0, (tpot_s / weights.slo.tpot_s) ** 4 - 0.25**4)
        more = weights.miss * odds / (1.0 + odds)
    miss_s = more * tpot_s * output_tokens
    if requests:
        harm_s += more * decoding * held_back_s
    age_s = snapshot.heard_at_s - member.observed_at_s
    ttft_s = queue_s + loading_s + prefill_s + reach_s
    beyond_s = max(0.0, ttft_s - snapshot.tail.begins_s)
    waited_s = min(beyond_s, ttft_s - prefill_s)
    cost = Cost(
        queue_s=queue_s,
        loading_s=loading_s,
        prefill_s=prefill_s,
        decode_s=decode_s,
        communication_s=reach_s,
        pressure_s=_pressure_s(request, member, work, speed),
        harm_s=harm_s,
        tail_s=snapshot.tail.weight * (waited_s + (beyond_s - waited_s) / 8),
        miss_s=miss_s,
        doubt_s=float(doubt_s(prefill_s + decode_s, doubt_share(max(0.0, age_s), policy.stale_after_s))),
        money_s=money_s,
        total_s=0.0,
    )
    own_s = weights.ttft * (ttft_s + cost.tail_s) + weights.completion * (decode_s + cost.doubt_s + miss_s + money_s)
    total_s = own_s + weights.pressure * cost.pressure_s + weights.harm * harm_share * harm_s
    return Candidate(instance, Cost(**({**_fields(cost), "total_s": total_s})), hit.tokens, tpot_s, claims)


def _decoding(work: Work, now: float) -> int:
    """Requests whose answers are being produced."""
    decoding = len(work.active) + work.foreign_running
    if work.prefill_free_at_s > now:
        decoding -= sum(done_at_s > now for done_at_s in work.prefilled_at_s.values())
    return decoding


def held(request: Request, snapshot: Snapshot, member: Member, now: float) -> tuple[Hit, Claims]:
    """What an instance is believed to hold of the prompt, and who claims what."""
    key, model, trust = member.instance.key, request.model, snapshot.trust
    most_tokens = max(0, request.prompt_tokens - 1)

    def tokens(blocks: int) -> int:
        return min(int(blocks * request.tokens_per_block), most_tokens)

    learned_tokens = tokens(snapshot.prefixes.matches(request.prefix).get(key, 0))
    recent_tokens = tokens(snapshot.recent.matches(request.prefix, now).get(key, 0))
    layout = snapshot.kv.layout(member.instance, model)
    if layout is None or layout not in request.chains:
        believed = Hit(max(int(learned_tokens * trust.shares(model).get(key, 1.0)), recent_tokens))
        return believed, Claims(learned_tokens, None, recent_tokens)
    told = snapshot.kv.hits(request.chains).get((layout, key), Hit(0))
    whole_tokens = most_tokens - most_tokens % layout.block_size_tokens
    gpu_tokens = min(told.gpu_tokens, whole_tokens)
    told = Hit(gpu_tokens, min(told.lower_tokens, whole_tokens - gpu_tokens))
    claims = Claims(learned_tokens, told.tokens, recent_tokens)
    if trust.trusts_told(key, model):
        return Hit(told.gpu_tokens + max(0, recent_tokens - told.tokens), told.lower_tokens), claims
    return Hit(max(int(learned_tokens * trust.shares(model).get(key, 1.0)), recent_tokens)), claims


def _loading(request: Request, snapshot: Snapshot, member: Member, now: float, step_s: float) -> tuple[float, float]:
    """Seconds until the adapter is there, and those of them in which others stand still."""
    instance, adapters = member.instance, snapshot.adapters
    if request.model not in instance.loras:
        return 0.0, 0.0
    loaded = dict(adapters.loaded(request.model))
    if instance.key in loaded:
        return max(0.0, loaded[instance.key] - now), 0.0
    load_s, turn, crowd = adapters.row(instance.key)
    answer_s = (snapshot.ledger.work(instance.key).mean_output_tokens or request.expected_output_tokens) * step_s
    return load_s + (turn ** (1 / crowd) if turn < 1 else turn) * answer_s, load_s


def _room(request: Request, member: Member, work: Work, uncached_tokens: int, step_s: float) -> tuple[float, float]:
    requests, instance = work.requests, member.instance
    if not requests:
        return 0.0, 0.0
    end_s = (work.mean_output_tokens or request.expected_output_tokens) * step_s
    with_room = float(requests)
    ends = 0
    if instance.max_num_seqs is not None:
        ends = max(0, requests + 1 - instance.max_num_seqs)
        with_room = min(with_room, instance.max_num_seqs)
    lacking_tokens = each_tokens = 0.0
    if instance.kv_blocks is not None:
        capacity_tokens = max(1, instance.kv_blocks * block_size_tokens(instance))
        with_room = min(with_room, requests * capacity_tokens / max(1.0, work.held_tokens))
        lacking_tokens = work.held_tokens + uncached_tokens - capacity_tokens
        each_tokens = max(1.0, work.held_tokens / requests)
    end_s /= max(1.0, with_room)
    if lacking_tokens <= 0:
        return ends * end_s, 0.0
    ends = max(ends, math.ceil(lacking_tokens / each_tokens))
    return ends * end_s, (uncached_tokens + request.expected_output_tokens) / each_tokens * end_s


def _pressure_s(request: Request, member: Member, work: Work, speed: Speed) -> float:
    instance = member.instance
    if instance.kv_blocks is None:
        return 0.0
    growth_tokens = work.growth_tokens + request.expected_output_tokens
    capacity_tokens = instance.kv_blocks * block_size_tokens(instance)
    free_tokens = capacity_tokens - work.held_tokens - request.prompt_tokens - growth_tokens
    z = free_tokens * math.sqrt(work.requests + 1) / max(1.0, growth_tokens)
    if z > SURE:
        return 0.0
    return speed.prefill_s(request.prompt_tokens, 0) / (1.0 + math.exp(1.702 * max(-SURE, z)))


def _fields(cost: Cost) -> dict[str, float]:
    return {name: getattr(cost, name) for name in Cost.__struct_fields__}
