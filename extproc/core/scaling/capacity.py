"""How many requests a second instances carry within their SLO, from their speed and the sizes of requests.

What is beyond the SLO even on an idle instance (a prompt that is too long for its TTFT) is no matter of how many there
are: of the other answers, a share must be good. A limit that most answers exceed alone is doubled until they do not, so
that an SLO that nobody can keep does not call for ever more instances.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from statistics import median

from extproc.core.pricing.classes import ClassPolicy
from extproc.core.pricing.slo import Slo
from extproc.core.scaling.batch import Limits, Work
from extproc.core.scaling.demand import Demand
from extproc.core.speeds.speed import Speed
from extproc.core.values.instance import Instance
from extproc.core.values.request import LONG_CONTEXT_TOKENS, RequestClass

__all__ = ["GOOD", "Limits", "capacity_rps", "limits_of", "load_of", "long_context", "tightest"]

GOOD = 0.99  # share of answers that are within their SLO at capacity
_HOPELESS = 0.5  # share of answers that exceed a limit alone, from which on it is another
_DOUBLINGS = 10
_STEPS = 40  # evaluations at the most
_LEAST = 1e-6  # of the requests a second that fill the batch; above 0 even where nothing can be carried
_NEAR, _EXACT = 0.03, 1e-3  # one more secant is enough from so near an end, or within so small a part
_TRUSTED = 4  # secants until one is not
_TINY = 1e-8  # share of bad answers, and of good ones


def limits_of(instances: Iterable[Instance]) -> Limits:
    """Return the usual limits of instances alike: of each, the median of those that are known."""
    those, usual = list(instances), Limits()
    seqs = [each.max_num_seqs for each in those if each.max_num_seqs]
    steps = [each.step_tokens for each in those if each.step_tokens]
    rooms = [each.kv_blocks * each.block_size_tokens for each in those if each.kv_blocks and each.block_size_tokens]
    return Limits(
        max_num_seqs=int(median(seqs)) if seqs else usual.max_num_seqs,
        kv_tokens=float(median(rooms)) if rooms else None,
        step_tokens=int(median(steps)) if steps else usual.step_tokens,
    )


def tightest(classes: ClassPolicy) -> Slo:
    """Return the least TTFT and the least TPOT that any class promises, None where none does."""
    slos = [weights.slo for weights in classes.classes.values()]
    return Slo(
        ttft_s=min((slo.ttft_s for slo in slos if slo.ttft_s is not None), default=None),
        tpot_s=min((slo.tpot_s for slo in slos if slo.tpot_s is not None), default=None),
    )


def long_context(classes: ClassPolicy) -> Slo:
    """Return what is promised to prompts of `LONG_CONTEXT_TOKENS` and more."""
    return classes.classes[RequestClass.LONG_CONTEXT].slo


@dataclass(frozen=True, slots=True)
class Edge:
    """Where the share of bad answers passes what may be: the next one is looked for near the last."""

    share: float = 0.8  # of the requests a second at which the batch is always full
    slope: float = 20.0  # of the odds' logarithm, by that share
    rps: float = math.nan  # on each instance


def capacity_rps(
    speed: Speed,
    demand: Demand,
    limits: Limits,
    slo: Slo,
    *,
    long: Slo | None = None,
    instances: float = 1.0,
    good: float = GOOD,
) -> float:
    """Return the most requests a second that each of `instances` alike carries with `good` of them within the SLO.

    `long` is that of prompts of `LONG_CONTEXT_TOKENS` and more; None: the same. Of `demand` only sizes and burstiness
    count. Always above 0.
    """
    work, beyond = _judged(speed, demand, limits, slo, long, good)
    return _edge(lambda rps: beyond(rps, instances), work.most_rps, Edge()).rps


def load_of(
    speed: Speed, demand: Demand, limits: Limits, slo: Slo, *, long: Slo | None = None, good: float = GOOD
) -> float:
    """Return how many such instances `demand` fills within the SLO; with more of them, each carries more.

    Rounded up, it is how many are needed.
    """
    if demand.requests_s <= 0.0:
        return 0.0
    return demand.requests_s / edge_of(speed, demand, limits, slo, long=long, good=good).rps


def edge_of(
    speed: Speed,
    demand: Demand,
    limits: Limits,
    slo: Slo,
    *,
    long: Slo | None = None,
    near: Edge | None = None,
    good: float = GOOD,
) -> Edge:
    """Return what each of as many such instances carries as `demand` fills, be it a part of one.

    `near`: what was found for nearly the same; it is found sooner so, and the same.
    """
    work, beyond = _judged(speed, demand, limits, slo, long, good)
    return _edge(lambda rps: beyond(rps, max(1.0, demand.requests_s / rps)), work.most_rps, near or Edge())


def _judged(
    speed: Speed, demand: Demand, limits: Limits, slo: Slo, long: Slo | None, good: float
) -> tuple[Work, Callable[[float, float], float]]:
    """(the work, how much likelier than it may be a load makes an answer bad: the logarithm of the odds over those).

    The latter is nearly a straight line. Of requests a second on each of so many instances.
    """
    split_tokens = math.inf if long is None or long == slo else LONG_CONTEXT_TOKENS
    work = Work.of(speed, demand, limits, long_tokens=split_tokens)
    slos, alone = [], 0.0
    for part, promised in zip(work.parts, (slo, long or slo), strict=False):
        kept, bad = _kept_alone(work.only(part), promised)
        slos.append(kept)
        alone += part.share * bad
    may_be = _log_odds(1.0 - good)
    return (
        work,
        lambda rps, instances: _log_odds((work.bad_share(rps, instances, *slos) - alone) / (1.0 - alone)) - may_be,
    )


def _kept_alone(work: Work, slo: Slo) -> tuple[Slo, float]:
    """The limits that most answers keep on an idle instance, and the share of those that do not."""
    ttft_s, late = _kept(slo.ttft_s, lambda limit_s: work.bad_share(0.0, 1.0, Slo(ttft_s=limit_s)))
    tpot_s, slow = _kept(slo.tpot_s, lambda limit_s: work.bad_share(0.0, 1.0, Slo(tpot_s=limit_s)))
    return Slo(ttft_s=ttft_s, tpot_s=tpot_s), min(1.0, late + slow)


def _log_odds(share: float) -> float:
    share = min(max(share, _TINY), 1.0 - _TINY)
    return math.log(share / (1.0 - share))


def _kept(limit_s: float | None, beyond: Callable[[float], float]) -> tuple[float | None, float]:
    """The limit, doubled until most answers on an idle instance are within it, and the share beyond it.

    None stays none, and so is one that never is.
    """
    for _ in range(_DOUBLINGS):
        if limit_s is None:
            break
        if (share := beyond(limit_s)) < _HOPELESS:
            return limit_s, share
        limit_s *= 2.0
    return None, 0.0


def _edge(beyond: Callable[[float], float], most_rps: float, near: Edge) -> Edge:
    """Where a growing function of up to `most_rps` passes 0: by secants, and halving where they lead astray."""
    least, most = _LEAST, 1.0
    at, slope = near.share, near.slope
    before_at = before = math.nan
    for step in range(1, _STEPS):
        value = beyond(at * most_rps)
        if value < 0.0:
            least = at
        else:
            most = at
        if (value - before) * (at - before_at) > 0.0:
            slope = (value - before) / (at - before_at)
        found = min(max(at - value / slope, least), most)
        if abs(value) <= _NEAR or most - least <= _EXACT * most:
            break
        before_at, before = at, value
        at = found if step % _TRUSTED and least < found < most else (least + most) / 2.0
    return Edge(found, slope, found * most_rps)
