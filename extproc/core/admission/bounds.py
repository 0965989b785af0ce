"""How long a request may be predicted to take on an instance, and which instances keep that.

Bounds follow from the SLO of the request's class. Of the time between two tokens the tightest class's counts for all,
since all of a batch share its steps. A class that has no TTFT of its own (batch) must leave the others theirs: what
waits ahead of it on its instance must be short, however long its own prompt takes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from extproc.core.pricing.classes import ClassPolicy, ClassWeights, weights_for
from extproc.core.values.arrays import Flags, Floats, Numbers
from extproc.core.values.decision import Reason, Rejection
from extproc.core.values.request import Request

if TYPE_CHECKING:
    from extproc.core.admission.admission import Admission
    from extproc.core.pricing.cost import Prices

# Where nobody could keep a bound though it were idle, it is wider: the fastest's own time and this share of the bound,
# or so many times the fastest's step, less for batch.
_WIDER_TTFT_SHARE = 0.5
_WIDER_STEPS, _WIDER_BATCH_STEPS = 1.5, 1.1
_SLOWED_SHARE = 0.5  # of the time per token, how much its own prompt counts for at the most: a longer one must go, too
_LITTLE_TOKENS = 256  # of a prefix, that are computed in a step or two
_LEFT_PLACES = 0.125  # of an instance's places, that are left to others by who has more than its share: one at least


@dataclass(frozen=True, slots=True)
class Bounds:
    """What may be predicted of one request; infinite where nothing bounds it."""

    ttft_s: float  # with what it has waited already
    tpot_s: float
    waited_s: float = 0.0
    own_prompt: bool = True  # whether computing its own prompt counts to its TTFT
    ahead_s: float = float("inf")  # that may be ahead of it on its instance
    leaves_places: bool = False  # whether it shall not have the last places of a batch, or of the operator's limit
    keeps_prefix: bool = False  # whether it shall go only where the most of its prompt is held
    harm_share: float = 1.0  # of the harm that it does to others, what counts against an instance
    deadline_in_s: float | None = None  # until its client does not wait for the rest of the answer any more

    @property
    def left_s(self) -> float:
        """Of the TTFT that may be predicted, what waiting has left."""
        return self.ttft_s - self.waited_s

    def keeps(self, ttft_s: float, tpot_s: float) -> bool:
        """Whether what is predicted of a pair of instances is within them."""
        return ttft_s <= self.left_s and tpot_s <= self.tpot_s

    def broken(self, instance_id: str, ttft_s: float, tpot_s: float) -> Rejection:
        """The bound that such a prediction breaks; the first token's is named first."""
        if ttft_s > self.left_s:
            return Rejection(instance_id, Reason.TTFT_BEYOND_BOUND, ttft_s, self.left_s)
        return Rejection(instance_id, Reason.TPOT_BEYOND_BOUND, tpot_s, self.tpot_s)


def bounds_for(
    request: Request, classes: ClassPolicy, rules: Admission, now: float, waited_s: float, share: float = 1.0
) -> Bounds:
    """The bounds of a request that has waited so long. `share` below 1 narrows them, as a lower priority does."""
    slos = [weights.slo for weights in classes.classes.values()]
    weights = weights_for(request, classes)
    left_s = None if request.deadline_s is None else request.deadline_s - now
    share *= _share(weights, rules.hold_s(request, now - waited_s), waited_s)
    tpot_s = min((slo.tpot_s for slo in slos if slo.tpot_s is not None), default=float("inf"))
    tpot_s *= rules.tpot_share * share
    ttft_s = weights.slo.ttft_s
    if ttft_s is not None:
        return Bounds(ttft_s * rules.ttft_share * share, tpot_s, waited_s, deadline_in_s=left_s)
    ttft_s = min((slo.ttft_s for slo in slos if slo.ttft_s is not None), default=float("inf"))
    return Bounds(ttft_s * rules.ttft_share * share, tpot_s, own_prompt=False, deadline_in_s=left_s)


def _share(weights: ClassWeights, most_s: float, waited_s: float) -> float:
    """Of the bounds, what a request of this class and priority may use that was held for so long, of `most_s` at most.

    What a class without a TTFT of its own (batch) leaves to the others comes back to it evenly while it is held: where
    they ask all the time it would never be served. A class that has one is held for a share of that alone.
    """
    if weights.slo.ttft_s is not None or most_s <= 0.0:
        return weights.queue_share
    return weights.queue_share + (1.0 - weights.queue_share) * min(1.0, waited_s / most_s)


