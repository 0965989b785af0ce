"""What speaks against instances that take half a request and that a decision left out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from extproc.core.admission.bounds import Bounds
from extproc.core.pairs.disaggregation import Pair
from extproc.core.pairs.pairing import Pairing
from extproc.core.values.decision import Reason, Rejection


class LeftOut:
    """One look at the halves of which no pair was taken.

    `found` are the pairs that can be made, and `kept` those of them that keep the bounds.
    """

    def __init__(self, pairing: Pairing, found: Sequence[Pair], kept: Sequence[Pair], bounds: Bounds | None) -> None:
        self._pairing, self._lacking = pairing, pairing.lacking()
        self._found, self._kept, self._bounds = found, kept, bounds
        self._domains = {pair.decode.instance.kv_domain for pair in found}

    def told(self, rejected: Iterable[Rejection]) -> tuple[Rejection, ...]:
        """The rejections without those of halves that would have served in a dearer pair."""
        told = (each if each.reason is not Reason.ROLE_TAKES_HALF else self._half(each) for each in rejected)
        return tuple([each for each in told if each is not None])

    def _half(self, rejection: Rejection) -> Rejection | None:
        """What it lacks itself, what keeps it from every pair, or the bound that its pairs break; None if nothing."""
        name = rejection.instance_id
        missed = self._pairing.missed.get(name)
        if missed is not None:
            return missed
        if not self._pairing.can_be_in(name, self._domains):
            return self._lacking.told(rejection)
        return self._beyond(name)

    def _beyond(self, name: str) -> Rejection | None:
        if self._bounds is None or any(map(_with(name), self._kept)):
            return None
        of_it = next(filter(_with(name), self._found), None)
        if of_it is None and self._kept:  # of many that compute prompts alike, only the cheapest were paired
            return None
        pair = of_it or self._found[0]
        return self._bounds.broken(name, pair.ttft_s, pair.decode.tpot_s)


def _with(name: str) -> Callable[[Pair], bool]:
    return lambda pair: name in (pair.prefill.instance.id, pair.decode.instance.id)
