"""The decision: drop the instances that cannot serve a request, price the rest, take the cheapest."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Set
from itertools import islice

import numpy as np

from extproc.core.admission.bounds import Bounds, kept
from extproc.core.eligibility.constraints import Fitting, fitting, last_resorts, obstacle, with_kv_room
from extproc.core.eligibility.continuation import held_elsewhere, with_continuations
from extproc.core.prefixes.cached import Cached, Hits
from extproc.core.pricing.cost import Prices, Pricing
from extproc.core.pricing.near_tie import draw_near_tie, least
from extproc.core.snapshot import Policy, Snapshot
from extproc.core.values.arrays import Flags, Floats
from extproc.core.values.decision import Decision, Rejection
from extproc.core.values.request import Request


def decide(
    request: Request,
    snapshot: Snapshot,
    now: float,
    draw: float,
    full: Set[str] = frozenset(),
    bounds: Bounds | None = None,
    *,
    name_all: bool = False,
) -> Decision:
    """Choose the instance that completes `request` at the least cost.

    `now` is in seconds on the clock of the snapshot; `draw` in [0, 1) settles near-ties; `full` are keys of instances
    that are known to have no place left, whatever the snapshot says. With `bounds` only those may be chosen that are
    predicted to keep them, and none that answered "too much" a moment ago. `name_all`: as alternatives, and not only as
    many as are worth a retry. Where fewer fulfil all constraints than that, those follow that are asked as a last
    resort. No fitting instance is a Decision without `chosen`, never an error.

    The snapshot's columns are brought up to date, by which what has changed is read off the ledger and other parts.
    What is decided upon is not changed: the same call again finds the same, and the caller books the choice.
    """
    snapshot.columns.refresh(snapshot, now)
    found = fitting(request, snapshot, now, full)
    if not (np.count_nonzero(found.able) or found.draining):
        return Decision(None, (), _rejected(request, found, found.able, snapshot, now, full))
    cached = Cached(request, snapshot, now)
    hits = cached.hits()
    if found.draining:
        found = with_continuations(found, request, snapshot, now, hits.tokens())
    found = with_kv_room(found, request, snapshot, hits.tokens())
    asked = found.fit
    rejected = _rejected(request, found, asked, snapshot, now, full, hits.tokens())
    rungs = last_resorts(found, snapshot, now, pushed_back=bounds is None)
    if not np.count_nonzero(asked):
        first = next((each for each in rungs if np.count_nonzero(each)), None)
        if first is None:
            return Decision(None, (), rejected)
        asked = first
    pricing = Pricing(request, snapshot, now, 1.0 if bounds is None else bounds.harm_share)
    prices, eligible = pricing.prices(asked, hits), asked
    if bounds is not None:
        held_to = kept(bounds, prices, asked, request)
        rejected += held_to.rejections(prices, asked)
        eligible = held_to.flags
        if not np.count_nonzero(eligible):
            return Decision(None, (), rejected)
    most = len(eligible) if name_all else snapshot.policy.alternatives
    rows = _drawn(prices.total_s, eligible, snapshot.policy, draw, most)
    chosen, *alternatives = [prices.candidate(row, cached.claims(row)) for row in rows]
    lacking = snapshot.policy.alternatives - len(alternatives)
    if lacking > 0 and found.any_waivable:
        further = _further((rung & ~asked for rung in rungs), request, pricing, hits, bounds)
        alternatives += [resort.candidate(row, cached.claims(row)) for resort, row in islice(further, lacking)]
    return Decision(chosen, tuple(alternatives), rejected)


def _further(
    rungs: Iterable[Flags], request: Request, pricing: Pricing, hits: Hits, bounds: Bounds | None
) -> Iterator[tuple[Prices, int]]:
    """Rows of these rungs in their order, the cheapest of each first, with its prices."""
    for rung in rungs:
        if not np.count_nonzero(rung):
            continue
        prices = pricing.prices(rung, hits)
        kept_to = rung if bounds is None else kept(bounds, prices, rung, request).flags
        total_s = np.where(kept_to, prices.total_s, np.inf)
        for row in least(total_s, int(np.count_nonzero(kept_to))):
            yield prices, row


def _drawn(total_s: Floats, eligible: Flags, policy: Policy, draw: float, most: int) -> list[int]:
    """Row of the cheapest, or of one that the prediction cannot tell from it, and those of the next best, `most`."""
    able = int(np.count_nonzero(eligible))
    if able < len(eligible):
        total_s = np.where(eligible, total_s, np.inf)
    place = min(able - 1, draw_near_tie(total_s, policy, draw))
    ranked = least(total_s, min(able, place + 1 + most))
    return [ranked.pop(place), *ranked[:most]]


def _rejected(
    request: Request,
    found: Fitting,
    fit: Flags,
    snapshot: Snapshot,
    now: float,
    full: Set[str],
    cached_tokens: Floats | None = None,
) -> tuple[Rejection, ...]:
    """Why each of the others does not fit. `cached_tokens` of the prompt; None where that makes no difference."""
    out = len(fit) - np.count_nonzero(fit)
    misfits, of_demand = found.standing.misfits, found.standing.rejected
    if out == len(of_demand):
        return of_demand
    held = np.zeros(len(fit)) if cached_tokens is None else cached_tokens
    elsewhere = held_elsewhere(found.standing.fits, held) if found.draining else 0.0
    rejections = (
        misfits[row] or obstacle(request, snapshot.members[row], snapshot, now, full, held.item(row), elsewhere)
        for row in np.flatnonzero(~fit).tolist()
    )
    return tuple([each for each in rejections if each is not None])
