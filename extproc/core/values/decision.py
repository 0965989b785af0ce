"""Where a request goes, what that costs, and why the others were turned down.

These are msgspec structs, since each decision makes a dozen of them: a `Cost` of its fields takes 0.05 µs so and
2.8 µs as a frozen dataclass.
"""

from __future__ import annotations

from enum import StrEnum
from itertools import takewhile
from operator import add

import msgspec

from extproc.core.values.instance import Instance, Lifecycle


class Reason(StrEnum):
    """Why an instance, or the whole request, was turned down; those that pass with time stand last."""

    MODEL_NOT_SERVED = "model_not_served"
    TENANT_NOT_ALLOWED = "tenant_not_allowed"  # the model is for other tenants
    QUALITY_TOO_LOW = "quality_too_low"  # the model's, for the floor that is set
    COST_TOO_HIGH = "cost_too_high"  # of the tokens on that model, for the ceiling that is set
    OUTSIDE_SUBSET = "outside_subset"  # the gateway allows some endpoints, and it is none of them
    CAPABILITY_MISSING = "capability_missing"
    PLACEMENT_UNREADABLE = "placement_unreadable"  # a demand that we do not understand: nobody is known to fulfil it
    ZONE_NOT_ALLOWED = "zone_not_allowed"
    TAG_MISSING = "tag_missing"
    HARDWARE_NOT_ALLOWED = "hardware_not_allowed"
    PRECISION_NOT_ALLOWED = "precision_not_allowed"
    TOPOLOGY_NOT_ALLOWED = "topology_not_allowed"
    ROLE_TAKES_HALF = "role_takes_half"  # it takes one half of a request, and no pair could be made
    CONTEXT_TOO_LONG = "context_too_long"
    KV_TOO_SMALL = "kv_too_small"
    NOT_READY = "not_ready"
    MODEL_COLD = "model_cold"  # the model is known, and loaded nowhere
    MODEL_LOADING = "model_loading"  # an instance is starting with it
    COOLING_DOWN = "cooling_down"
    STALE = "stale"
    PUSHED_BACK = "pushed_back"  # it answered 429 or 503 a moment ago
    AT_CONCURRENCY_LIMIT = "at_concurrency_limit"
    QUEUE_TOO_LONG = "queue_too_long"
    KV_FULL = "kv_full"  # too few KV blocks are free now, as far as the operator lets them be filled
    TPOT_BEYOND_BOUND = "tpot_beyond_bound"  # its tokens would come too slowly for its class, or another's
    TTFT_BEYOND_BOUND = "ttft_beyond_bound"  # its first token would come too late for its class
    PREFIX_ELSEWHERE = "prefix_elsewhere"  # others that are held lose less of their prefixes there
    DEADLINE_UNREACHABLE = "deadline_unreachable"  # it has waited so long that nobody can keep its bounds any more
    HELD_TOO_LONG = "held_too_long"  # as long as its class may be held
    HOLDING_FULL = "holding_full"  # no room to hold it, or it made room for one that goes before it
    NO_INSTANCE = "no_instance"  # nothing is registered at all


class Why(StrEnum):
    """Why an instance that drains does not take a request as a continuation."""

    DRAINS_TOO_LONG = "drains_too_long"  # seconds, as many as are allowed and as it has drained for
    IDLE = "idle"  # requests, the one that it would need to have and the none that it has: it is free to be stopped
    PREFIX_TOO_SHORT = "prefix_too_short"  # tokens that it would have to hold alone of the prompt, and those it does
    TOO_MUCH_WORK = "too_much_work"  # tokens yet to be computed, of prompt and answer, and those that are allowed


class NoContinuation(msgspec.Struct, frozen=True):
    """The first rule of continuations that a request fails on an instance that drains, with its two numbers."""

    why: Why
    needs: float
    has: float


class Rejection(msgspec.Struct, frozen=True):
    """A hard constraint that an instance fails, with the two numbers (or names) that clash."""

    instance_id: str
    reason: Reason
    needs: str | float | tuple[str, ...]
    has: str | float | tuple[str, ...]
    continuation: NoContinuation | None = None  # of one that drains, where it might have taken the request


_PLACES = {reason: float(place) for place, reason in enumerate(Reason)}


def nearness(rejection: Rejection) -> float:
    """How near an instance came to serving, by the order of reasons: the higher, the nearer."""
    # One that is stopped will not be there later: that it had room is no reason to come again with what is too long.
    # In place of one that drains, mostly, another comes.
    if rejection.reason is Reason.NOT_READY and rejection.has == Lifecycle.STOPPED.value:
        return _PLACES[Reason.CONTEXT_TOO_LONG] - 0.5
    return _PLACES[rejection.reason]


