"""A router's own copy of the registry: applies its events, knows their ages, and notices when one was missed.

Ages are measured on the router's clock against `Fleet.heard_at_s`, not against now: a dead registry makes all
ages stand still, so that the last state goes on serving, whereas one frozen publisher grows old alone.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from extproc.core.fleet.events import DEFAULT_TTL_S, Event, Ordered, Published, Record, Removed, State, Unusable
from extproc.core.values.instance import Instance, Lifecycle

__all__ = [
    "DEFAULT_TTL_S",
    "Change",
    "Event",
    "Fleet",
    "Member",
    "Ordered",
    "Published",
    "Record",
    "Removed",
    "State",
    "Unusable",
]

RECOVERY_S = 5.0  # after an outage of the registry, agents get this long to publish again
RETENTION_S = 600.0  # an incarnation whose record ran out may be alive: what is known of it is kept this long


@dataclass(frozen=True, slots=True)
class Member:
    """An instance as decisions see it: lifecycle under orders, and when its load was read on our clock.

    `ready_since_s` tells when we saw it become Ready; minus infinity for one that was Ready when we first looked.
    `draining_since_s` tells the same of one that drains; None for all others.
    """

    instance: Instance
    observed_at_s: float
    ready_since_s: float = float("-inf")
    draining_since_s: float | None = None


@dataclass(frozen=True, slots=True)
class Change:
    """What an event did to the fleet."""

    reported: tuple[Member, ...] = ()  # have a new load report
    forgotten: tuple[str, ...] = ()  # `Instance.key` of incarnations that ended, with their work and prefixes
    gap: bool = False  # an event was missed: the whole state must be read again


@dataclass(slots=True)
class _Entry:
    published: Instance
    member: Member
    expires_at_s: float


@dataclass(frozen=True, slots=True)
class _Absent:
    """What is remembered of an instance whose record ran out."""

    key: str
    forget_at_s: float
    was_ready: bool


@dataclass(slots=True)
class _Effect:
    """A `Change` while it is collected."""

    reported: list[Member] = field(default_factory=list)
    forgotten: list[str] = field(default_factory=list)

    def change(self, gap: bool = False) -> Change:
        return Change(tuple(self.reported), tuple(self.forgotten), gap)


class Fleet:
    """All instances of one fleet. Every `now` is the caller's monotonic clock in seconds."""

    def __init__(self, recovery_s: float = RECOVERY_S, retention_s: float = RETENTION_S) -> None:
        self.heard_at_s = float("-inf")
        """Up to when the registry's word is complete: the moment that ages are measured against. Stands still
        while the registry is silent, and until agents had the time to publish again after an outage."""
        self.contact_at_s = float("-inf")
        """When anything last came from the registry; its distance from now tells an outage."""
        self.freshest_at_s = float("-inf")
        """When the latest of all reports was read."""
        self._recovery_s = recovery_s
        self._retention_s = retention_s
        self._recovered_at_s: float | None = float("-inf")  # None: the registry is lost
        self._entries: dict[str, _Entry] = {}
        self._absent: dict[str, _Absent] = {}  # by id
        self._orders: dict[str, Lifecycle] = {}
        self._seq: int | None = None
        self._read = False  # the whole state, once
        self._in_step = False  # an event beyond the last full read was seen
        self._next_expiry_s = float("inf")  # no entry expires, and no absent one is forgotten, before
        self._members: tuple[Member, ...] | None = ()
        self._listed: list[Member] | None = []  # the same; None when somebody has come or gone, or moved
        self._places: dict[str, int] = {}  # in the list, by id
        self._by_address: dict[str, Member] = {}

    def members(self) -> tuple[Member, ...]:
        """Return all instances, whatever their lifecycle; the same tuple until something changes."""
        if self._members is None:
            if self._listed is None:
                self._listed = [entry.member for entry in self._entries.values()]
                self._places = {instance_id: place for place, instance_id in enumerate(self._entries)}
                self._by_address = {member.instance.address: member for member in self._listed}
            self._members = tuple(self._listed)
        return self._members

    def by_address(self, address: str) -> Member | None:
        """Return the instance behind an `ip:port`, or None."""
        self.members()
        return self._by_address.get(address)

    def get(self, instance_id: str) -> Member | None:
        """Return the instance of that id, or None."""
        entry = self._entries.get(instance_id)
        return entry.member if entry else None

    def ordered(self) -> frozenset[str]:
        """Ids of the instances that are under an order, whatever has become of them."""
        return frozenset(self._orders)

    def dropped(self) -> tuple[str, ...]:
        """Ids of the instances that were Ready when their record ran out, until that is too long ago to matter."""
        return tuple(instance_id for instance_id, absent in self._absent.items() if absent.was_ready)

    def age_s(self, member: Member) -> float:
        """Tell how old an instance's report is, as far as the registry could have told us a newer one."""
        return max(0.0, self.heard_at_s - member.observed_at_s)

    def heard(self, now: float) -> Change:
        """Note a sign of life from the registry, and drop the instances whose record has run out."""
        effect = _Effect()
        self._hear(now, effect)
        return effect.change()

    def lost(self) -> None:
        """Note that the connection ended: ages stand still from here until the registry has recovered."""
        self._recovered_at_s = None
        self._seq = None

    def apply(self, event: Event, now: float) -> Change:
        """Take one event. With `Change.gap` set, read the whole state and `resync`."""
        effect = _Effect()
        gap = False
        if event.seq is not None:
            if self._seq is not None and event.seq <= self._seq and not self._in_step:
                return self.heard(now)  # sent before the state was read, so it is in there already
            gap = self._seq is None or event.seq != self._seq + 1
            self._seq = event.seq
            self._in_step = True
        match event:
            case Published(instance=instance, ttl_ms=ttl_ms):
                self._put(Record(instance, 0.0, ttl_ms / 1000), now, effect)
            case Ordered(id=instance_id, lifecycle=lifecycle):
                self._order(instance_id, lifecycle, now)
            case Removed(id=instance_id):
                self._remove(instance_id, effect)
                self._orders.pop(instance_id, None)
            case Unusable():
                pass
        self._hear(now, effect)
        return effect.change(gap)

    def resync(self, state: State, now: float) -> Change:
        """Take the whole state, read at `now`; after a loss this begins the recovery.

        What the registry does not hold is dropped, except after a loss: then records may have run out, or
        vanished with a restarted server, while their agents could not publish. Those stay until the recovery
        is over.
        """
        effect = _Effect()
        if self._recovered_at_s is None:
            self._recovered_at_s = now + self._recovery_s if self._entries else now
        self._seq, self._in_step = state.seq, False
        for instance_id in set(self._orders) | set(state.orders):
            self._order(instance_id, state.orders.get(instance_id), now)
        for record in state.records:
            self._put(record, now, effect)
        for instance_id in self._entries.keys() - {record.instance.id for record in state.records}:
            if now >= self._recovered_at_s:
                self._expire(instance_id, now)
            else:
                self._entries[instance_id].expires_at_s = self._recovered_at_s
                self._next_expiry_s = min(self._next_expiry_s, self._recovered_at_s)
        self._read = True
        self._hear(now, effect)
        return effect.change()

    def _hear(self, now: float, effect: _Effect) -> None:
        self.contact_at_s = now
        if self._recovered_at_s is None or now < self._recovered_at_s:
            return
        self.heard_at_s = now
        if now < self._next_expiry_s:
            return
        for instance_id in [key for key, entry in self._entries.items() if entry.expires_at_s <= now]:
            self._expire(instance_id, now)
        for instance_id in [key for key, absent in self._absent.items() if absent.forget_at_s <= now]:
            effect.forgotten.append(self._absent.pop(instance_id).key)
        due_s = [entry.expires_at_s for entry in self._entries.values()]
        due_s += [absent.forget_at_s for absent in self._absent.values()]
        self._next_expiry_s = min(due_s, default=float("inf"))

    def _put(self, record: Record, now: float, effect: _Effect) -> None:
        instance = record.instance
        observed_at_s = now - record.age_s - instance.age_s
        known = self._entries.get(instance.id)
        absent = self._absent.pop(instance.id, None)
        if absent is not None and absent.key != instance.key:
            effect.forgotten.append(absent.key)
        if known is not None:
            if known.published.incarnation != instance.incarnation:
                effect.forgotten.append(known.published.key)
            else:  # reading the same record again must not make it look older or newer than it was
                observed_at_s = max(observed_at_s, known.member.observed_at_s)
        effective = _effective(instance, self._orders.get(instance.id))
        ready_since_s = first_seen_s = now if self._read else float("-inf")
        if known is not None:
            ready_since_s = _ready_since_s(known.member, effective, now)
            first_seen_s = now
        elif absent is not None and absent.key == instance.key:  # it went on while its publisher was silent
            first_seen_s = float("-inf")
            ready_since_s = first_seen_s if absent.was_ready else ready_since_s
        draining_since_s = _draining_since_s(None if known is None else known.member, effective, first_seen_s)
        member = Member(effective, observed_at_s, ready_since_s, draining_since_s)
        self.freshest_at_s = max(self.freshest_at_s, observed_at_s)
        expires_at_s = now + record.ttl_s
        self._entries[instance.id] = _Entry(instance, member, expires_at_s)
        self._next_expiry_s = min(self._next_expiry_s, expires_at_s)
        self._list(member, None if known is None else known.member)
        effect.reported.append(member)

    def _order(self, instance_id: str, lifecycle: Lifecycle | None, now: float) -> None:
        if lifecycle is None:
            self._orders.pop(instance_id, None)
        else:
            self._orders[instance_id] = lifecycle
        entry = self._entries.get(instance_id)
        if entry is not None:
            effective, known = _effective(entry.published, lifecycle), entry.member
            entry.member = Member(
                effective,
                known.observed_at_s,
                _ready_since_s(known, effective, now),
                _draining_since_s(known, effective, now),
            )
            self._list(entry.member, known)

    def _list(self, member: Member, before: Member | None) -> None:
        """One has changed: to list all of a thousand anew for each report would take longer than a decision."""
        self._members = None
        address, instance_id = member.instance.address, member.instance.id
        if self._listed is None or before is None or before.instance.address != address:
            self._listed = None
            return
        place = self._places[instance_id]
        if self._by_address.get(address) is self._listed[place]:
            self._by_address[address] = member
        self._listed[place] = member

    def _expire(self, instance_id: str, now: float) -> None:
        """Its record ran out. Perhaps only its publisher died, so its work and prefixes are not forgotten yet."""
        instance = self._entries.pop(instance_id).member.instance
        was_ready = instance.lifecycle is Lifecycle.READY
        self._absent[instance_id] = _Absent(instance.key, now + self._retention_s, was_ready)
        self._next_expiry_s = min(self._next_expiry_s, now + self._retention_s)
        self._members = self._listed = None

    def _remove(self, instance_id: str, effect: _Effect) -> None:
        entry = self._entries.pop(instance_id, None)
        absent = self._absent.pop(instance_id, None)
        if entry is not None:
            effect.forgotten.append(entry.published.key)
            self._members = self._listed = None
        elif absent is not None:
            effect.forgotten.append(absent.key)


def _effective(instance: Instance, order: Lifecycle | None) -> Instance:
    """Put an instance under an order; that holds back a ready instance and never makes one ready."""
    if order is None or instance.lifecycle is not Lifecycle.READY:
        return instance
    return msgspec.structs.replace(instance, lifecycle=order, lifecycle_reason="ordered by the operator")


def _ready_since_s(known: Member, instance: Instance, now: float) -> float:
    """When an instance became Ready, given what was known of it; now, if it is not or becomes so now."""
    was = known.instance
    stays_ready = was.lifecycle is Lifecycle.READY and instance.lifecycle is Lifecycle.READY
    return known.ready_since_s if stays_ready and was.key == instance.key else now


def _draining_since_s(known: Member | None, instance: Instance, now: float) -> float | None:
    """When an instance began to drain, given what was known of it; None if it does not."""
    if instance.lifecycle is not Lifecycle.DRAINING:
        return None
    if known is None or known.draining_since_s is None or known.instance.key != instance.key:
        return now
    return known.draining_since_s
