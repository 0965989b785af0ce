"""The cost of a request on an instance, in seconds, term by term.

Own seconds: waiting, computing the prompt, producing the answer. And the seconds by which others are delayed, because
an instance that is best for one request may be the worst for all: every answer in the batch stands still while a long
prompt is computed, and every step takes longer with one more answer in it. Choosing by the sum of both makes all
requests together take the least time.

Formulas are those of one instance, worked out for all at once: names without an index stand for a column.
"""

from __future__ import annotations

import math
from dataclasses import replace

import msgspec
import numpy as np

from extproc.core.column_rows import SHORTEST_TOKENS, SURE
from extproc.core.columns import Columns
from extproc.core.fleet.fleet import Member
from extproc.core.flight.pace import MEMORY_S
from extproc.core.health.slow_start import WINDOW_S, slow_start_s
from extproc.core.health.staleness import doubt_s, doubt_share, old_from_s
from extproc.core.prefixes.cached import Hits
from extproc.core.pricing.classes import weights_for
from extproc.core.pricing.communication import communication_s, crossing_money
from extproc.core.pricing.host_pressure import answer_work_s, first_token_work_s
from extproc.core.pricing.loading import slot_wait_s
from extproc.core.pricing.miss import miss_chance
from extproc.core.pricing.money import compute_money, instance_s, money_s
from extproc.core.pricing.tail import counted_s
from extproc.core.snapshot import Snapshot
from extproc.core.speeds.speed_columns import SpeedColumns
from extproc.core.values.arrays import Flags, Floats, Numbers, number, plus
from extproc.core.values.decision import Candidate, Claims, Cost
from extproc.core.values.request import Request

# What fetching a block from the host's memory takes, as a share of computing it: 131 KB a token of an 8B model over
# 25 GB/s of PCIe are 5 us, against about 40 us of an H100's prefill.
_FETCH_SHARE = 0.125
_NOTHING, _HALF = number(0.0), number(0.5)


class Prices(msgspec.Struct, frozen=True):
    """What a request would cost on each instance; of those that nobody asked for it has no meaning."""

    members: tuple[Member, ...]
    terms_s: dict[str, Numbers]  # by their names in `Cost` and in that order; a number is that of all
    total_s: Floats
    tpot_s: Floats
    hits: Hits
    idle_step_s: Floats  # a decode step of each with an empty batch
    held_back_s: Floats  # for which the answers that run on the request's rank stand still for its prompt
    columns: Columns

    def slowed_s(self) -> Floats:
        """By how much computing its prompt raises the time per token of an answer that runs there."""
        answer_tokens = np.maximum(self.columns.answer_tokens, SHORTEST_TOKENS)
        slowed_s: Floats = (self.columns.decoding > 0) * self.held_back_s / answer_tokens
        return slowed_s

    def candidate(self, row: int, claims: Claims) -> Candidate:
        """One of them, with what is claimed of its cache."""
        terms_s = [each if isinstance(each, float) else each.item(row) for each in self.terms_s.values()]
        cost = Cost(self.total_s.item(row), *terms_s)
        instance = self.members[row].instance
        handed_tokens = 0 if self.hits.handed_tokens is None else int(self.hits.handed_tokens.item(row))
        return Candidate(instance, cost, self.hits.at(row), self.tpot_s.item(row), claims, handed_tokens)


