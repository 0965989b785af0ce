"""The textbook rules on a router's own counts: random, round robin, least request, power of two choices."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from extproc.sim.policies.desk import Desk, Seen
from extproc.sim.policies.picking import least
from extproc.sim.policies.policy import Ask, Policy, Setting


def random(setting: Setting) -> Policy:
    """Any instance."""
    return Desk(setting, lambda ask, candidates, random, now: random.choice(candidates))


def round_robin(setting: Setting) -> Policy:
    """One after the other; replicas begin at random places, as Envoy's workers do."""
    turn = setting.random.randrange(1 << 16)

    def rule(ask: Ask, candidates: Sequence[Seen], random: Random, now: float) -> Seen:
        nonlocal turn
        turn += 1
        return candidates[turn % len(candidates)]

    return Desk(setting, rule)


def least_request(setting: Setting) -> Policy:
    """The fewest requests of this router in flight, ties random."""
    return Desk(setting, lambda ask, candidates, random, now: least(candidates, in_flight, random))


def power_of_two(setting: Setting) -> Policy:
    """The fewer requests in flight of two that are drawn (Mitzenmacher 2001)."""
    return Desk(setting, lambda ask, candidates, random, now: least(draw_two(candidates, random), in_flight, random))


def in_flight(seen: Seen) -> int:
    """Requests in flight there, as this router knows."""
    return seen.in_flight


def draw_two(candidates: Sequence[Seen], random: Random) -> Sequence[Seen]:
    """Two different candidates; fewer where there are not so many."""
    return candidates if len(candidates) < 2 else random.sample(candidates, 2)
