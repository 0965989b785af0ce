"""What the other routers have told: keeps their reservations in our ledger, and drops those of routers gone silent.

A peer's state is *complete* when a statement of it was received whole and no batch is missing since. Otherwise we
ask for a statement; what comes in the meantime is booked all the same. Only what is in the ledger counts, so that the
count of open requests in each batch finds every difference, whatever made it.

A peer's ages are turned into times by the moment of arrival alone: they are late by what a batch takes to arrive.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from extproc.core.flight.bookings import EVERYONE, Batch
from extproc.core.flight.work import Reservation

if TYPE_CHECKING:
    from collections.abc import Callable

    from extproc.core.flight.bookings import Booked
    from extproc.core.flight.ledger import Ledger


@dataclass(slots=True)
class _Peer:
    heard_at_s: float
    seq: int | None = None  # of its last batch
    complete: bool = False
    stated: set[str] | None = None  # ids in the statement that is coming in; None between statements
    asked_at_s: float = float("-inf")


@dataclass(slots=True)
class Counts:
    """What has happened since the start."""

    lost_batches: int = 0
    statements: int = 0  # taken in whole
    expired_routers: int = 0  # whose lease ran out


@dataclass(slots=True)
class Peers:
    """All routers that are heard, but ourselves (`name`), and their reservations."""

    name: str
    ledger: Ledger
    lease_s: float
    ask: Callable[[str], None]  # the router of this name shall state all it has
    asked: Callable[[], None]  # somebody wants to know all we have
    counts: Counts = field(default_factory=Counts)
    _peers: dict[str, _Peer] = field(default_factory=dict)
    _looked_at_s: float | None = None

    @property
    def names(self) -> list[str]:
        """Routers whose lease runs."""
        return list(self._peers)

    @property
    def number(self) -> int:
        """How many other routers there are."""
        return len(self._peers)

    @property
    def requests(self) -> int:
        """Open requests of all of them."""
        return sum(len(self.ledger.booked(name)) for name in self._peers)

    def take(self, batch: Batch, now: float) -> None:
        """Take a batch that arrived at `now`. Our own, and those that are late or came before, change nothing."""
        if batch.router == self.name:
            return
        peer = self._peers.setdefault(batch.router, _Peer(now))
        if peer.seq is not None:
            if batch.seq <= peer.seq:
                return
            missing = batch.seq - peer.seq - 1
            if missing:
                self.counts.lost_batches += missing
                peer.complete, peer.stated = False, None
        peer.seq, peer.heard_at_s = batch.seq, now
        if self.name in batch.asks or EVERYONE in batch.asks:
            self.asked()
        self._apply(peer, batch, now)
        self._check(peer, batch, now)

    def expire(self, now: float) -> None:
        """Drop the reservations of routers whose lease ran out. To be called several times within a lease.

        Time in which it was not called counts for nobody: then it was us who were frozen.
        """
        pause_s = now - self._looked_at_s if self._looked_at_s is not None else 0.0
        self._looked_at_s = now
        if pause_s > self.lease_s / 2:
            for peer in self._peers.values():
                peer.heard_at_s = min(now, peer.heard_at_s + pause_s)
        for name in [name for name, peer in self._peers.items() if now - peer.heard_at_s > self.lease_s]:
            del self._peers[name]
            self.ledger.drop_router(name, now)
            self.counts.expired_routers += 1
        self.ledger.tidy(now)

    def _apply(self, peer: _Peer, batch: Batch, now: float) -> None:
        self.ledger.release_all([(over.request_id, now - over.age_us / 1e6) for over in batch.over], batch.router)
        for booked in batch.booked:
            self._book(batch.router, batch.places[booked.place], booked, now)
        if batch.part == 1:
            peer.stated = set()
        if not batch.part or peer.stated is None:
            return
        peer.stated.update(booked.request_id for booked in batch.booked)
        if batch.part == batch.parts:
            gone = self.ledger.booked(batch.router).keys() - peer.stated
            self.ledger.release_all([(request_id, now) for request_id in gone], batch.router)
            peer.complete, peer.stated = True, None
            self.counts.statements += 1

    def _book(self, router: str, key: str, booked: Booked, now: float) -> None:
        if booked.request_id in self.ledger.booked(router):
            self.ledger.move(booked.request_id, key, now, router)
            return
        reservation = Reservation(
            request_id=booked.request_id,
            taken_s=now - booked.age_us / 1e6,
            prefill_s=booked.prefill_us / 1e6,
            prompt_tokens=booked.prompt_tokens,
            output_tokens=booked.output_tokens,
            uncached_tokens=booked.prompt_tokens if booked.uncached_tokens is None else booked.uncached_tokens,
            router=router,
            adapter=booked.adapter,
            tenant=booked.tenant,
        )
        self.ledger.reserve(key, reservation, now)

    def _check(self, peer: _Peer, batch: Batch, now: float) -> None:
        """Ask for a statement if what we hold is not what the peer has; not twice before it can have answered."""
        if batch.open_requests is None:
            return
        if batch.open_requests != len(self.ledger.booked(batch.router)):
            peer.complete = False
        if not peer.complete and now - peer.asked_at_s >= self.lease_s / 8:
            peer.asked_at_s = now
            self.ask(batch.router)