class Pricing:
    """Prices one request on the instances of a snapshot, whose columns must be those of `now`.

    `harm_share`: so much of the harm to others counts.
    """

    def __init__(self, request: Request, snapshot: Snapshot, now: float, harm_share: float = 1.0) -> None:
        self._request = request
        self._snapshot = snapshot
        self._columns = snapshot.columns
        self._now = now
        weights = weights_for(request, snapshot.policy.classes)
        self._weights = weights if harm_share == 1.0 else replace(weights, harm=weights.harm * harm_share)
        self._output_tokens = request.expected_output_tokens

    def prices(self, eligible: Flags, hits: Hits) -> Prices:
        """What the request would cost on the eligible instances, believed to hold so much of its prompt."""
        request, columns, output_tokens = self._request, self._columns, self._output_tokens
        speed = columns.speed(request.model, eligible, self._snapshot)
        busy = columns.busy
        cached_tokens = hits.tokens()
        uncached_tokens = number(request.prompt_tokens) - cached_tokens
        new_tokens = uncached_tokens if hits.handed_tokens is None else uncached_tokens + hits.handed_tokens
        in_batch_tokens = number(request.prompt_tokens + output_tokens / 2)
        growth_s = speed.growth_s(columns.batch_requests, columns.context_tokens + in_batch_tokens)
        step_s = speed.step_s + growth_s
        prefill_s = speed.prefill_s(uncached_tokens, cached_tokens)
        if hits.lower_tokens is not None:
            fetched_s = _FETCH_SHARE * speed.prefill_s(hits.lower_tokens, hits.gpu_tokens)
            prefill_s += np.where(hits.lower_tokens > 0, fetched_s, 0.0)
        # Each step that computes a piece of the prompt goes on with the answers of the batch as well.
        prefill_s += self._steps(busy * growth_s, uncached_tokens)
        decode_s = number(output_tokens) * step_s
        if columns.any_waits:  # what the answer's TPOT will be is learned, and not foretold from the host
            decode_s += number(answer_work_s(request)) * columns.host_waits
        has_room = columns.has_room(request.prompt_tokens, output_tokens)
        room_s, taken_s = (0.0, 0.0) if has_room else _room(request, columns, new_tokens, step_s)
        # One of N ranks computes it, or loads, and the others go on.
        held_back_s = prefill_s / columns.ranks if columns.any_ranks else prefill_s
        backlog_s = np.maximum(columns.prefill_free_at_s - number(self._now), _NOTHING)
        if columns.any_foreign_waiting:
            backlog_s += columns.foreign_waiting * held_back_s
        # While prompts that wait for room, too, are computed as they get it, no answer ends: the two add up.
        wait_s = plus(backlog_s, room_s)
        queue_s = wait_s + busy * step_s
        loading_s, load_s = self._loading_s(step_s)
        harm_s = columns.decoding * plus(held_back_s, load_s / columns.ranks if columns.any_slot else 0.0)
        harm_s += _sharing_s(columns, speed, in_batch_tokens, output_tokens)
        harm_s += self._later_s(wait_s + held_back_s * _HALF, plus(held_back_s, taken_s))
        tpot_s = _tpot_s(columns, step_s, output_tokens)
        miss_s, missed_s = self._misses_s(tpot_s, held_back_s)
        terms_s: dict[str, Numbers] = {
            "queue_s": queue_s,
            "prefill_s": prefill_s,
            "decode_s": decode_s,
            "loading_s": loading_s,
            "communication_s": self._reach_s(),
            "pressure_s": 0.0 if has_room else _pressure_s(request, columns, speed),
            "harm_s": plus(harm_s, missed_s),
            "tail_s": 0.0,
            "miss_s": miss_s,
            "doubt_s": self._doubt_s(prefill_s, decode_s),
            "start_s": 0.0,
            "money_s": self._money_s(prefill_s, decode_s),
        }
        total_s = self._total_s(queue_s, prefill_s, terms_s)
        start_s = terms_s["start_s"] = self._start_s(total_s, eligible)
        return Prices(
            members=self._snapshot.members,
            terms_s=terms_s,
            total_s=plus(total_s, start_s),
            tpot_s=tpot_s,
            hits=hits,
            idle_step_s=speed.step_s,
            held_back_s=held_back_s,
            columns=columns,
        )

    def _total_s(self, queue_s: Floats, prefill_s: Floats, terms_s: dict[str, Numbers]) -> Floats:
        """The sum of all terms as they are weighed, `tail_s` being added to them."""
        tail = self._snapshot.tail
        reach_s = terms_s["communication_s"] + terms_s["loading_s"]
        ttft_s = plus(queue_s + prefill_s, reach_s)
        if ttft_s.item(ttft_s.argmax()) > tail.begins_s:
            beyond_s = np.maximum(ttft_s - number(tail.begins_s), _NOTHING)
            tail_s = counted_s(beyond_s, np.minimum(beyond_s, ttft_s - prefill_s), tail.weight)
            terms_s["tail_s"], ttft_s = tail_s, ttft_s + tail_s
        return self._weights.weigh(
            ttft_s=ttft_s,
            completion_s=plus(plus(terms_s["decode_s"], terms_s["doubt_s"]), terms_s["miss_s"]),
            pressure_s=terms_s["pressure_s"],
            harm_s=terms_s["harm_s"],
            money_s=terms_s["money_s"],
        )

    def _steps(self, step_s: Floats, uncached_tokens: Floats) -> Floats:
        """Seconds of as many steps as each engine needs to compute the prompt."""
        if 0 < self._request.prompt_tokens <= self._columns.least_step_tokens:  # at least its last token is not cached
            return step_s
        steps_s: Floats = step_s * np.ceil(uncached_tokens / self._columns.step_tokens)
        return steps_s

    def _later_s(self, ahead_s: Floats, taken_s: Floats) -> Floats:
        """Seconds by which requests will wait longer that come before this prompt is computed, summed over them.

        Those come at the rate at which others came, for the `ahead_s` until this prompt is half computed: on the
        average they find the other half ahead. Each waits for what it takes, its time of computing and of room.
        """
        columns = self._columns
        faded = number(math.exp((columns.rated_at_s - self._now) / MEMORY_S))
        later_s: Floats = columns.rated_rps * faded * ahead_s * taken_s
        return later_s

    def _misses_s(self, tpot_s: Floats, held_back_s: Floats) -> tuple[Numbers, Numbers]:
        """What its own seconds count more as its tokens may come too slowly, and what others do that stand still.

        Whose answers run there is not known: they are taken to be of its own class.
        """
        limit_s, share = self._weights.slo.tpot_s, self._weights.miss
        if limit_s is None or not share:
            return 0.0, 0.0
        chance = miss_chance(tpot_s, limit_s)
        if chance is None:
            return 0.0, 0.0
        more = chance * number(share)
        return more * tpot_s * number(self._output_tokens), more * self._columns.decoding * held_back_s

    def _loading_s(self, step_s: Floats) -> tuple[Numbers, Numbers]:
        """Seconds until the request's adapter is in the GPU, and those in which the batch stands still for it."""
        columns, adapters = self._columns, self._snapshot.adapters
        adapts = columns.adapts(self._request.model, self._snapshot)
        if adapts is None:
            return 0.0, 0.0
        load_s: Floats = adapts * columns.lora_load_s
        wait_s = slot_wait_s(columns.lora_turn, columns.lora_crowd, _answer_s(self._request, columns, step_s))
        loading_s: Floats = load_s + adapts * wait_s
        for key, loaded_s in adapters.loaded(self._request.model):
            row = columns.row_of.get(key)
            if row is not None:
                loading_s[row], load_s[row] = max(0.0, loaded_s - self._now), 0.0
        return loading_s, load_s

    def _start_s(self, total_s: Floats, eligible: Flags) -> Numbers:
        """What holds requests back from instances that have just become Ready."""
        columns, now = self._columns, self._now
        if now >= columns.latest_ready_s + WINDOW_S:
            return 0.0
        starts = {}
        for row in np.flatnonzero(eligible & (now < columns.ready_since_s + WINDOW_S)).tolist():
            member = self._snapshot.members[row]
            if member.draining_since_s is not None:  # it was Ready before, and is warm
                continue
            progress = self._snapshot.warm_ups.progress(member.instance.key, member.ready_since_s, now)
            if progress < 1.0:
                starts[row] = progress
        warm = eligible.copy()
        warm[list(starts)] = False
        warm_requests = columns.requests[warm].mean().item() if np.count_nonzero(warm) else None
        start_s = np.zeros(len(total_s))
        for row, progress in starts.items():
            start_s[row] = slow_start_s(total_s.item(row), columns.requests.item(row), progress, warm_requests)
        return start_s

    def _reach_s(self) -> Numbers:
        request, columns = self._request, self._columns
        reach_s: Numbers = 0.0
        if columns.any_way:
            reach_s += communication_s(request, columns.rtt_s, columns.byte_s)
        if columns.any_waits:
            reach_s += number(first_token_work_s(request)) * columns.host_waits
        return reach_s

    def _doubt_s(self, prefill_s: Floats, decode_s: Floats) -> Numbers:
        limit_s = self._snapshot.policy.stale_after_s
        heard_at_s = self._snapshot.heard_at_s
        if heard_at_s - self._columns.oldest_at_s <= old_from_s(limit_s):
            return 0.0
        return doubt_s(prefill_s + decode_s, doubt_share(heard_at_s - self._columns.observed_at_s, limit_s))

    def _money_s(self, prefill_s: Floats, decode_s: Floats) -> Numbers:
        value_per_hour, columns = self._weights.value_per_hour, self._columns
        if not value_per_hour:
            return 0.0
        taken_s = instance_s(prefill_s, decode_s, columns.batch_requests)
        money: Floats = compute_money(columns.prices_per_hour(), taken_s)
        money += crossing_money(self._request, columns.price_per_gb)
        return money_s(money, value_per_hour)


