"""The bookkeeping that rival routers share: a desk makes a `Policy` of a rule."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import floor
from random import Random

from extproc.core.values.instance import Instance, Lifecycle, Load, Role
from extproc.sim.policies.holdings import Holdings, LruHoldings
from extproc.sim.policies.policy import Ask, Ending, Setting

EJECTION_S = 1.0  # an instance that broke is left alone so long


@dataclass(slots=True, eq=False)
class Seen:
    """An instance as one router sees it. Rules read it; the desk writes it."""

    number: int  # at this desk, from 0 in the order of first reports
    instance: Instance  # as published last; of its load, only `load` below may be used
    load: Load  # as of the router's last poll
    observed_at_s: float  # when that load was true
    polled_at_s: float  # when the router read it
    in_flight: int = 0  # this router's requests there, and those that peers told of
    prefill_tokens: int = 0  # uncached prompt tokens of those of them that wait for their first token
    hit_tokens: int = 0  # leading tokens of the prompt in question that it holds, as far as the router knows
    ejected_until_s: float = -1.0

    @property
    def id(self) -> str:
        """Its instance's id."""
        return self.instance.id


@dataclass(slots=True, eq=False)
class Trip:
    """A request on its way: where it went, and what was booked for it."""

    ask: Ask
    seen: Seen
    sent_at_s: float
    hit_tokens: int
    prefill_tokens: int
    in_flight_before: int
    own: bool = True  # False: a peer's
    answering: bool = False  # its first token has passed by


@dataclass(frozen=True, slots=True)
class _Sent:
    """News: a peer sent a request to an instance that holds `hit_tokens` of it."""

    ask: Ask
    instance_id: str
    hit_tokens: int


@dataclass(frozen=True, slots=True)
class _Answering:
    """News: a peer saw the first token of an answer."""

    ask: Ask
    instance_id: str


@dataclass(frozen=True, slots=True)
class _Over:
    """News: a peer's request ended."""

    ask: Ask
    instance_id: str


def takes_whole(instance: Instance) -> bool:
    """Whether an instance takes requests that it does not share with another."""
    return instance.role is Role.BOTH


Rule = Callable[[Ask, Sequence[Seen], Random, float], Seen | None]
"""Picks one of the candidates for a request: `rule(ask, candidates, random, now)`; candidates are never empty."""


