"""Work in flight on one instance: reservations, what its engine reported, and what follows from both.

Engines compute prompts first come first served. So of the requests that were sent, those that a report counts as
waiting are the last ones: their prompts, and all sent after the report, are still to be computed. That sets the
backlog right with every report, however wrong the predicted times were.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import msgspec

from extproc.core.flight.pace import Pace
from extproc.core.values.instance import Instance

DEFAULT_BLOCK_SIZE_TOKENS = 16  # vLLM's default on GPUs; used where an engine does not tell
DEFAULT_STEP_TOKENS = 8192  # of one engine step: vLLM's default on GPUs of 80 GB

_SENT = 64  # prompts of peers that are remembered

OURS = ""  # in the place of a router's name: this router

Place = tuple[str, str]  # router and request id


class Reservation(msgspec.Struct, frozen=True):
    """One request that a router sent: the room and the time it takes on its instance. Times are on our clock."""

    request_id: str  # unique among those of its router
    taken_s: float
    prefill_s: float
    prompt_tokens: int
    output_tokens: int
    uncached_tokens: int  # of the prompt: KV blocks that it needs for itself
    router: str = OURS
    adapter: str = ""  # LoRA adapter that it needs in the GPU
    tenant: str = ""  # whose debt it adds to (`core.admission`)

    @property
    def tokens(self) -> int:
        """Tokens of its context at its end."""
        return self.prompt_tokens + self.output_tokens


class Ended(msgspec.Struct, frozen=True, gc=False):
    """A request that is over; a report about the time before its end still counts it."""

    taken_s: float
    released_s: float
    tokens: int


@dataclass(slots=True)
class Gauges:
    """An engine's own word, and how much of it reservations explain.

    Where it tells which of its running requests are still at their prompts, those count as waiting here.
    """

    observed_at_s: float = float("-inf")
    running: int | None = 0  # None: it does not tell
    waiting: int | None = None  # None: it does not tell
    prefilling: int | None = None  # of `waiting`, whose prompts are being computed; None: it does not tell
    held_tokens: float | None = None
    explained_requests: int = 0
    explained_tokens: int = 0

    def explain(self, taken_s: float, requests: int, tokens: int) -> bool:
        """Count a late word of requests that were taken (or, negative, over) before the gauges were read."""
        if taken_s >= self.observed_at_s:
            return False
        self.explained_requests += requests
        self.explained_tokens += tokens
        return True


@dataclass(slots=True)
class Work:
    """All that is in flight on one incarnation of an instance. Read by the cost, written by the ledger only."""

    active: dict[Place, Reservation] = field(default_factory=dict)  # in the order in which they were sent
    prefilled_at_s: dict[Place, float] = field(default_factory=dict)  # when each prompt will be computed
    ended: deque[Ended] = field(default_factory=deque)  # not yet covered by a report
    gauges: Gauges = field(default_factory=Gauges)
    pace: Pace = field(default_factory=Pace)  # of what is sent to it
    foreign_running: int = 0
    foreign_waiting: int = 0
    foreign_kv_tokens: float = 0.0
    peer_prefill_s: float = 0.0  # of all prompts that other routers ever sent; only grows, as does their number
    peer_prompts: int = 0
    peer_sent: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=_SENT))
    """When the latest of them were sent, and the seconds that each takes."""
    own_requests: int = 0  # of `active`, those that this router sent
    booked_tokens: int = 0  # sum of `Reservation.tokens`
    booked_prompt_tokens: int = 0
    held_tokens: float = 0.0  # KV tokens that requests hold, or will as soon as they are let in
    prefill_free_at_s: float = 0.0  # when the prompts that were sent will have been computed

    @property
    def requests(self) -> int:
        """Requests on the instance, running or waiting."""
        return len(self.active) + self.foreign_running + self.foreign_waiting

    @property
    def peer_requests(self) -> int:
        """Requests that other routers sent."""
        return len(self.active) - self.own_requests

    @property
    def context_tokens(self) -> float:
        """Tokens that the decode batch looks at, each booked request taken half-way through its output."""
        return (self.booked_prompt_tokens + self.booked_tokens) / 2 + self.foreign_kv_tokens

    @property
    def growth_tokens(self) -> int:
        """KV tokens by which the booked requests are still expected to grow: half of their answers."""
        return (self.booked_tokens - self.booked_prompt_tokens) // 2

    @property
    def mean_output_tokens(self) -> float:
        """Expected length of a booked answer; 0 if there is none."""
        return (self.booked_tokens - self.booked_prompt_tokens) / len(self.active) if self.active else 0.0

    def prefill_backlog_s(self, now: float) -> float:
        """Seconds of prompt computation that was sent and is not done yet."""
        return max(0.0, self.prefill_free_at_s - now)

    def decoding(self, now: float) -> tuple[int, float]:
        """Requests whose prompts are computed, those of unknown senders included; and when there will be more."""
        if self.prefill_free_at_s <= now:
            return len(self.active) + self.foreign_running, float("inf")
        coming_s = [done_at_s for done_at_s in self.prefilled_at_s.values() if done_at_s > now]
        return len(self.active) - len(coming_s) + self.foreign_running, min([self.prefill_free_at_s, *coming_s])


IDLE = Work()  # what an instance that nobody has sent to looks like; never written


def settle(work: Work) -> None:
    """Work out what the gauges show beyond what reservations explain."""
    gauges = work.gauges
    waiting = gauges.waiting or 0
    unexplained = max(0, (gauges.running or 0) + waiting - gauges.explained_requests)
    work.foreign_waiting = min(unexplained, waiting)
    work.foreign_running = unexplained - work.foreign_waiting
    # Without foreign requests what is held is booked, however far our own prompt estimate is off.
    held_tokens = gauges.held_tokens or 0.0
    work.foreign_kv_tokens = max(0.0, held_tokens - gauges.explained_tokens) if unexplained else 0.0


def line_up(work: Work, over_since: int) -> None:
    """Set backlog and held tokens right after a report; `over_since` of the requests that it counts have ended."""
    gauges = work.gauges
    at_s = gauges.observed_at_s
    foreign = work.foreign_running + work.foreign_waiting
    # What peers told of late, and what was retried, stands behind requests that were sent after it.
    order = sorted(work.active, key=lambda place: work.active[place].taken_s)
    sent = [place for place in order if work.active[place].taken_s < at_s]
    seen = len(sent)
    if gauges.running is not None:
        seen = min(seen, max(0, gauges.running + (gauges.waiting or 0) - foreign - over_since))
    there, late = order[:seen], order[seen:]
    if gauges.waiting is not None:
        own_waiting = min(len(there), gauges.waiting - work.foreign_waiting)
        begun, queued = there[: len(there) - own_waiting], there[len(there) - own_waiting :]
        free_at_s = at_s
        for place in begun[:-1]:
            work.prefilled_at_s[place] = min(work.prefilled_at_s[place], at_s)
        for last in begun[-1:]:  # it may still be computed, and those behind it wait for that
            left_s = _left_s(work, last, at_s) if gauges.prefilling is None else 0.0
            free_at_s = at_s + left_s
            work.prefilled_at_s[last] = min(work.prefilled_at_s[last], free_at_s)
        at_work = queued[:1] if gauges.prefilling else []
        for first in at_work:  # it is not done, whatever was predicted: then half of it may be
            free_at_s = at_s + (_left_s(work, first, at_s) or work.active[first].prefill_s / 2)
            work.prefilled_at_s[first] = free_at_s
        for place in (*queued[len(at_work) :], *late):
            reservation = work.active[place]
            free_at_s = max(free_at_s, reservation.taken_s) + reservation.prefill_s
            work.prefilled_at_s[place] = free_at_s
        work.prefill_free_at_s = free_at_s
    else:
        queued = []
    if gauges.held_tokens is not None:
        coming = sum([work.active[place].uncached_tokens for place in (*queued, *late)])
        work.held_tokens = gauges.held_tokens + coming


def _left_s(work: Work, place: Place, now: float) -> float:
    return min(work.active[place].prefill_s, max(0.0, work.prefilled_at_s[place] - now))


def block_size_tokens(instance: Instance) -> int:
    """Tokens a KV block holds on this instance."""
    return instance.block_size_tokens or DEFAULT_BLOCK_SIZE_TOKENS


def ranks(instance: Instance) -> int:
    """Engines behind its address, each with its own batch and KV blocks: an answer is one's alone."""
    return max(1, instance.data_parallel)


def step_tokens(instance: Instance) -> int:
    """Tokens that one step of its engine computes at the most."""
    return max(1, instance.step_tokens or DEFAULT_STEP_TOKENS)
