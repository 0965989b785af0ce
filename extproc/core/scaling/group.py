"""One group of pools that serve the same requests: from what is seen of it to how many instances each should have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec

from extproc.core.scaling.behaviour import MARGIN, Behaviour, step_down
from extproc.core.scaling.drivers import Call, Context, calls
from extproc.core.scaling.hardware import Counts, Offer, carries, choose
from extproc.core.scaling.rules import PoolRules
from extproc.core.values.instance import Instance


class GroupMemory(msgspec.Struct, kw_only=True):
    """What is remembered of a group between two looks; instances by key, pools by name."""

    behaviour: Behaviour = msgspec.field(default_factory=Behaviour)
    targets: dict[str, int] = {}
    prices: dict[str, float] = {}  # as agents told them: a pool without instances has one too
    told: dict[str, float] = {}  # who was told to drain by us, and when
    draining_since_s: dict[str, float] = {}
    coming_since_s: dict[str, float] = {}
    broken_since_s: dict[str, float] = {}  # who is Unhealthy or stuck
    asked_at_s: float | None = None  # when a request was seen last; None: never
    requests: float | None = None  # counted by then
    ready: dict[str, int] = {}
    unsettled_at_s: float = 0.0  # when instances changed last, or were too few

    def not_after(self, at_s: float) -> None:
        """Nothing remembered is of a time to come: where it seems so, all is as much older. Another clock was ahead."""
        newest_s = max(self.behaviour.newest_s, self.unsettled_at_s, self.asked_at_s or 0.0)
        if newest_s > at_s:
            self.set_forward(at_s - newest_s)

    def set_forward(self, by_s: float) -> None:
        """The clock was set forward: nothing has become older by that."""
        self.behaviour.set_forward(by_s)
        for since_s in (self.told, self.draining_since_s, self.coming_since_s, self.broken_since_s):
            since_s.update({key: at_s + by_s for key, at_s in since_s.items()})
        self.asked_at_s = None if self.asked_at_s is None else self.asked_at_s + by_s
        self.unsettled_at_s += by_s


@dataclass(frozen=True, slots=True)
class Staff:
    """A pool's instances by what they are good for."""

    ready: tuple[Instance, ...]
    coming: tuple[Instance, ...]  # on their way, those left out that are stuck
    draining: tuple[Instance, ...]
    stuck: frozenset[str]  # keys of those that start for far too long, or are asleep: nobody counts on them
    shaken: tuple[Instance, ...]  # Unhealthy for a moment: they count as Ready, but nobody leaves on their account
    broken: int  # how many are Unhealthy for longer, or stuck and awake

    @property
    def counted(self) -> int:
        """How many are Ready, or will likely be so again in a moment."""
        return len(self.ready) + len(self.shaken)


def offers(
    pools: Sequence[PoolRules], sizes: Sequence[float], starts_s: Sequence[float], told: Mapping[str, float]
) -> tuple[Offer, ...]:
    """What each pool has to offer; where the price of one is not known, all cost the same."""
    prices = [pool.price_per_hour if pool.price_per_hour is not None else told.get(pool.name) for pool in pools]
    known = [price for price in prices if price is not None]
    if len(known) < len(pools):
        known = [1.0] * len(pools)
    return tuple(
        Offer(capacity=size, price=price, least=pool.least, most=pool.most, spare=pool.spare, start_s=start_s)
        for pool, size, price, start_s in zip(pools, sizes, known, starts_s, strict=True)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a group should have, and what made it so."""

    counts: Counts
    made: tuple[Call, ...]  # by all signals, the most first
    need: float  # of these the most
    keep: float  # what must stay; where it is more than the need, the dwell holds it
    wait_s: float  # the dwell that is waited


def plan(
    context: Context,
    given: Sequence[Offer],
    targets: Counts,
    ready: Counts,
    behaviour: Behaviour,
    *,
    at_s: float,
    dwell_s: float,
    regret_s: float,
    later: float,
    surely: float,
    blind: bool = False,
    glance: bool = False,
) -> Plan:
    """The counts to have, from those of the last look: up at once, down by steps (`core.scaling.behaviour`).

    `later` and `surely` as in `Behaviour.keep`, in instances of the group's first pool. `blind`: no request could be
    counted. `glance`: what this look needs counts, however short a time it has been needed.
    """
    made = calls(context)
    need = max((call.need for call in made), default=0.0)
    if any(targets) and not context.asked and not glance:
        need = behaviour.lasting(at_s, need, dwell_s)
    if blind:
        behaviour.unseen(at_s)
    else:
        behaviour.needed(at_s, need, dwell_s)
    wait_s = dwell_s * behaviour.patience_at(at_s, dwell_s)
    bounded = tuple(min(max(count, each.least), each.most) for count, each in zip(targets, given, strict=True))
    if not carries(bounded, need, given):
        # Who is to be replaced stays for now: those that replace him are not Ready yet.
        counts = tuple(map(max, bounded, choose(need, given, bounded)))
        if counts != bounded:
            behaviour.went_up(at_s, dwell_s, regret_s)
        return Plan(counts=counts, made=made, need=need, keep=need, wait_s=wait_s)
    stays = behaviour.keep(at_s, dwell_s, context.cold_start_s, later, surely)
    keep = 0.0 if context.idle else max(need, stays) + MARGIN
    goal = choose(keep, given, bounded) if carries(bounded, keep, given) else bounded
    counts = bounded
    if goal != bounded and (context.idle or behaviour.may_step(at_s, dwell_s)):
        counts = lowered(bounded, goal, ready, given, context.load / context.busiest, soon=need)
    if sum(counts) < sum(bounded):
        behaviour.went_down(at_s)
    return Plan(counts=counts, made=made, need=need, keep=keep, wait_s=wait_s)


def lowered(
    counts: Counts, goal: Counts, ready: Counts, given: Sequence[Offer], need: float, soon: float = 0.0
) -> Counts:
    """A step from `counts` towards `goal`: what grows does at once, what shrinks only while the Ready ones left carry.

    The dearest capacity goes first. Who is on the way cannot stand in yet for one that leaves, nor for one that was
    ordered before him and is Ready sooner. While others are on the way to replace them, those left must also carry
    what is needed `soon`: it may be more than `need`, which is now.
    """
    bare = [replace(each, spare=0) for each in given]
    reached = [max(count, end) for count, end in zip(counts, goal, strict=True)]
    dearest = sorted(range(len(given)), key=lambda place: -given[place].price / max(given[place].capacity, 1e-9))
    for place in dearest:
        end = step_down(reached[place], goal[place]) if goal[place] < counts[place] else reached[place]
        replaced = any(goal[other] > ready[other] for other in dearest if other != place)
        while reached[place] > end:
            after = [*reached[:place], reached[place] - 1, *reached[place + 1 :]]
            left = tuple(min(here, count) for here, count in zip(ready, after, strict=True))
            bar = max(need, soon) if replaced else need
            if (replaced or left[place] < ready[place]) and not carries(left, bar, bare):
                break
            reached = after
    return tuple(reached)
