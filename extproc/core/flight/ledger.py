"""Work in flight on each instance: what the engine reported at time T plus what was sent and seen to end after T.

The router's own reservations and those that its peers tell of stand side by side. No request is counted twice: of
every report the part that no reservation explains is kept as *foreign* work (clients that pass no router). Between
reports only the reservations move. A gauge that lags or reads 0 can therefore never hide what was sent.

What a peer tells comes a little late, perhaps after a report that shows it already. The reports' gauges are kept for
that: a late word changes what they are explained by, as if it had been known in time.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from itertools import accumulate
from typing import TYPE_CHECKING

import msgspec

from extproc.core.flight.work import (
    IDLE,
    OURS,
    Ended,
    Gauges,
    Place,
    Reservation,
    Work,
    block_size_tokens,
    line_up,
    settle,
)
from extproc.core.values.instance import Instance

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

_REMEMBER_S = 30.0  # an engine's report is never so late that requests which ended before this matter


class Ledger:
    """Reservations and reports of all instances, by `Instance.key`."""

    def __init__(self) -> None:
        self.on_own_change: Callable[[str, float | None], None] | None = None
        """Called with the id of each reservation of ours that was made, moved or ended; and when, if that is known."""
        self.on_adapter: Callable[[Place, str, str, float], None] | None = None
        """Called for each reservation with an adapter: its place and instance, the adapter, and since when; the
        instance is "" when it is over there."""
        self.on_peer: Callable[[str, Reservation, float], None] | None = None
        """Called with the instance and each new reservation that a peer tells of, and when its word came."""
        self.changed: set[str] = set()
        """Instance keys whose work has changed; emptied by the one reader that keeps columns of it (`core.columns`)."""
        self.reader: object | None = None  # that one
        self._work: dict[str, Work] = {}
        self._where: dict[str, dict[str, str]] = {OURS: {}}  # router -> request id -> instance key

    def read_by(self, reader: object) -> None:
        """Have one reader alone take what has changed. Raises ValueError for another, which would miss all before."""
        if self.reader is not None and self.reader is not reader:
            raise ValueError("the changes of a ledger go to one reader, and it has another")
        self.reader = reader

    def work(self, key: str) -> Work:
        """What is in flight on an instance; an idle one if it is not known."""
        return self._work.get(key, IDLE)

    def booked(self, router: str = OURS) -> Mapping[str, str]:
        """Instance keys of a router's open requests by their ids; changes with the ledger."""
        return self._where.get(router, {})

    def reservation(self, request_id: str, router: str = OURS) -> Reservation:
        """An open request. Raises KeyError if it is none."""
        return self._work[self._where[router][request_id]].active[router, request_id]

    def prefill_left_s(self, request_id: str, now: float) -> float:
        """Seconds of an open request's prompt that are not computed yet, as far as we know. Raises KeyError."""
        work = self._work[self._where[OURS][request_id]]
        return _undone_s(work.active[OURS, request_id], work.prefilled_at_s[OURS, request_id], now)

    def reserve(self, key: str, reservation: Reservation, now: float | None = None) -> None:
        """Book a request on an instance, at once visible to the next decision.

        `now` tells when the word of it came, if that is later than it was taken; its `prefill_s` is what was left then.
        """
        now = reservation.taken_s if now is None else now
        self._enter(key, reservation, now)
        if reservation.router != OURS and self.on_peer is not None:
            self.on_peer(key, reservation, now)

    def _enter(self, key: str, reservation: Reservation, now: float) -> None:
        router, request_id = reservation.router, reservation.request_id
        work = self._written(key)
        self.changed.add(key)
        begins_s = max(work.prefill_free_at_s, now)
        done_at_s = begins_s + reservation.prefill_s
        work.active[router, request_id] = reservation
        work.prefilled_at_s[router, request_id] = done_at_s
        work.booked_tokens += reservation.tokens
        work.booked_prompt_tokens += reservation.prompt_tokens
        work.held_tokens += reservation.uncached_tokens
        work.pace.add(reservation.prefill_s, reservation.taken_s)
        if reservation.prefill_s:
            work.prefill_free_at_s = done_at_s
        if work.gauges.explain(reservation.taken_s, 1, reservation.prompt_tokens):
            settle(work)
        self._tell_adapter((router, request_id), key, reservation)
        if router == OURS:
            work.own_requests += 1
            self._where[OURS][request_id] = key
            self._tell(request_id, reservation.taken_s)
        else:
            self._where.setdefault(router, {})[request_id] = key
            work.peer_prefill_s += reservation.prefill_s
            work.peer_prompts += reservation.prefill_s > 0.0
            work.peer_sent.append((reservation.taken_s, reservation.prefill_s))

    def release(self, request_id: str, now: float, router: str = OURS) -> None:
        """End a reservation. Unknown ids are ignored, so that it may be called twice.

        `now` is when it ended, which for a peer's lies a little before its word came.
        """
        self.release_all(((request_id, now),), router)

    def release_all(self, ends: Iterable[tuple[str, float]], router: str = OURS) -> None:
        """End many reservations, each with the time of its end, at the price of one look at each instance."""
        where = self._where.get(router, {})
        aborted: dict[str, list[tuple[float, float]]] = {}
        for request_id, now in ends:
            key = where.pop(request_id, None)
            if key is None:
                continue
            work = self._work[key]
            self.changed.add(key)
            gone, done_at_s = _take_out(work, (router, request_id), now)
            self._tell_adapter((router, request_id), "", gone)
            if undone_s := _undone_s(gone, done_at_s, now):
                aborted.setdefault(key, []).append((done_at_s, undone_s))
            if router == OURS:
                work.own_requests -= 1
                self._tell(request_id, now)
        for key, undone in aborted.items():
            _move_up(self._work[key], undone)

    def move(self, request_id: str, key: str, now: float, router: str = OURS) -> bool:
        """Book a request where it really went: Envoy retried it on another instance. True if it was elsewhere.

        That shows when its answer begins there, so that its prompt is computed.
        """
        origin = self._where.get(router, {}).get(request_id)
        if origin is None or origin == key:
            return False
        reservation = self._work[origin].active[router, request_id]
        left = self._work[origin]
        # As if it had ended when it was sent: no report has counted it there.
        _, done_at_s = _take_out(left, (router, request_id), reservation.taken_s)
        self._tell_adapter((router, request_id), "", reservation)
        if undone_s := _undone_s(reservation, done_at_s, now):
            _move_up(left, [(done_at_s, undone_s)])
        if router == OURS:
            left.own_requests -= 1
        self._enter(key, msgspec.structs.replace(reservation, prefill_s=0.0), reservation.taken_s)
        return True

    def report(self, instance: Instance, observed_at_s: float) -> None:
        """Take an engine's own gauges, read at `observed_at_s` on our clock. Older reports are ignored."""
        work = self._written(instance.key)
        if observed_at_s <= work.gauges.observed_at_s:
            return
        self.changed.add(instance.key)
        _drop_until(work.ended, observed_at_s)
        sent = [r for r in work.active.values() if r.taken_s < observed_at_s]
        ended = [e for e in work.ended if e.taken_s < observed_at_s < e.released_s]
        load = instance.load
        at_prompts = load.prefilling or 0
        work.gauges = Gauges(
            observed_at_s,
            None if load.running is None else max(0, load.running - at_prompts),
            None if load.waiting is None else load.waiting + at_prompts,
            load.prefilling,
            _held_tokens(instance),
            len(sent) + len(ended),
            sum(r.prompt_tokens for r in sent) + sum(e.tokens for e in ended),
        )
        settle(work)
        line_up(work, len(ended))

    def forget(self, key: str) -> None:
        """Drop all that is known of an incarnation that has ended."""
        work = self._work.pop(key, None)
        self.changed.add(key)
        for (router, request_id), reservation in work.active.items() if work else ():
            self._tell_adapter((router, request_id), "", reservation)
            self._where[router].pop(request_id, None)
            if router == OURS:
                self._tell(request_id, None)

    def drop_router(self, router: str, now: float) -> None:
        """End all reservations of a peer that is not heard any more. What still runs shows as foreign work."""
        self.release_all([(request_id, now) for request_id in self.booked(router)], router)
        if router != OURS:
            self._where.pop(router, None)

    def tidy(self, now: float) -> None:
        """Drop instances that only peers told of, and that are empty again."""
        for key in [key for key, work in self._work.items() if _is_empty(work, now)]:
            del self._work[key]
            self.changed.add(key)

    def in_flight(self) -> dict[str, int]:
        """Our own open requests by instance key; instances without any are left out."""
        return {key: work.own_requests for key, work in self._work.items() if work.own_requests}

    def _written(self, key: str) -> Work:
        """What is in flight on an instance, to be changed. No `setdefault`: to make a `Work` in vain takes 4 µs."""
        work = self._work.get(key)
        if work is None:
            work = self._work[key] = Work()
        return work

    def _tell_adapter(self, place: Place, key: str, reservation: Reservation) -> None:
        if reservation.adapter and self.on_adapter is not None:
            self.on_adapter(place, key, reservation.adapter, reservation.taken_s)

    def _tell(self, request_id: str, at_s: float | None) -> None:
        if self.on_own_change is not None:
            self.on_own_change(request_id, at_s)


