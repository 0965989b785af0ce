"""How much of the computed capacity is true, learned for each pool from how answers did beside the load they met.

An answer within its SLO at some load says that capacity is that much at the least, and a late or slow one that it is
not more. All else says nothing: good answers where there was room anyway, bad ones where more was asked than can be
carried, or while a backlog of such a time is worked off.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import msgspec

from extproc.core.scaling.demand import JUDGED_S

LEAST, MOST = 0.4, 1.3
_BAD = 0.05  # share of answers beyond their SLO from which on it is told
_GOOD = 0.01  # and up to which all is well
_LEARN_S = 300.0  # of such answers, in which two thirds of a difference are learned
_FADE_S = 6 * 3600.0  # in which two thirds are forgotten
_SETTLE_S = 60.0  # after another number of instances
_RELIEVED_S = JUDGED_S + _SETTLE_S  # after too much load, until all that are judged have come since
_ENOUGH = 20.0  # judged answers
_NEAR = 0.95  # share of what can be carried, from which on answers may be bad
_GAP_S = 60.0  # a look counts for no longer


class _Pool(msgspec.Struct):
    factor: float = 1.0
    at_s: float = -math.inf
    instances: int = -1
    settled_s: float = -math.inf  # from here on bad answers tell of the capacity


@dataclass(frozen=True, slots=True, kw_only=True)
class Met:
    """What a pool's answers met in a window, and how they did."""

    used: float  # load per Ready instance, by the computed capacity: 1 fills it; infinite where none is Ready
    instances: int  # Ready
    judged: float
    bad_share: float
    judged_s: float = JUDGED_S  # seconds that those judged came within: more where they are few


class Correction:
    """Factors on the computed capacity, by pool: between `LEAST` and `MOST`, 1 where nothing was learned."""

    def __init__(self) -> None:
        self._pools: dict[str, _Pool] = {}

    def factor(self, pool: str) -> float:
        """Return what the computed capacity is to be multiplied by."""
        known = self._pools.get(pool)
        return known.factor if known else 1.0

    def learn(self, pool: str, at_s: float, met: Met) -> None:
        """Take in one look at a pool."""
        known = self._pools.setdefault(pool, _Pool())
        passed_s = max(0.0, min(_GAP_S, at_s - known.at_s))
        known.at_s = at_s
        if met.instances != known.instances:
            known.instances, known.settled_s = met.instances, max(known.settled_s, at_s + _SETTLE_S)
        if met.used >= _NEAR * known.factor:
            known.settled_s = at_s + _RELIEVED_S
        known.factor = 1.0 + (known.factor - 1.0) * math.exp(-passed_s / _FADE_S)
        if met.judged < _ENOUGH or met.instances < 1:
            return
        bad = met.bad_share >= _BAD and at_s >= known.settled_s + max(0.0, met.judged_s - JUDGED_S)
        good = met.bad_share <= _GOOD and met.used > known.factor
        if bad or good:
            aim = max(LEAST, min(MOST, met.used))
            known.factor += (aim - known.factor) * -math.expm1(-passed_s / _LEARN_S)

    def not_after(self, at_s: float) -> None:
        """Nothing learned is of a time to come: where it seems so, it is as much older. Another clock was ahead."""
        for known in self._pools.values():
            if known.at_s > at_s:
                known.settled_s -= known.at_s - at_s
                known.at_s = at_s

    def dump(self) -> bytes:
        """Return all that was learned."""
        return msgspec.msgpack.encode(self._pools)

    def load(self, data: bytes) -> None:
        """Take what another has learned. Raises one of UNREADABLE for what `dump` has not written."""
        self._pools = msgspec.msgpack.decode(data, type=dict[str, _Pool])
