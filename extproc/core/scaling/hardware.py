"""Which pools of a group grow or shrink: the cheapest counts that carry a need, and when a swap is worth its starts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

SAVES = 0.15  # share of the price that a swap of running instances must save
PAYS_BACK_S = 3600.0  # within which that saving must have paid for the starts, and as much more
_TINY = 1e-9
_MOST_STEPS = 4000  # of one search: it must be short beside the time between two looks, however many pools there are
_SEARCHES_KEPT = 1024  # one look asks the same several times, to decide and to explain


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """What a pool has to offer: instances of some capacity at some price."""

    capacity: float  # of one instance, above 0, in instances of the group's first pool
    price: float  # of one instance and hour
    least: int
    most: int
    spare: int = 0  # of its instances that may fail
    start_s: float = 180.0


Counts = tuple[int, ...]


def choose(need: float, offers: Sequence[Offer], running: Counts) -> Counts:
    """The counts to have, one a pool: the cheapest that keep what runs, or the cheapest of all where a swap pays.

    Keeping means that no pool shrinks while another grows. A swap must save `SAVES` of the price, and in `PAYS_BACK_S`
    more than 1 + `SAVES` times what its starts cost: two instances are paid for while one loads.
    """
    held = tuple(min(max(count, offer.least), offer.most) for count, offer in zip(running, offers, strict=True))
    if carries(held, need, offers):
        kept_offers = [replace(offer, most=count) for offer, count in zip(offers, held, strict=True)]
    else:
        kept_offers = [replace(offer, least=count) for offer, count in zip(offers, held, strict=True)]
    kept = cheapest(need, kept_offers, held)
    if len(offers) == 1:
        return kept
    free = cheapest(need, offers, held)
    saved = price(kept, offers) - price(free, offers)
    starts = sum(
        max(0, new - old) * offer.price * offer.start_s / PAYS_BACK_S
        for new, old, offer in zip(free, held, offers, strict=True)
    )
    pays = saved >= SAVES * price(kept, offers) and saved > (1.0 + SAVES) * starts
    return free if pays or not carries(kept, need, offers) else kept


def cheapest(need: float, offers: Sequence[Offer], running: Counts) -> Counts:
    """The cheapest counts within the pools' bounds that carry `need`; of equal ones the nearest to `running`.

    Branch and bound over the pools, the best value first: exact, unless that takes more than `_MOST_STEPS`; then the
    cheapest of those that were found by then. Where nothing carries it, all that may be.
    """
    return _cheapest(need, tuple(offers), running)


@lru_cache(maxsize=_SEARCHES_KEPT)
def _cheapest(need: float, offers: tuple[Offer, ...], running: Counts) -> Counts:
    most = tuple(offer.most for offer in offers)
    if not carries(most, need, offers):
        return most
    order = sorted(range(len(offers)), key=lambda place: offers[place].price / offers[place].capacity)
    lost = _spare(offers) * max(offer.capacity for offer in offers)  # with spare instances, at the most
    best: list[tuple[float, int, Counts]] = []
    steps = 0

    def bound(depth: int, missing: float) -> float:
        """The least price of the pools that are not decided yet: parts of instances count as well, none is spare."""
        left = [offers[place] for place in order[depth:]]
        paid, missing = (
            sum(offer.least * offer.price for offer in left),
            missing - sum(offer.least * offer.capacity for offer in left),
        )
        for offer in left:
            if missing <= 0.0:
                break
            taken = min(missing, (offer.most - offer.least) * offer.capacity)
            paid, missing = paid + taken * offer.price / offer.capacity, missing - taken
        return paid if missing <= _TINY else math.inf

    def descend(depth: int, chosen: dict[int, int], paid: float, missing: float) -> None:
        nonlocal steps
        steps += 1
        if best and (steps > _MOST_STEPS or _is_worse(paid + bound(depth, missing), _moved(chosen, running), best[0])):
            return
        if depth == len(order):
            counts = tuple(chosen[place] for place in range(len(offers)))
            if carries(counts, need, offers):
                found = (paid, _moved(chosen, running), counts)
                best[:] = [min([*best, found], key=lambda each: (round(each[0], 9), each[1:]))]
            return
        place = order[depth]
        offer = offers[place]
        last = depth == len(order) - 1
        enough = math.ceil(missing / offer.capacity - _TINY)
        top = min(offer.most, max(offer.least, math.ceil((missing + lost) / offer.capacity - _TINY)))
        bottom = max(offer.least, min(enough, offer.most)) if last else offer.least
        for count in range(bottom, top + 1) if last else range(top, offer.least - 1, -1):
            descend(depth + 1, {**chosen, place: count}, paid + count * offer.price, missing - count * offer.capacity)

    descend(0, {}, 0.0, need)
    return best[0][2]


def _moved(chosen: Mapping[int, int], running: Counts) -> int:
    """How many instances start or go, of the pools that are decided."""
    return sum(abs(count - running[place]) for place, count in chosen.items())


def _is_worse(price_at_least: float, moved_at_least: int, best: tuple[float, int, Counts]) -> bool:
    """Whether nothing that goes on from here can be better than the best that was found."""
    if price_at_least > best[0] + _TINY:
        return True
    return price_at_least >= best[0] - _TINY and moved_at_least > best[1]


def carries(counts: Counts, need: float, offers: Sequence[Offer]) -> bool:
    """Whether the counts carry the need even without their spare instances, the biggest of them gone first."""
    if need <= 0.0:
        return True
    sizes = [(offer.capacity, count) for offer, count in zip(offers, counts, strict=True)]
    left = _spare(offers)
    capacity = 0.0
    for size, count in sorted(sizes, reverse=True):
        gone = min(left, count)
        left -= gone
        capacity += size * (count - gone)
    return capacity >= need - _TINY


def price(counts: Counts, offers: Sequence[Offer]) -> float:
    """Price of an hour of these counts."""
    return sum(count * offer.price for count, offer in zip(counts, offers, strict=True))


def _spare(offers: Sequence[Offer]) -> int:
    return max((offer.spare for offer in offers), default=0)
