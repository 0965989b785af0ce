"""Work in flight on each instance: what the engine reported at time T plus what we sent and saw end after T.

No request is counted twice: at every report the part of the engine's gauges that our own reservations cannot explain
is kept as *foreign* work (other clients, other routers). Between reports only our own count moves. A gauge that lags
or reads 0 can therefore never hide what we have sent.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace

from extproc.core.model import Instance

_REMEMBER_S = 30.0  # an engine's report is never so late that requests which ended before this matter

DEFAULT_BLOCK_SIZE_TOKENS = 16  # vLLM's default on GPUs; used where an engine does not tell


@dataclass(frozen=True, slots=True)
class Reservation:
    """One request that we sent: the room and the time it takes on its instance."""

    request_id: str
    taken_s: float
    prefill_s: float
    prompt_tokens: int
    output_tokens: int
    prefill_done_at_s: float = 0.0  # set by the ledger: when its prompt will have been computed

    @property
    def tokens(self) -> int:
        """KV tokens it will hold at its end."""
        return self.prompt_tokens + self.output_tokens


@dataclass(frozen=True, slots=True)
class Ended:
    """A request of ours that is over; a report about the time before its end still counts it."""

    taken_s: float
    released_s: float
    tokens: int


@dataclass(slots=True)
class Work:
    """All that is in flight on one incarnation of an instance. Read by the cost, written by the ledger only."""

    active: dict[str, Reservation] = field(default_factory=dict)
    ended: deque[Ended] = field(default_factory=deque)  # not yet covered by a report, first released first
    reported_at_s: float = float("-inf")
    foreign_running: int = 0
    foreign_waiting: int = 0
    foreign_kv_tokens: float = 0.0
    own_tokens: int = 0  # sum of `Reservation.tokens`
    own_prompt_tokens: int = 0
    prefill_free_at_s: float = 0.0  # when the prompts we sent will have been computed

    @property
    def requests(self) -> int:
        """Requests on the instance, running or waiting."""
        return len(self.active) + self.foreign_running + self.foreign_waiting

    @property
    def kv_tokens(self) -> float:
        """KV tokens that will be held once every request has grown to its expected end."""
        return self.own_tokens + self.foreign_kv_tokens

    @property
    def context_tokens(self) -> float:
        """KV tokens of the decode batch, each of our requests taken half-way through its output."""
        return (self.own_prompt_tokens + self.own_tokens) / 2 + self.foreign_kv_tokens

    def prefill_backlog_s(self, now: float) -> float:
        """Seconds of prompt computation that we sent and that is not done yet."""
        return max(0.0, self.prefill_free_at_s - now)


IDLE = Work()  # what an instance that nobody has sent to looks like; never written


class Ledger:
    """Reservations and reports of all instances, by `Instance.key`."""

    def __init__(self) -> None:
        self._work: dict[str, Work] = {}
        self._where: dict[str, str] = {}  # request id -> instance key

    def work(self, key: str) -> Work:
        """What is in flight on an instance; an idle one if it is not known."""
        return self._work.get(key, IDLE)

    def reserve(self, key: str, reservation: Reservation) -> None:
        """Book a request on an instance, at once visible to the next decision."""
        work = self._work.setdefault(key, Work())
        done_at_s = max(work.prefill_free_at_s, reservation.taken_s) + reservation.prefill_s
        work.active[reservation.request_id] = replace(reservation, prefill_done_at_s=done_at_s)
        work.own_tokens += reservation.tokens
        work.own_prompt_tokens += reservation.prompt_tokens
        work.prefill_free_at_s = done_at_s
        self._where[reservation.request_id] = key

    def release(self, request_id: str, now: float) -> None:
        """End a reservation. Unknown ids are ignored, so that it may be called twice."""
        key = self._where.pop(request_id, None)
        if key is None:
            return
        work = self._work[key]
        gone = work.active.pop(request_id)
        work.own_tokens -= gone.tokens
        work.own_prompt_tokens -= gone.prompt_tokens
        work.ended.append(Ended(gone.taken_s, now, gone.tokens))
        _drop_until(work.ended, now - _REMEMBER_S)
        undone_s = min(gone.prefill_s, max(0.0, gone.prefill_done_at_s - now))
        if undone_s:  # it was aborted; those behind it move up
            work.prefill_free_at_s -= undone_s
            for behind in work.active.values():
                if behind.prefill_done_at_s > gone.prefill_done_at_s:
                    done_at_s = behind.prefill_done_at_s - undone_s
                    work.active[behind.request_id] = replace(behind, prefill_done_at_s=done_at_s)

    def move(self, request_id: str, key: str) -> None:
        """Book a request where it really went: Envoy retried it on another instance."""
        origin = self._where.get(request_id)
        if origin is None or origin == key:
            return
        reservation = self._work[origin].active[request_id]
        self.release(request_id, reservation.taken_s)
        self.reserve(key, reservation)

    def report(self, instance: Instance, observed_at_s: float) -> None:
        """Take an engine's own gauges, read at `observed_at_s` on our clock. Older reports are ignored."""
        work = self._work.setdefault(instance.key, Work())
        if observed_at_s <= work.reported_at_s:
            return
        work.reported_at_s = observed_at_s
        _drop_until(work.ended, observed_at_s)
        ours = sum(1 for r in work.active.values() if r.taken_s <= observed_at_s)
        ours_prompt = sum(r.prompt_tokens for r in work.active.values() if r.taken_s <= observed_at_s)
        for end in work.ended:
            if end.taken_s <= observed_at_s:
                ours += 1
                ours_prompt += end.tokens
        load = instance.load
        unexplained = max(0, (load.running or 0) + (load.waiting or 0) - ours)
        work.foreign_waiting = min(unexplained, load.waiting or 0)
        work.foreign_running = unexplained - work.foreign_waiting
        held_tokens = (load.kv_usage or 0.0) * (instance.kv_blocks or 0) * block_size_tokens(instance)
        # Without foreign requests what is held is ours, however far our own prompt estimate is off.
        work.foreign_kv_tokens = max(0.0, held_tokens - ours_prompt) if unexplained else 0.0

    def forget(self, key: str) -> None:
        """Drop all that is known of an incarnation that has ended."""
        work = self._work.pop(key, None)
        for request_id in work.active if work else ():
            self._where.pop(request_id, None)

    def in_flight(self) -> dict[str, int]:
        """Our own open requests by instance key; instances without any are left out."""
        return {key: len(work.active) for key, work in self._work.items() if work.active}


def _drop_until(ended: deque[Ended], released_s: float) -> None:
    while ended and ended[0].released_s <= released_s:
        ended.popleft()


def block_size_tokens(instance: Instance) -> int:
    """Tokens a KV block holds on this instance."""
    return instance.block_size_tokens or DEFAULT_BLOCK_SIZE_TOKENS
