"""Whom to take away: who is not Ready yet, then who holds the fewest warm prefixes; and who comes back instead."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from extproc.core.values.instance import COMING, Instance, Lifecycle


@dataclass(frozen=True, slots=True, kw_only=True)
class Orders:
    """Ids of a pool's instances, by what should become of them."""

    drain: tuple[str, ...] = ()
    resume: tuple[str, ...] = ()
    stop: tuple[str, ...] = ()


def orders(
    instances: Sequence[Instance],
    desired: int,
    *,
    warm_tokens: Mapping[str, float],
    ours: Mapping[str, float],
    draining_since_s: Mapping[str, float],
    at_s: float,
    drain_s: float,
    grace_s: float,
    stuck: Collection[str] = (),
    shaken: int = 0,
    broken_since_s: Mapping[str, float] | None = None,
    patience_s: float = math.inf,
) -> Orders:
    """What a pool's instances should do so that `desired` of them are Ready or on their way.

    `ours` holds the keys of those that were told to drain by us: who drains for another reason (a pod that ends) is not
    brought back. Who drains is stopped once it has nothing to do and has drained for `grace_s` (a report may be older
    than the order), or after `drain_s`, also if it has failed meanwhile; a start that is not needed any more at once.
    `stuck` keys are not counted, and not stopped at once either: a slow start would never come to its end. `shaken`
    more are counted where it would take a start or one that drains to fill their place, but nobody leaves on their
    account. Who has been broken for `patience_s` is stopped.
    """
    ready = [each for each in instances if each.lifecycle is Lifecycle.READY]
    coming = [each for each in instances if each.lifecycle in COMING and each.key not in stuck]
    draining = [each for each in instances if each.lifecycle is Lifecycle.DRAINING]
    surplus = len(ready) + len(coming) - desired
    resume: list[Instance] = []
    missing = -surplus - shaken
    if missing > 0:
        mine = [each for each in draining if each.key in ours]
        resume = sorted(mine, key=lambda each: (-warm_tokens.get(each.id, 0.0), each.id))[:missing]
    cancelled = sorted(coming, key=_furthest)[: max(0, surplus)]
    leaving = first_to_leave(ready, warm_tokens, ours)[: max(0, surplus - len(cancelled))]
    done = [
        each
        for each in draining
        if each not in resume and _finished(each, at_s - draining_since_s.get(each.key, at_s), drain_s, grace_s)
    ]
    # An order to drain holds back a Ready one only: one that has failed under it shows as Unhealthy, not as Draining.
    failed = [
        each
        for each in instances
        if each.lifecycle is Lifecycle.UNHEALTHY and at_s - ours.get(each.key, at_s) >= max(drain_s, grace_s)
    ]
    since_s = broken_since_s or {}
    given_up = [each for each in instances if at_s - since_s.get(each.key, at_s) >= patience_s]
    return Orders(
        drain=tuple(each.id for each in leaving),
        resume=tuple(each.id for each in resume),
        stop=tuple(dict.fromkeys(each.id for each in (*cancelled, *done, *failed, *given_up))),
    )


def first_to_leave(
    ready: Iterable[Instance], warm_tokens: Mapping[str, float], ours: Collection[str] = ()
) -> list[Instance]:
    """Ready ones in the order in which they should go: told already, fewest warm tokens, least at work."""

    def place(each: Instance) -> tuple[bool, float, int, str]:
        return (each.key not in ours, warm_tokens.get(each.id, 0.0), _at_work(each), each.id)

    return sorted(ready, key=place)


def _at_work(each: Instance) -> int:
    return (each.load.running or 0) + (each.load.waiting or 0)


def _furthest(each: Instance) -> tuple[bool, float, str]:
    """Who is furthest from Ready first."""
    loading = each.lifecycle is Lifecycle.LOADING
    return (loading, -(each.ready_in_s if each.ready_in_s is not None else 0.0), each.id)


def _finished(each: Instance, since_s: float, drain_s: float, grace_s: float) -> bool:
    known_idle = each.load.running == 0 and not each.load.waiting
    return since_s >= drain_s or (known_idle and since_s >= grace_s)
