"""How many requests an instance may have, and how full they may make it: the operator's rules for all, or its tags."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from extproc.core.values.instance import Instance

if TYPE_CHECKING:
    from extproc.core.snapshot import Policy

MAX_IN_FLIGHT_TAG = "max_in_flight"
MAX_QUEUED_TAG = "max_queued"
MAX_KV_SHARE_TAG = "max_kv_share"
_NO_LIMIT = "none"
_MOST_DIGITS = 15  # a float holds any such number, and an engine has never so many requests


@dataclass(frozen=True, slots=True)
class Limits:
    """What requests may make of one instance at the most, running or waiting; None: no limit."""

    max_in_flight: int | None
    max_queued: int | None  # beyond its batch
    max_kv_share: float | None = None  # of its KV blocks, held or promised; more than 1 lets requests wait for blocks

    def places(self, instance: Instance) -> int | None:
        """Open requests that both limits leave together; `max_queued` says nothing where the batch is not known."""
        if self.max_queued is None or instance.max_num_seqs is None:
            return self.max_in_flight
        queued = instance.max_num_seqs + self.max_queued
        return queued if self.max_in_flight is None else min(self.max_in_flight, queued)


def limits_of(instance: Instance, policy: Policy) -> Limits:
    """Limits of one instance. The tag `none` takes a limit away; one that is no such number changes nothing."""
    tags = instance.tags
    if not tags:
        return Limits(policy.max_in_flight, policy.max_queued, policy.max_kv_share)
    return Limits(
        _number(tags.get(MAX_IN_FLIGHT_TAG, ""), policy.max_in_flight, least=1),
        _number(tags.get(MAX_QUEUED_TAG, ""), policy.max_queued, least=0),
        _share(tags.get(MAX_KV_SHARE_TAG, ""), policy.max_kv_share),
    )


def _number(text: str, usual: int | None, least: int) -> int | None:
    if text == _NO_LIMIT:
        return None
    number = int(text) if text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS else -1
    return number if number >= least else usual


def _share(text: str, usual: float | None) -> float | None:
    if text == _NO_LIMIT:
        return None
    try:
        share = float(text)
    except ValueError:
        return usual
    return share if 0.0 < share < math.inf else usual
