"""The oracle: knows every answer's length, every cache and every queue as it is right now, and minds the others.

It takes the instance where the request adds least to the sum of all completion times: its own, and what it costs those
that run or wait there. It is greedy: it does not know what will arrive. So it bounds what state and foresight of
running requests are worth, not what is possible at all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from extproc.core.values.instance import Instance, Lifecycle, Role
from extproc.sim.fleet.engine import Engine
from extproc.sim.policies.policy import Ask, Ending, Setting

_LEDGER = "oracle"


@dataclass(slots=True)
class _Sent:
    """A request on an engine."""

    ask: Ask
    uncached_tokens: int
    output_tokens: int
    final_tokens: int  # of KV that it will hold at its end
    first_token_s: float | None = None


@dataclass(slots=True)
class _Place:
    """All that was sent to one engine and is not over."""

    sent: dict[str, _Sent] = field(default_factory=dict)
    coming: Counter[int] = field(default_factory=Counter)  # blocks of prompts that are not computed yet
    backlog_tokens: int = 0  # prompt tokens that are not computed yet
    final_tokens: int = 0


class Oracle:
    """One replica; all replicas look at the same ledger."""

    hears_caches = False

    def __init__(self, setting: Setting) -> None:
        self._engines = setting.engines
        self._block_size_tokens = setting.block_size_tokens
        self._random = setting.random
        ledger = setting.common.setdefault(_LEDGER, {})
        assert isinstance(ledger, dict)
        self._places: dict[str, _Place] = ledger

    def choose(self, ask: Ask, now: float) -> str | None:
        """Id of the instance where all are done soonest."""
        best: tuple[float, float, Engine, int] | None = None
        for engine in self._engines.values():
            if not _can_serve(engine, ask):
                continue
            place = self._places.setdefault(engine.id, _Place())
            uncached_tokens = ask.arrival.prompt_tokens - self._cached_tokens(engine, place, ask)
            cost_s = _added_s(engine, place, ask, uncached_tokens, now)
            drawn = self._random.random()  # equals are drawn evenly
            if best is None or (cost_s, drawn) < best[:2]:
                best = cost_s, drawn, engine, uncached_tokens
        if best is None:
            return None
        _, _, engine, uncached_tokens = best
        place = self._places[engine.id]
        output_tokens = ask.arrival.output_tokens
        sent = _Sent(ask, uncached_tokens, output_tokens, ask.arrival.prompt_tokens + output_tokens)
        place.sent[ask.id] = sent
        place.coming.update(ask.prompt_blocks)
        place.backlog_tokens += uncached_tokens
        place.final_tokens += sent.final_tokens
        return engine.id

    def published(self, instance: Instance, observed_at_s: float, now: float) -> None:
        """It has no need of reports."""

    def cache_changed(self, instance_id: str, stored: Sequence[int], removed: Sequence[int], now: float) -> None:
        """It looks into the caches themselves."""

    def first_token(self, ask: Ask, instance_id: str, now: float) -> None:
        """A prompt is computed."""
        place = self._places[instance_id]
        sent = place.sent[ask.id]
        if sent.first_token_s is None:
            sent.first_token_s = now
            _computed(place, sent)

    def ended(self, ask: Ask, instance_id: str, ending: Ending, now: float) -> None:
        """A request is over."""
        place = self._places[instance_id]
        sent = place.sent.pop(ask.id)
        place.final_tokens -= sent.final_tokens
        if sent.first_token_s is None:
            _computed(place, sent)

    def news(self) -> Sequence[object]:
        """All replicas share one ledger already."""
        return ()

    def hear(self, news: object, now: float) -> None:
        """Nothing is told."""

    def _cached_tokens(self, engine: Engine, place: _Place, ask: Ask) -> int:
        """Prompt tokens that the engine holds or will have computed when this prompt is begun."""
        pool, coming = engine.pool, place.coming
        names = 0
        for block in ask.prompt_blocks:
            if not (pool.holds(block) or coming[block]):
                break
            names += 1
        return min(names * self._block_size_tokens, ask.arrival.prompt_tokens - 1)


def _computed(place: _Place, sent: _Sent) -> None:
    place.backlog_tokens -= sent.uncached_tokens
    place.coming.subtract(sent.ask.prompt_blocks)
    for block in sent.ask.prompt_blocks:
        if not place.coming[block]:
            del place.coming[block]


def _can_serve(engine: Engine, ask: Ask) -> bool:
    spec = engine.spec
    if engine.lifecycle is not Lifecycle.READY or ask.arrival.model not in spec.models or spec.role is not Role.BOTH:
        return False
    tokens = ask.arrival.prompt_tokens + ask.arrival.output_tokens
    limit = spec.max_model_len_tokens
    return tokens <= spec.kv_tokens and (limit is None or tokens <= limit)


def _added_s(engine: Engine, place: _Place, ask: Ask, uncached_tokens: int, now: float) -> float:
    """Seconds that a request adds to the sum of all completion times if it goes to this engine."""
    spec, arrival = engine.spec, ask.arrival
    profile, overhead_s, slowness = engine.scheduler.profile, spec.step_overhead_s, engine.slowness
    chunk = spec.max_num_batched_tokens
    steps = -(-uncached_tokens // chunk)
    cached_tokens = arrival.prompt_tokens - uncached_tokens
    prefill_s = slowness * (profile.prefill_s(uncached_tokens, cached_tokens) + steps * overhead_s)
    backlog_s = 0.0
    if place.backlog_tokens:
        backlog_s = slowness * profile.prefill_s(min(place.backlog_tokens, chunk), 0) * place.backlog_tokens / chunk
        if place.backlog_tokens < chunk:
            backlog_s *= chunk / place.backlog_tokens
    running = len(place.sent)
    context_tokens = engine.scheduler.context_tokens + place.backlog_tokens + arrival.prompt_tokens
    step_s = slowness * (profile.decode_step_s(running + 1, context_tokens) + overhead_s)
    wait_s = _room_s(engine, place, arrival.prompt_tokens, step_s, now)
    added_step_s = slowness * 1e-3 * (profile.e_ms + profile.f_ms * arrival.prompt_tokens)
    harm_s = running * prefill_s + _shared_tokens(place, arrival.output_tokens, step_s, now) * added_step_s
    excess_tokens = place.final_tokens + arrival.prompt_tokens + arrival.output_tokens - spec.kv_tokens
    if excess_tokens > 0 and not wait_s:
        harm_s += slowness * profile.prefill_s(min(excess_tokens, spec.kv_tokens), 0)  # somebody is computed twice
    own_s = 2 * spec.network_s + max(backlog_s, wait_s) + prefill_s + arrival.output_tokens * step_s
    return own_s + harm_s


def _shared_tokens(place: _Place, output_tokens: int, step_s: float, now: float) -> float:
    """Steps that this answer will share with others, summed over them: `_left`, written out where it is hot."""
    shared = 0.0
    for sent in place.sent.values():
        left: float = sent.output_tokens
        if sent.first_token_s is not None:
            left = max(1.0, left - (now - sent.first_token_s) / step_s)
        shared += left if left < output_tokens else output_tokens
    return shared


def _left(sent: _Sent, step_s: float, now: float) -> float:
    """Tokens that an answer still lacks."""
    if sent.first_token_s is None:
        return sent.output_tokens
    return max(1.0, sent.output_tokens - (now - sent.first_token_s) / step_s)


def _room_s(engine: Engine, place: _Place, prompt_tokens: int, step_s: float, now: float) -> float:
    """Seconds until there is a place in the batch and room for the prompt, behind all that wait already."""
    spec, scheduler = engine.spec, engine.scheduler
    waiting = [sent for sent in place.sent.values() if sent.first_token_s is None]
    ahead_tokens = sum(sent.ask.arrival.prompt_tokens for sent in waiting)
    lacking_tokens = ahead_tokens + prompt_tokens - (engine.pool.free_blocks * spec.block_size_tokens)
    lacking_places = len(waiting) + 1 - (spec.max_num_seqs - scheduler.running)
    if scheduler.running and scheduler.waiting == 0:
        lacking_places = scheduler.running + 1 - spec.max_num_seqs
    if lacking_tokens <= 0 and lacking_places <= 0:
        return 0.0
    leaving = sorted(
        (_left(sent, step_s, now), sent.final_tokens) for sent in place.sent.values() if sent.first_token_s is not None
    )
    wait_tokens = 0.0
    for left_tokens, freed_tokens in leaving:
        wait_tokens = left_tokens
        lacking_tokens -= freed_tokens
        lacking_places -= 1
        if lacking_tokens <= 0 and lacking_places <= 0:
            break
    # If even all of them do not make room, those that wait must have run too: as long again for each filling.
    again = max(0.0, lacking_tokens / spec.kv_tokens, lacking_places / spec.max_num_seqs)
    mean_output = sum(sent.output_tokens for sent in waiting) / len(waiting) if waiting else 0.0
    return (wait_tokens + again * mean_output) * step_s
