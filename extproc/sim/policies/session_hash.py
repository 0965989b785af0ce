"""Consistent hash of the session on a ring, with bounded loads.

Mirrokni, Thorup, Zadimoghaddam, "Consistent Hashing with Bounded Loads" (2018): nobody gets more than c times the
average load, c = 1.25; a request goes on along the ring until somebody has room. An instance has 160 places on the
ring, as ketama and vllm-project/router's `consistent_hash` have it. A request without a session is a session of its
own.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from hashlib import blake2b
from math import ceil
from random import Random

from extproc.sim.policies.desk import Desk, Seen
from extproc.sim.policies.policy import Ask, Policy, Setting

BOUND = 1.25
PLACES = 160  # of each instance


class SessionHash:
    """The ring of the last set of candidates, and the rule on it."""

    def __init__(self) -> None:
        self._members: tuple[int, ...] = ()
        self._places: list[int] = []
        self._owners: list[int] = []  # the number of the instance at each place

    def __call__(self, ask: Ask, candidates: Sequence[Seen], random: Random, now: float) -> Seen:
        """The first instance with room, from the session's place on."""
        by_number = {seen.number: seen for seen in candidates}
        if tuple(by_number) != self._members:
            self._build(candidates)
        room = ceil(BOUND * (1 + sum(seen.in_flight for seen in candidates)) / len(candidates))
        start = bisect_left(self._places, _place(f"s:{ask.arrival.session}" if ask.arrival.session else f"r:{ask.id}"))
        for step in range(len(self._owners)):
            seen = by_number[self._owners[(start + step) % len(self._owners)]]
            if seen.in_flight < room:
                return seen
        raise AssertionError("somebody has less than the average load")

    def _build(self, candidates: Sequence[Seen]) -> None:
        self._members = tuple(seen.number for seen in candidates)
        ring = sorted((_place(f"i:{seen.id}:{copy}"), seen.number) for seen in candidates for copy in range(PLACES))
        self._places = [place for place, _ in ring]
        self._owners = [number for _, number in ring]


def session_hash(setting: Setting) -> Policy:
    """Consistent hash of the session with bounded loads."""
    return Desk(setting, SessionHash())


def _place(name: str) -> int:
    """Place on the ring; the same in every process."""
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "big")
