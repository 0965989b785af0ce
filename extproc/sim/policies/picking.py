"""Picks the instance of the lowest cost, or of the highest score."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

from extproc.sim.policies.desk import Seen


def least(candidates: Sequence[Seen], cost: Callable[[Seen], float | tuple[float, ...]], random: Random) -> Seen:
    """The candidate of the lowest cost; one of them at random where several share it."""
    costs = [cost(seen) for seen in candidates]
    lowest = min(costs)
    tied = [seen for seen, at in zip(candidates, costs, strict=True) if at == lowest]
    return tied[0] if len(tied) == 1 else random.choice(tied)


def most(candidates: Sequence[Seen], score: Callable[[Seen], float], random: Random) -> Seen:
    """The candidate of the highest score; one of them at random where several share it."""
    return least(candidates, lambda seen: -score(seen), random)


def first_least(candidates: Sequence[Seen], cost: Callable[[Seen], float | tuple[float, ...]]) -> Seen:
    """The first candidate of the lowest cost, as a plain scan with `<` finds it."""
    return min(candidates, key=cost)
