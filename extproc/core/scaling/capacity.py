"""How many requests a second instances carry within their SLO, from their speed and the sizes of requests.

What is beyond the SLO even on an idle instance (a prompt that is too long for its TTFT) is no matter of how many there
are: of the other answers, a share must be good. A limit that most answers exceed alone is doubled until they do not, so
that an SLO that nobody can keep does not call for ever more instances.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from statistics import median

from extproc.core.pricing.classes import ClassPolicy
from extproc.core.pricing.slo import Slo
from extproc.core.scaling.batch import Limits, Work
from extproc.core.scaling.demand import Demand
from extproc.core.speeds.speed import Speed
from extproc.core.values.instance import Instance

__all__ = ["GOOD", "Limits", "capacity_rps", "limits_of", "load_of", "tightest"]

GOOD = 0.99  # share of answers that are within their SLO at capacity
_HOPELESS = 0.5  # share of answers that exceed a limit alone, from which on it is another
_DOUBLINGS = 10
_STEPS, _EXACT = 24, 2e-3
_NONE, _FULL = 1e-6, 4.6  # shares over what may be bad; the logarithm of all over 1 %


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


def capacity_rps(
    speed: Speed, demand: Demand, limits: Limits, slo: Slo, *, instances: float = 1.0, good: float = GOOD
) -> float:
    """Return the most requests a second that each of `instances` alike carries with `good` of them within the SLO.

    Of `demand` only sizes and burstiness count. Always above 0.
    """
    work = Work.of(speed, demand, limits)
    beyond = _beyond(work, slo, good)
    return _edge(lambda rps: beyond(rps, instances), 0.0, work.most_rps)


def load_of(speed: Speed, demand: Demand, limits: Limits, slo: Slo, *, good: float = GOOD) -> float:
    """Return how many such instances `demand` fills within the SLO; with more of them, each carries more.

    Rounded up, it is how many are needed.
    """
    if demand.requests_s <= 0.0:
        return 0.0
    work = Work.of(speed, demand, limits)
    beyond = _beyond(work, slo, good)
    alone = _edge(lambda rps: beyond(rps, 1.0), 0.0, work.most_rps)
    if demand.requests_s <= alone:
        return demand.requests_s / alone
    return demand.requests_s / _edge(lambda rps: beyond(rps, demand.requests_s / rps), alone, work.most_rps)


def _beyond(work: Work, slo: Slo, good: float) -> Callable[[float, float], float]:
    """Share of answers that a load makes bad, over what may be; of requests a second on each of so many instances."""
    slo = _within_reach(work, slo)
    alone = work.bad_share(0.0, 1.0, slo)
    may_be = (1.0 - good) * (1.0 - alone)
    return lambda rps, instances: (work.bad_share(rps, instances, slo) - alone) / may_be


def _within_reach(work: Work, slo: Slo) -> Slo:
    """The SLO with such limits as most answers keep on an idle instance."""
    return Slo(
        ttft_s=_kept(slo.ttft_s, lambda limit_s: work.bad_share(0.0, 1.0, Slo(ttft_s=limit_s))),
        tpot_s=_kept(slo.tpot_s, lambda limit_s: work.bad_share(0.0, 1.0, Slo(tpot_s=limit_s))),
    )


def _kept(limit_s: float | None, beyond: Callable[[float], float]) -> float | None:
    """The limit, doubled until most answers are within it; None stays none, and so is one that never is."""
    for _ in range(_DOUBLINGS):
        if limit_s is None or beyond(limit_s) < _HOPELESS:
            return limit_s
        limit_s *= 2.0
    return None


def _edge(beyond: Callable[[float], float], least: float, most: float) -> float:
    """Where a growing function passes 1, `least` if it is there already; on its logarithm by Illinois and halving."""
    low, high = math.log(max(beyond(least), _NONE)), _FULL
    if low >= 0.0:
        return least
    side = 0
    for step in range(_STEPS):
        if most - least <= _EXACT * most:
            break
        middle = (least * high - most * low) / (high - low) if step % 3 else (least + most) / 2.0
        middle = min(max(middle, least + 0.1 * (most - least)), most - 0.1 * (most - least))
        value = math.log(max(beyond(middle), _NONE))
        if value < 0.0:
            least, low, high = middle, value, high / 2.0 if side < 0 else high
            side = -1
        else:
            most, high, low = middle, value, low / 2.0 if side > 0 else low
            side = 1
    return least or most  # however near to 0 that is
