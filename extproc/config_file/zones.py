"""Zones and what crossing them takes, in a configuration file.

own_zone: eu-west-1a
crossings:
- {between: [eu-west-1a, eu-west-1b], rtt_ms: 0.8, price_per_gb: 0.02}
unlisted: {rtt_ms: 30}
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from extproc.config_file.keys import key
from extproc.core.fleet.zones import UNLISTED, Crossing, Zones


class Way(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What it takes to cross from a zone to another."""

    rtt_ms: Annotated[float, key("round trip", "ms")]
    price_per_gb: Annotated[float, key("of traffic, in your currency", "per GB")] = 0.0
    bytes_s: Annotated[float | None, key("what one transfer gets on it", "bytes/s", usual="no limit")] = None


class ListedCrossing(Way, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The way between two named zones."""

    between: Annotated[tuple[str, str], key("the two zones; the way back is the same")]


def zones_of(own_zone: str, listed: tuple[ListedCrossing, ...], unlisted: Way | None) -> Zones:
    """The zones of a file. Raises ValueError."""
    crossings: dict[tuple[str, str], Crossing] = {}
    for way in listed:
        here, there = way.between
        if here == there or not here or not there or {(here, there), (there, here)} & crossings.keys():
            raise ValueError(f"crossing {here} - {there}: two different zones, and each pair once")
        crossings[here, there] = _crossing(way)
    return Zones(own=own_zone, crossings=crossings, unlisted=UNLISTED if unlisted is None else _crossing(unlisted))


def _crossing(way: Way) -> Crossing:
    for name in ("rtt_ms", "price_per_gb"):
        if not 0 <= getattr(way, name) < float("inf"):
            raise ValueError(f"{name} must be 0 or more, and finite")
    if way.bytes_s is not None and not 0 < way.bytes_s < float("inf"):
        raise ValueError("bytes_s must be more than 0, and finite")
    return Crossing(rtt_s=way.rtt_ms / 1000, price_per_gb=way.price_per_gb, bytes_s=way.bytes_s)