def _tpot_s(columns: Columns, step_s: Floats, output_tokens: int) -> Floats:
    """Seconds for each output token, the prompts of others that are computed meanwhile included.

    That is seen in an answer's TPOT, and is no part of its cost: each of those prompts pays for it as harm.
    If the batch stays as large as it is, of B answers of O tokens one ends every O / B steps, and a prompt comes in its
    place. Computing it takes P seconds, in which all others get one token (that of its last step). So in the mean

        tpot = step + B / O * (P - step)

    which holds at once after a burst, when the rate at which prompts came is not known yet.
    """
    ends = columns.ends_per_step
    if columns.any_answer_unknown:
        ends = ends + columns.answers_unknown / number(max(output_tokens, SHORTEST_TOKENS))
    tpot_s: Floats = step_s + ends * np.maximum(columns.prompt_s - step_s, _NOTHING)
    return tpot_s


def _sharing_s(columns: Columns, speed: SpeedColumns, in_batch_tokens: Floats, output_tokens: int) -> Floats:
    """Seconds by which the steps of others take longer with one more answer among them, summed.

    Of two answers of unknown length about half of either is produced together.
    """
    longer_s = speed.sequence_s + speed.context_s * in_batch_tokens
    sharing_s: Floats = columns.requests * number(output_tokens / 2) * longer_s
    return sharing_s