def _held_tokens(instance: Instance) -> float | None:
    """KV tokens that its requests hold by its own word; None if it does not tell."""
    if instance.load.kv_usage is None or instance.kv_blocks is None:
        return None
    return instance.load.kv_usage * instance.kv_blocks * block_size_tokens(instance)


def _take_out(work: Work, place: Place, now: float) -> tuple[Reservation, float]:
    """The reservation that ends, and when its prompt would have been computed."""
    gone = work.active.pop(place)
    work.booked_tokens -= gone.tokens
    work.booked_prompt_tokens -= gone.prompt_tokens
    held_tokens = gone.uncached_tokens
    if work.gauges.held_tokens is not None and gone.taken_s < work.gauges.observed_at_s:
        held_tokens += gone.output_tokens  # a report has counted what it had grown by
    work.held_tokens = max(0.0, work.held_tokens - held_tokens)
    if now > work.gauges.observed_at_s:
        work.ended.append(Ended(gone.taken_s, now, gone.tokens))
        _drop_until(work.ended, now - _REMEMBER_S)
    elif work.gauges.explain(gone.taken_s, -1, -gone.prompt_tokens):
        settle(work)  # the engine had it no longer
    return gone, work.prefilled_at_s.pop(place)


def _undone_s(reservation: Reservation, done_at_s: float, now: float) -> float:
    return min(reservation.prefill_s, max(0.0, done_at_s - now))


def _move_up(work: Work, undone: list[tuple[float, float]]) -> None:
    """Compute the others' prompts sooner by those, as (done at, seconds left), that were aborted before them."""
    undone.sort()
    aborted_s = [each for each, _ in undone]
    sums_s = [0.0, *accumulate(left_s for _, left_s in undone)]
    work.prefill_free_at_s -= sums_s[-1]
    work.prefilled_at_s = {
        place: done_at_s - sums_s[bisect_left(aborted_s, done_at_s)] for place, done_at_s in work.prefilled_at_s.items()
    }


def _drop_until(ended: deque[Ended], released_s: float) -> None:
    while ended and ended[0].released_s <= released_s:
        ended.popleft()


def _is_empty(work: Work, now: float) -> bool:
    if work.active or work.gauges.observed_at_s > float("-inf"):
        return False
    return not work.ended or work.ended[-1].released_s <= now - _REMEMBER_S
