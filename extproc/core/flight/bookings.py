"""What routers tell each other of their open requests: batches, as arrays in MessagePack.

Times are ages at the moment of sending, because clocks differ. Arrays grow at their end only: older programs leave
out what they do not know.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from extproc.errors import UNREADABLE

MAX_ENTRIES = 500  # in one batch, some 15 KB: neither server nor reader stops at one message for long

_Count = Annotated[int, msgspec.Meta(ge=0)]
_Name = Annotated[str, msgspec.Meta(min_length=1, max_length=256)]


class Booked(msgspec.Struct, frozen=True, array_like=True):
    """An open request."""

    request_id: _Name
    place: _Count  # index in `Batch.places`
    age_us: _Count  # since it was taken
    prefill_us: _Count  # prompt computation that is still to be done
    prompt_tokens: _Count
    output_tokens: _Count
    uncached_tokens: _Count | None = None  # of the prompt; older routers do not tell
    adapter: Annotated[str, msgspec.Meta(max_length=256)] = ""  # that it needs there; older routers do not tell
    tenant: str = ""  # whose it is; older routers do not tell


class Over(msgspec.Struct, frozen=True, array_like=True):
    """A request that is no longer open."""

    request_id: _Name
    age_us: _Count  # since it ended


class Batch(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
    """Changes since the batch before; or, with `parts`, one part of a statement of all that is open; or a heartbeat."""

    router: _Name
    seq: _Count  # one more than the router's batch before
    open_requests: _Count | None = None  # that the router has after this batch; None: more of the same follows
    places: tuple[_Name, ...] = ()  # instance keys
    booked: tuple[Booked, ...] = ()
    over: tuple[Over, ...] = ()
    part: _Count = 0  # from 1 to `parts`; 0 in changes
    parts: _Count = 0
    asks: tuple[str, ...] = ()  # routers that shall state all they have; EVERYONE


EVERYONE = "*"

_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(Batch)


def encode(batch: Batch) -> bytes:
    """A batch as it travels."""
    return _ENCODER.encode(batch)


def decode(data: bytes) -> Batch:
    """Decode a batch. Raises ValueError with one readable line if it is none."""
    try:
        batch = _DECODER.decode(data)
    except UNREADABLE as error:
        raise ValueError(str(error)) from error
    if any(booked.place >= len(batch.places) for booked in batch.booked):
        raise ValueError("a booking names an instance that its batch does not list")
    if batch.part > batch.parts:
        raise ValueError(f"part {batch.part} of {batch.parts}")
    return batch