@dataclass(frozen=True, slots=True)
class Kept:
    """Who of the eligible keeps the bounds; the columns are of all instances."""

    flags: Flags
    least_s: Numbers  # the TTFT if nothing were ahead
    ttft_s: Numbers
    ttft_limit_s: Numbers  # a number is that of all
    tpot_s: Floats
    tpot_limit_s: float
    requests: Numbers = 0.0  # that each would have …
    places: Numbers = float("inf")  # … and may have of such as this one

    def rejections(self, prices: Prices, eligible: Flags) -> tuple[Rejection, ...]:
        """Of those that break a bound, which and by how much."""
        if np.count_nonzero(self.flags) == np.count_nonzero(eligible):
            return ()
        rows = np.flatnonzero(eligible & ~self.flags).tolist()
        return tuple([self._rejection(prices.members[row].instance.id, row) for row in rows])

    def _rejection(self, name: str, row: int) -> Rejection:
        limit_s, ttft_s, least_s = (_at(row, each) for each in (self.ttft_limit_s, self.ttft_s, self.least_s))
        if least_s > limit_s:
            return Rejection(name, Reason.DEADLINE_UNREACHABLE, least_s, max(0.0, limit_s))
        if ttft_s > limit_s:
            return Rejection(name, Reason.TTFT_BEYOND_BOUND, ttft_s, limit_s)
        if self.tpot_s.item(row) > self.tpot_limit_s:
            return Rejection(name, Reason.TPOT_BEYOND_BOUND, self.tpot_s.item(row), self.tpot_limit_s)
        requests, places = _at(row, self.requests), _at(row, self.places)
        if requests > places:
            return Rejection(name, Reason.AT_CONCURRENCY_LIMIT, requests, places)
        return Rejection(name, Reason.PREFIX_ELSEWHERE, "its prefix", "less of it than another")


def kept(bounds: Bounds, prices: Prices, eligible: Flags, request: Request) -> Kept:
    """Hold what is predicted of the eligible against bounds; where nobody keeps them, against wider ones (see above).

    An answer of one token has no TPOT.
    """
    terms_s = prices.terms_s
    tpot_s = prices.tpot_s + np.minimum(prices.slowed_s(), _SLOWED_SHARE * bounds.tpot_s)
    ahead_s = terms_s["queue_s"] + terms_s["loading_s"]
    own_s = terms_s["prefill_s"] + terms_s["communication_s"] if bounds.own_prompt else 0.0 * ahead_s
    ttft_s = ahead_s + own_s
    has_tpot = request.expected_output_tokens > 1
    limit_s, tpot_limit_s = bounds.left_s, bounds.tpot_s if has_tpot else float("inf")
    limits_s = _limits_s(bounds, prices, request, own_s, limit_s)
    flags = eligible & (ttft_s <= limits_s) & (tpot_s <= tpot_limit_s)
    if not np.count_nonzero(flags):
        fastest_s = np.where(eligible, own_s, np.inf).min().item()
        limit_s = max(limit_s, fastest_s + _WIDER_TTFT_SHARE * bounds.ttft_s - bounds.waited_s)
        limits_s = _limits_s(bounds, prices, request, own_s, limit_s)
        wider = _WIDER_STEPS if bounds.own_prompt else _WIDER_BATCH_STEPS
        tpot_limit_s = max(tpot_limit_s, wider * prices.idle_step_s[eligible].min().item())
        flags = eligible & (ttft_s <= limits_s) & (tpot_s <= tpot_limit_s)
    requests: Numbers = 0.0
    places: Numbers = float("inf")
    if bounds.leaves_places:
        requests, places = prices.columns.batch_requests, _places(prices)
        flags &= requests <= places
    if bounds.keeps_prefix:
        held_tokens = prices.hits.tokens()
        flags &= held_tokens >= held_tokens[eligible].max() - _LITTLE_TOKENS
    return Kept(flags, own_s, ttft_s, limits_s, tpot_s, tpot_limit_s, requests, places)


def _places(prices: Prices) -> Floats:
    """How many requests each may have in all of those that leave the last places to others; of one place, that one."""
    places = np.minimum(prices.columns.max_num_seqs, prices.columns.max_in_flight)
    left: Floats = np.where(places < 2.0, places, np.minimum(places - 1.0, np.floor((1.0 - _LEFT_PLACES) * places)))
    return left


def _at(row: int, column: Numbers) -> float:
    return column if isinstance(column, float) else column.item(row)


def _limits_s(bounds: Bounds, prices: Prices, request: Request, own_s: Numbers, limit_s: float) -> Numbers:
    """The TTFT that each may have, a number where it is the same for all."""
    limits_s: Numbers = limit_s
    if bounds.deadline_in_s is not None:
        ends_s = bounds.deadline_in_s - request.output_p50_tokens * prices.idle_step_s
        limits_s = np.minimum(limits_s, ends_s if bounds.own_prompt else ends_s - prices.terms_s["prefill_s"])
    if bounds.ahead_s < float("inf"):
        # A step is always ahead of who comes to a batch: of a slow model it alone is longer.
        limits_s = np.minimum(limits_s, own_s + np.maximum(bounds.ahead_s, _WIDER_STEPS * prices.idle_step_s))
    return limits_s
