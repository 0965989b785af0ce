"""What travels through the registry: its events and its state, decoded and checked where they come in."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from extproc.core.values.instance import Count, Instance, Lifecycle
from extproc.errors import UNREADABLE

if TYPE_CHECKING:
    from collections.abc import Mapping

DEFAULT_TTL_S = 10.0  # a record lives this long without being published again

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/-]{0,127}")
_ADDRESS = re.compile(r"([0-9]{1,3}(\.[0-9]{1,3}){3}|\[[0-9A-Fa-f:.]+\]):[0-9]{1,5}")


class _Event(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="event"):
    seq: int | None = None  # grows by one with every event of the fleet; None when written by hand


class Published(_Event, frozen=True, kw_only=True, tag="published"):
    """An instance's state, as its agent has just read it."""

    instance: Instance
    ttl_ms: Count = int(DEFAULT_TTL_S * 1000)


class Ordered(_Event, frozen=True, kw_only=True, tag="ordered"):
    """An operator's order: the lifecycle an instance shall count as, or None to take the order back."""

    id: str
    lifecycle: Lifecycle | None = None


class Removed(_Event, frozen=True, kw_only=True, tag="removed"):
    """An instance's record was deleted, with any order for it."""

    id: str


class Unusable(_Event, frozen=True, kw_only=True, tag="unusable"):
    """An event that this program cannot take, and why; it counts in the sequence all the same."""

    why: str


Event = Published | Ordered | Removed | Unusable


@dataclass(frozen=True, slots=True)
class Record:
    """One instance as the registry holds it. `age_s` is how old the record is on the server's clock."""

    instance: Instance
    age_s: float
    ttl_s: float  # left to live; infinite for a record written without one


@dataclass(frozen=True, slots=True)
class State:
    """The whole registry, read in one step. `seq` is that of its last event, None if there never was one."""

    seq: int | None
    records: tuple[Record, ...]
    orders: Mapping[str, Lifecycle]


class _Envelope(msgspec.Struct, frozen=True):
    seq: int | None = None


_EVENTS = msgspec.json.Decoder(Published | Ordered | Removed)
_ENVELOPES = msgspec.json.Decoder(_Envelope)
_INSTANCES = msgspec.json.Decoder(Instance)


def decode_event(data: bytes) -> Event:
    """Decode one message of the events channel; what cannot be used comes back as `Unusable`."""
    try:
        event: Published | Ordered | Removed = _EVENTS.decode(data)
    except UNREADABLE as error:
        return Unusable(why=str(error), seq=_seq(data))
    if isinstance(event, Published) and (why := fault(event.instance)):
        return Unusable(why=why, seq=event.seq)
    return event


def decode_instance(data: bytes) -> Instance:
    """Decode a record.

    Raises ValueError with one readable line if it is not an Instance that can be routed to.
    """
    try:
        instance = _INSTANCES.decode(data)
    except UNREADABLE as error:
        raise ValueError(str(error)) from error
    if why := fault(instance):
        raise ValueError(why)
    return instance


def fault(instance: Instance) -> str:
    """Tell what makes a record unusable in an Envoy header or as its address; "" if nothing does."""
    for name, value in (("id", instance.id), ("cluster", instance.cluster)):
        if not _NAME.fullmatch(value):
            return f"{name} {value[:80]!r} is not a name of letters, digits and ._:/-"
    if not _ADDRESS.fullmatch(instance.address):
        return f"address {instance.address[:80]!r} is not ip:port"
    return ""


def _seq(data: bytes) -> int | None:
    try:
        return _ENVELOPES.decode(data).seq
    except UNREADABLE:
        return None