def _room(request: Request, columns: Columns, new_tokens: Floats, step_s: Floats) -> tuple[Numbers, Numbers]:
    """Seconds until the batch and the KV blocks have room for the request, and until what it takes of them is free.

    `new_tokens`: of its prompt, that are not held yet.
    Room comes with the end of answers: of n that have room themselves, one ends every n-th part of an answer's time.
    The second are 0 where nobody lacks room.
    """
    ends = columns.batch_requests - columns.max_num_seqs
    lacking_tokens = new_tokens - columns.free_tokens
    lacking = lacking_tokens > 0
    if not np.count_nonzero(lacking) and not np.count_nonzero(ends > 0):
        return 0.0, 0.0
    requests = np.maximum(columns.requests, 1.0)
    with_room = np.minimum(requests, columns.max_num_seqs)
    with_room = np.minimum(with_room, requests * columns.capacity_tokens / np.maximum(columns.held_tokens, 1.0))
    end_s = _answer_s(request, columns, step_s) / np.maximum(with_room, 1.0) * columns.busy
    per_request_tokens = np.maximum(columns.held_tokens / requests, 1.0)
    ends = np.maximum(np.maximum(ends, 0.0), np.where(lacking, np.ceil(lacking_tokens / per_request_tokens), 0.0))
    taken_tokens = new_tokens + request.expected_output_tokens
    return ends * end_s, np.where(lacking, taken_tokens / per_request_tokens * end_s, 0.0)


def _answer_s(request: Request, columns: Columns, step_s: Floats) -> Floats:
    """Seconds that an answer takes which runs there now."""
    return np.where(columns.answer_tokens > 0, columns.answer_tokens, request.expected_output_tokens) * step_s


def _pressure_s(request: Request, columns: Columns, speed: SpeedColumns) -> Numbers:
    """Expected seconds lost to preemption: somebody is computed a second time if the KV blocks run out.

    Answers are of unknown length, about as uncertain as they are long (exponential). So what n of them will still
    grow is nearly normal, with a deviation of the n-th root of the mean growth; the chance that it does not fit is
    taken from there (logistic approximation of the normal distribution, off by less than 0.01).
    """
    growth_tokens = columns.growth_tokens + request.expected_output_tokens
    deviation_tokens = np.maximum(growth_tokens, 1.0) * columns.batch_spread
    z = (columns.free_tokens - request.prompt_tokens - growth_tokens) / deviation_tokens
    open_to_doubt = z <= SURE
    if not np.count_nonzero(open_to_doubt):
        return 0.0
    chance = open_to_doubt / (1.0 + np.exp(1.702 * np.clip(z, -SURE, SURE)))
    pressure_s: Floats = chance * speed.prefill_s(request.prompt_tokens, 0)
    return pressure_s