class Desk:
    """A router around a rule; implements `Policy`.

    Candidates are Ready instances that serve the model with a long enough context, less those that broke within
    the last second (if any other is left), as Envoy's outlier detection would have it.

    `holdings`: what the router knows of caches; `LruHoldings` learns from its own choices, plain `Holdings` from
    the engines' events. `poll_s`: period at which the product reads metrics; what was published since its last
    poll is not seen, and replicas poll one after the other. `shares`: replicas tell each other of their requests.
    `takes`: which instances the router asks at all.
    The `on_...` callables are a rule's own memory; `on_sent`, `on_first_token` and `on_over` get peers' trips too,
    whose endings are not known.
    """

    def __init__(
        self,
        setting: Setting,
        rule: Rule,
        *,
        holdings: Holdings | None = None,
        poll_s: float = 0.0,
        shares: bool = False,
        takes: Callable[[Instance], bool] = takes_whole,
        on_sent: Callable[[Trip, float], None] | None = None,
        on_first_token: Callable[[Trip, float], None] | None = None,
        on_over: Callable[[Trip, Ending | None, float], None] | None = None,
    ) -> None:
        self.hears_caches = holdings is not None and not isinstance(holdings, LruHoldings)
        self.seen: dict[str, Seen] = {}
        self._rule = rule
        self._random = setting.random
        self._block_size_tokens = setting.block_size_tokens
        self._holdings = holdings
        self._poll_s = poll_s
        self._phase_s = poll_s * setting.replica / max(1, setting.replicas)
        self._latest: dict[str, tuple[Load, float]] = {}  # published, but perhaps not polled yet
        self._shares = shares
        self._takes = takes
        self._news: list[object] = []
        self._trips: dict[tuple[str, str], Trip] = {}
        self._on_sent = on_sent
        self._on_first_token = on_first_token
        self._on_over = on_over

    def choose(self, ask: Ask, now: float) -> str | None:
        """Id of the instance that the rule picks; None if no instance is a candidate, or it refuses."""
        candidates = self._candidates(ask, now)
        if not candidates:
            return None
        if self._holdings is not None:
            held = self._holdings.blocks_held(ask.prompt_blocks)
            size, all_of_it = self._block_size_tokens, ask.arrival.prompt_tokens
            for seen in candidates:
                seen.hit_tokens = min(held.get(seen.number, 0) * size, all_of_it)
        chosen = self._rule(ask, candidates, self._random, now)
        if chosen is None:
            return None
        self._book(ask, chosen, chosen.hit_tokens, now, own=True)
        if isinstance(self._holdings, LruHoldings):
            self._holdings.sent(chosen.number, ask.prompt_blocks, now)
        if self._shares:
            self._news.append(_Sent(ask, chosen.id, chosen.hit_tokens))
        return chosen.id

    def published(self, instance: Instance, observed_at_s: float, now: float) -> None:
        """Take an agent's report; its load counts from the router's next poll on, all else at once."""
        seen = self.seen.get(instance.id)
        self._latest_by_poll(instance.id, now)
        self._latest[instance.id] = (instance.load, observed_at_s)
        if seen is None:
            self.seen[instance.id] = Seen(len(self.seen), instance, instance.load, observed_at_s, now)
            return
        if self._holdings is not None and _has_lost_its_cache(seen.instance, instance):
            self._holdings.forget(seen.number)
        seen.instance = instance
        if not self._poll_s:
            seen.load, seen.observed_at_s, seen.polled_at_s = instance.load, observed_at_s, now

    def cache_changed(self, instance_id: str, stored: Sequence[int], removed: Sequence[int], now: float) -> None:
        """Write down what an engine tells of its cache."""
        seen = self.seen.get(instance_id)
        if seen is not None and self.hears_caches and self._holdings is not None:
            self._holdings.remove(seen.number, removed)
            self._holdings.store(seen.number, stored)

    def first_token(self, ask: Ask, instance_id: str, now: float) -> None:
        """Release the prefill tokens of a request."""
        trip = self._trips.get((ask.id, instance_id))
        if trip is not None:
            self._answer(trip, now)
            if self._shares:
                self._news.append(_Answering(ask, instance_id))

    def ended(self, ask: Ask, instance_id: str, ending: Ending, now: float) -> None:
        """Release all that was booked for a request; leave its instance alone for a while if it broke."""
        trip = self._trips.get((ask.id, instance_id))
        if trip is None:
            return
        self._close(trip, ending, now)
        if ending.status == 503:
            trip.seen.ejected_until_s = now + EJECTION_S
        if self._shares:
            self._news.append(_Over(ask, instance_id))

    def drop(self, ask: Ask, instance_id: str, now: float) -> None:
        """Take back a choice that was not carried out."""
        if (trip := self._trips.get((ask.id, instance_id))) is not None:
            self._close(trip, None, now)

    def news(self) -> Sequence[object]:
        """What happened to own requests since it was asked last, if the product shares it."""
        told, self._news = self._news, []
        return told

    def hear(self, news: object, now: float) -> None:
        """Book what a peer tells of its requests."""
        match news:
            case _Sent(ask, instance_id, hit_tokens):
                if (seen := self.seen.get(instance_id)) is not None:
                    self._book(ask, seen, hit_tokens, now, own=False)
            case _Answering(ask, instance_id):
                if (trip := self._trips.get((ask.id, instance_id))) is not None:
                    self._answer(trip, now)
            case _Over(ask, instance_id):
                if (trip := self._trips.get((ask.id, instance_id))) is not None:
                    self._close(trip, None, now)

    def _candidates(self, ask: Ask, now: float) -> list[Seen]:
        """Instances that can take a request, in the order of their first reports."""
        arrival = ask.arrival
        model, context_tokens = arrival.model, arrival.prompt_tokens + (arrival.max_output_tokens or 1)
        able = []
        for seen in self.seen.values():
            instance = seen.instance
            longest = instance.max_model_len_tokens
            if instance.lifecycle is Lifecycle.READY and model in instance.models and self._takes(instance):
                if longest is not None and context_tokens > longest:
                    continue
                if self._poll_s:
                    self._latest_by_poll(instance.id, now)
                able.append(seen)
        whole = [seen for seen in able if seen.ejected_until_s <= now]
        return whole or able

    def _latest_by_poll(self, instance_id: str, now: float) -> None:
        """Let the router see what was published before its last poll."""
        seen = self.seen.get(instance_id)
        if seen is None or not self._poll_s:
            return
        poll_at_s = floor((now - self._phase_s) / self._poll_s) * self._poll_s + self._phase_s
        if poll_at_s > seen.polled_at_s:
            seen.polled_at_s = poll_at_s
            seen.load, seen.observed_at_s = self._latest[instance_id]

    def _book(self, ask: Ask, seen: Seen, hit_tokens: int, now: float, own: bool) -> None:
        """Book a request at an instance."""
        key = (ask.id, seen.id)
        if (old := self._trips.get(key)) is not None:
            self._close(old, None, now)  # a retry that came back to the same instance
        prefill_tokens = ask.arrival.prompt_tokens - hit_tokens
        trip = Trip(ask, seen, now, hit_tokens, prefill_tokens, seen.in_flight, own)
        self._trips[key] = trip
        seen.in_flight += 1
        seen.prefill_tokens += prefill_tokens
        if self._on_sent is not None:
            self._on_sent(trip, now)

    def _answer(self, trip: Trip, now: float) -> None:
        """A request's prefill is over."""
        if trip.answering:
            return
        trip.answering = True
        trip.seen.prefill_tokens -= trip.prefill_tokens
        if self._on_first_token is not None:
            self._on_first_token(trip, now)

    def _close(self, trip: Trip, ending: Ending | None, now: float) -> None:
        """A request is over, or never happened as booked."""
        del self._trips[trip.ask.id, trip.seen.id]
        trip.seen.in_flight -= 1
        if not trip.answering:
            trip.seen.prefill_tokens -= trip.prefill_tokens
        if self._on_over is not None:
            self._on_over(trip, ending, now)


def _has_lost_its_cache(before: Instance, after: Instance) -> bool:
    """Whether a report tells that the engine began anew, or is gone."""
    serving = (Lifecycle.READY, Lifecycle.DRAINING)
    return before.lifecycle in serving and (after.lifecycle not in serving or before.incarnation != after.incarnation)


def blocks_for(setting: Setting, tokens: int) -> int:
    """Blocks of the traffic's own size that hold so many tokens: a product's capacity, whatever it counts in."""
    return max(1, tokens // setting.block_size_tokens)