class Cost(msgspec.Struct, frozen=True, gc=False):
    """Seconds that a request costs on one instance, term by term, and what they are worth together.

    Made by `Prices.candidate` from values in this order; whoever else makes one names them.
    """

    total_s: float  # all of them as the class of the request weighs them: what instances are compared by
    queue_s: float  # work that is ahead of the request
    prefill_s: float  # computing the prompt tokens that the instance does not hold
    decode_s: float  # producing the expected output in the batch it would join, and waiting for its host meanwhile
    loading_s: float = 0.0  # until its adapter is in the GPU: waiting for a slot, and loading
    communication_s: float = 0.0  # reaching the instance, and waiting for its host until the first token
    pressure_s: float = 0.0  # expected loss to preemption as KV blocks run out
    harm_s: float = 0.0  # by which others are delayed, summed over them
    tail_s: float = 0.0  # what waiting for longer than nearly all others counts more
    miss_s: float = 0.0  # what its seconds count more as its tokens may come slower than its class calls good
    doubt_s: float = 0.0  # for what the instance last told is old
    start_s: float = 0.0  # while the instance has just become Ready: keeps the crowd away
    money_s: float = 0.0  # waiting that would be worth what the request costs there

    @property
    def ttft_s(self) -> float:
        """Predicted time to the first token."""
        return self.queue_s + self.loading_s + self.prefill_s + self.communication_s

    def plus(self, other: Cost) -> Cost:
        """The sum of two costs, term by term."""
        return Cost(*map(add, msgspec.structs.astuple(self), msgspec.structs.astuple(other)))


class CacheSource(StrEnum):
    """How it is believed to be known what an instance holds of a prompt."""

    LEARNED = "learned"  # from where earlier requests were sent
    TOLD = "told"  # by its engine's own events


class Claims(msgspec.Struct, frozen=True):
    """Prompt tokens that an instance holds, as each source has it, whichever is believed."""

    learned_tokens: int = 0
    told_tokens: int | None = None  # None: its engine tells nothing, or the prompt's ids are not known
    recent_tokens: int = 0  # sent there a moment ago: perhaps computed by now, perhaps not


class Candidate(msgspec.Struct, frozen=True):
    """An instance that can serve the request, and what that would cost."""

    instance: Instance
    cost: Cost
    cached_tokens: int  # prompt tokens whose KV the instance is believed to hold
    tpot_s: float  # predicted seconds for each output token
    claims: Claims = Claims()
    handed_tokens: int = 0  # prompt tokens whose KV it takes over from the one that computes them


class Way(msgspec.Struct, frozen=True):
    """How a request can be served: by one instance alone, or by a pair."""

    candidate: Candidate
    partner: Candidate | None = None  # computes the prompt for it, None: it does all by itself


class Decision(msgspec.Struct, frozen=True):
    """Where a request goes. `chosen` is None when no instance can serve it; `rejected` then says why."""

    chosen: Candidate | None
    alternatives: tuple[Candidate, ...] = ()  # next best, in the order in which to retry
    rejected: tuple[Rejection, ...] = ()
    partner: Candidate | None = None  # computes the prompt for the chosen one, or for an alternative
    others: tuple[Way, ...] = ()  # that were weighed where pairs can be made, and to which no retry can go

    @property
    def candidates(self) -> tuple[Candidate, ...]:
        """The chosen one and the alternatives, in this order."""
        return () if self.chosen is None else (self.chosen, *self.alternatives)

    @property
    def second(self) -> Way | None:
        """The next best way of all, whether or not a retry can go there; None if there is none."""
        ways = [Way(each, self.partner) for each in self.alternatives[:1]]
        return min((*ways, *self.others), key=_total_s, default=None)

    @property
    def waived(self) -> Reason | None:
        """The constraint that the chosen one fails, waived since no better one was left; None if there is none."""
        chosen = self.chosen
        if chosen is None:
            return None
        return next((each.reason for each in self.rejected if each.instance_id == chosen.instance.id), None)

    @property
    def peers(self) -> tuple[Candidate, ...]:
        """The first candidates, that fail what the chosen one fails: mostly nothing.

        Those after them are asked only for a retry, where something better was tried before.
        """
        failed = {each.instance_id: each.reason for each in self.rejected}
        waived = self.waived
        return tuple(takewhile(lambda each: failed.get(each.instance.id) is waived, self.candidates))

    def with_chosen(self, place: int) -> Decision:
        """The same with another of its candidates chosen, by its place among them."""
        ranked = list(self.candidates)
        chosen = ranked.pop(place)
        return Decision(chosen, tuple(ranked), self.rejected, self.partner, self.others)

    @property
    def reason(self) -> Reason | None:
        """The reason that stands nearest to success when nothing could be chosen, else None."""
        if self.chosen is not None:
            return None
        if not self.rejected:
            return Reason.NO_INSTANCE
        return max(self.rejected, key=nearness).reason

    @property
    def nearness(self) -> float:
        """`nearness` of the constraint that is waived, or of what stands nearest to success; the last for a choice."""
        waived = self.waived
        if waived is not None:
            return _PLACES[waived]
        if self.chosen is not None or not self.rejected:
            return _PLACES[Reason.NO_INSTANCE]
        return max(map(nearness, self.rejected))


def _total_s(way: Way) -> float:
    return way.candidate.cost.total_s
