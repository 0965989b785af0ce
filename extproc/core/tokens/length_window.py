"""A sliding window of answer lengths and the distribution that it shows, answers that were cut short included.

An answer that ended at its cap only tells that its length would have been at least that: it is right-censored. The
distribution is the product-limit estimate (E. L. Kaplan and P. Meier, Nonparametric Estimation from Incomplete
Observations, 1958): the mass of a censored answer moves to the longer ones, and what remains beyond the longest answer
is put there, as Efron has it. So means and quantiles are too low where most answers are cut, and right where a request
has a cap that is no larger than theirs. The estimate assumes that caps do not depend on the lengths; clients that
choose small caps for short answers are kept apart by their cap's bucket (see `output_lengths`).
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Iterable

_REFRESH_SHARE = 32  # a distribution is rebuilt once this fraction of the window is new


class Distribution:
    """Lengths with cumulated probability; both queries cost O(log n)."""

    __slots__ = ("_lengths", "_mass", "_moment")

    def __init__(self, lengths_tokens: Iterable[int], probabilities: Iterable[float]) -> None:
        """Lengths ascend; probabilities belong to them in that order and add up to 1."""
        self._lengths = array("q", lengths_tokens)
        self._mass = array("d")  # probability of a length up to this one
        self._moment = array("d")  # its share of the mean
        mass = moment = 0.0
        for length, probability in zip(self._lengths, probabilities, strict=True):
            mass += probability
            moment += probability * length
            self._mass.append(mass)
            self._moment.append(moment)

    def quantile(self, share: float) -> int:
        """The smallest length in tokens that at least `share` of the answers do not exceed."""
        index = bisect_left(self._mass, share - 1e-9)
        return self._lengths[min(index, len(self._lengths) - 1)]

    def mean(self, limit_tokens: float | None = None) -> float:
        """Mean length in tokens of answers that stop at the limit."""
        if limit_tokens is None:
            return self._moment[-1]
        below = bisect_right(self._lengths, limit_tokens)
        if not below:
            return float(limit_tokens)
        return self._moment[below - 1] + max(0.0, 1.0 - self._mass[below - 1]) * limit_tokens


class LengthWindow:
    """The last `capacity` answers of one kind. `seeds` stand in for answers and leave one by one as answers come."""

    __slots__ = ("_capacity", "_distribution", "_fresh", "_in_order", "_seeds", "_sorted")

    def __init__(self, capacity: int, seeds: Iterable[int] = ()) -> None:
        self._capacity = capacity
        # Twice the length, plus one if it is a lower bound: one small integer, which sorts bounds after equal lengths.
        self._in_order = deque(2 * length for length in seeds)
        self._sorted = sorted(self._in_order)
        self._seeds = len(self._sorted)
        self._distribution: Distribution | None = None
        self._fresh = 0  # answers that the distribution does not know yet

    def __len__(self) -> int:
        """Answers in the window, seeds included."""
        return len(self._sorted)

    @property
    def learned(self) -> int:
        """Answers in the window that came, without seeds."""
        return len(self._sorted) - self._seeds

    def add(self, length_tokens: int, is_bound: bool) -> None:
        """Take in one answer; `is_bound` says that it was cut there. O(log n) comparisons."""
        if self._seeds or len(self._sorted) >= self._capacity:
            del self._sorted[bisect_left(self._sorted, self._in_order.popleft())]
            self._seeds = max(0, self._seeds - 1)
        code = 2 * length_tokens + is_bound
        self._in_order.append(code)
        insort(self._sorted, code)
        self._fresh += 1

    def distribution(self) -> Distribution:
        """The window's distribution, at most 1/32 of a window old. Raises ValueError when the window is empty."""
        if self._distribution is None or self._fresh > len(self._sorted) // _REFRESH_SHARE:
            self._distribution = _product_limit(self._sorted)
            self._fresh = 0
        return self._distribution


def _product_limit(codes: list[int]) -> Distribution:
    if not codes:
        raise ValueError("an empty window has no distribution")
    lengths: list[int] = []
    probabilities: list[float] = []
    surviving = 1.0
    for index, code in enumerate(codes):
        if not code & 1:
            share = surviving / (len(codes) - index)
            lengths.append(code >> 1)
            probabilities.append(share)
            surviving -= share
    if codes[-1] & 1:
        lengths.append(codes[-1] >> 1)
        probabilities.append(surviving)
    return Distribution(lengths, probabilities)
