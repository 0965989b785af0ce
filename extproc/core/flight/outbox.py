"""What this router has to tell its peers: collects changes of its own reservations and makes batches of them.

Changes of one request between two batches become one: its state when the batch is made. While nothing changes, a
heartbeat carries the sequence number and the count of open requests, by which a peer finds that it missed something;
it then asks for a statement of everything. While no peer is heard there are heartbeats only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from extproc.core.flight.bookings import EVERYONE, MAX_ENTRIES, Batch, Booked, Over, encode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from extproc.core.flight.ledger import Ledger

MAX_CHANGES = 20_000  # beyond, as while Redis is away, a statement tells it in fewer bytes


class Outbox:
    """Batches to be sent, in order, by one router. `name` must differ for every start of a router."""

    def __init__(self, name: str, ledger: Ledger, heartbeat_s: float) -> None:
        self.name = name
        self.on_pending: Callable[[], None] = lambda: None
        """Called when there is something to send before the next heartbeat."""
        self._listened = False
        self._ledger = ledger
        self._heartbeat_s = heartbeat_s
        self._statement_gap_s = heartbeat_s / 4  # many peers that ask at once get one answer
        self._seq = 0
        self._changes: dict[str, float | None] = {}  # request id -> when it changed
        self._asks: set[str] = {EVERYONE}
        self._must_state = True  # nobody knows what we told last
        self._asked = False
        self._stated_at_s = float("-inf")
        self._sent_at_s = float("-inf")
        ledger.on_own_change = self._note

    @property
    def listened(self) -> bool:
        """Whether there is any peer to tell."""
        return self._listened

    @listened.setter
    def listened(self, listened: bool) -> None:
        if listened and not self._listened:
            self.asked()
        self._listened = listened

    @property
    def due_at_s(self) -> float:
        """When `batches` has something to say, if nothing happens before; long past if it has already."""
        if self._must_state or self._changes or self._asks:
            return float("-inf")
        beat_s = self._sent_at_s + self._heartbeat_s
        return min(beat_s, self._stated_at_s + self._statement_gap_s) if self._asked else beat_s

    def ask(self, router: str) -> None:
        """Ask a peer to state all it has."""
        self._asks.add(router)
        self.on_pending()

    def asked(self) -> None:
        """A peer wants to know all we have."""
        self._asked = True
        self.on_pending()

    def lost(self) -> None:
        """Batches may not have arrived, and those of others neither: say everything again, and ask everyone."""
        self._changes.clear()
        self._must_state = True
        self._asks = {EVERYONE}

    def batches(self, now: float) -> list[bytes]:
        """All there is to tell at `now`; empty if nothing is due."""
        if now < self.due_at_s:
            return []
        if self._must_state or (self._asked and now >= self._stated_at_s + self._statement_gap_s):
            made = self._statement(now)
        else:
            made = self._news(now)
        self._changes.clear()
        self._asks.clear()
        self._sent_at_s = now
        return made

    def farewell(self, now: float) -> list[bytes]:
        """The last word: nothing of ours is open any more."""
        self._changes.clear()
        return [encode(self._batch((), (), now, part=1, parts=1, open_requests=0))]

    def _statement(self, now: float) -> list[bytes]:
        self._must_state = self._asked = False
        self._stated_at_s = now
        chunks = list(_chunks(list(self._ledger.booked()))) or [()]
        parts = len(chunks)
        return [
            encode(self._batch(chunk, (), now, part=part, parts=parts, open_requests=self._count(part == parts)))
            for part, chunk in enumerate(chunks, start=1)
        ]

    def _news(self, now: float) -> list[bytes]:
        booked = self._ledger.booked()
        chunks = list(_chunks(list(self._changes))) or [()]
        made = []
        for number, chunk in enumerate(chunks, start=1):
            over = tuple([Over(each, _age_us(self._changes[each], now)) for each in chunk if each not in booked])
            still = [each for each in chunk if each in booked]
            made.append(encode(self._batch(still, over, now, open_requests=self._count(number == len(chunks)))))
        return made

    def _batch(self, request_ids: Sequence[str], over: tuple[Over, ...], now: float, **rest: Any) -> Batch:
        places: dict[str, int] = {}
        booked = tuple([self._booked(request_id, places, now) for request_id in request_ids])
        self._seq += 1
        asks = tuple(self._asks)
        return Batch(self.name, self._seq, places=tuple(places), booked=booked, over=over, asks=asks, **rest)

    def _booked(self, request_id: str, places: dict[str, int], now: float) -> Booked:
        key = self._ledger.booked()[request_id]
        taken = self._ledger.reservation(request_id)
        return Booked(
            request_id,
            places.setdefault(key, len(places)),
            _age_us(taken.taken_s, now),
            round(self._ledger.prefill_left_s(request_id, now) * 1e6),
            taken.prompt_tokens,
            taken.output_tokens,
            taken.uncached_tokens,
            taken.adapter,
            taken.tenant,
        )

    def _count(self, last: bool) -> int | None:
        return len(self._ledger.booked()) if last else None

    def _note(self, request_id: str, at_s: float | None) -> None:
        if self._must_state or not self._listened:
            return  # a statement will tell this too
        if len(self._changes) >= MAX_CHANGES:
            self._changes.clear()
            self._must_state = True
            return
        if not self._changes:
            self.on_pending()
        self._changes[request_id] = at_s


def _chunks(request_ids: Sequence[str]) -> Iterator[Sequence[str]]:
    for first in range(0, len(request_ids), MAX_ENTRIES):
        yield request_ids[first : first + MAX_ENTRIES]


def _age_us(at_s: float | None, now: float) -> int:
    return 0 if at_s is None else max(0, round((now - at_s) * 1e6))
