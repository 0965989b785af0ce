"""Router replicas on a network that a test holds in its hand: what is lost, late, doubled or frozen is up to it."""

from __future__ import annotations

from dataclasses import dataclass, field

from extproc.core.flight.ledger import Ledger
from extproc.core.flight.sharing import HEARTBEAT_S, LEASE_S, Sharing
from extproc.core.flight.work import Reservation

TRANSIT_S = 0.001
TICK_S = 0.25


def reservation(request_id: str, taken_s: float, prefill_s: float = 1.0) -> Reservation:
    return Reservation(request_id, taken_s, prefill_s, prompt_tokens=100, output_tokens=50, uncached_tokens=100)


class Replica:
    """One router: a ledger, its part in sharing, and what lies in its inbox while it is frozen."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.ledger = Ledger()
        self.sharing = Sharing(name, self.ledger)
        self.frozen = False
        self.inbox: list[bytes] = []

    def read(self, now: float) -> None:
        if not self.frozen:
            for data in self.inbox:
                self.sharing.receive(data, now)
            self.inbox.clear()


@dataclass
class Network:
    """Replicas and the messages that are under way between them."""

    now: float = 100.0
    replicas: list[Replica] = field(default_factory=list)
    under_way: list[tuple[Replica, bytes]] = field(default_factory=list)
    started: int = 0

    def start(self) -> Replica:
        self.started += 1
        self.replicas.append(Replica(f"router-{self.started}"))
        return self.replicas[-1]

    def kill(self, replica: Replica) -> None:
        self.replicas.remove(replica)
        self.under_way = [(to, data) for to, data in self.under_way if to is not replica]

    def send(self) -> None:
        """Every replica that is not frozen says what it has to say, to all, itself included."""
        for replica in self.replicas:
            if not replica.frozen:
                for data in replica.sharing.outbox.batches(self.now):
                    self.under_way += [(to, data) for to in self.replicas]

    def deliver(self, number: int = 0, *, twice: bool = False) -> None:
        """One of the messages under way arrives."""
        if self.under_way:
            at = number % len(self.under_way)
            to, data = self.under_way[at] if twice else self.under_way.pop(at)
            to.inbox.append(data)
            to.read(self.now)

    def lose(self, number: int) -> None:
        if self.under_way:
            self.under_way.pop(number % len(self.under_way))

    def expire(self) -> None:
        for replica in self.replicas:
            if not replica.frozen:
                replica.sharing.expire(self.now)

    def calm(self, for_s: float) -> None:
        """Time passes and every message arrives in order after a short transit."""
        until_s = self.now + for_s
        next_tick_s = self.now
        while self.now <= until_s:
            if self.now >= next_tick_s:
                self.expire()
                next_tick_s += TICK_S
            self.send()
            self.now += TRANSIT_S
            while self.under_way:
                self.deliver()
            self.now += TICK_S / 10

    def disagreement(self, *, of_the_dead: bool = True) -> list[str]:
        """Where a ledger shows other open requests than their own router has; empty if all agree."""
        found = []
        alive = {replica.name: replica for replica in self.replicas}
        for seen_by in self.replicas:
            for name in (f"router-{number}" for number in range(1, self.started + 1)):
                if name != seen_by.name and (name in alive or of_the_dead):
                    truth = dict(alive[name].ledger.booked()) if name in alive else {}
                    seen = dict(seen_by.ledger.booked(name))
                    if seen != truth:
                        found.append(f"{seen_by.name} sees {seen} of {name}, which has {truth}")
        return found


HEARTBEAT_AND_ANSWER_S = HEARTBEAT_S * 1.5  # a heartbeat shows what is missing; question and answer follow
AFTER_LEASE_S = LEASE_S + HEARTBEAT_AND_ANSWER_S
