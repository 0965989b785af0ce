"""How long the slowest requests wait for their first token, and how much more such seconds count.

The sum of all delays is least if a few long prompts wait for the sake of many short ones. Their owners see the worst of
it, and so does a p99. So what a request waits beyond what 19 of 20 wait counts `WEIGHT` times more; that concerns few
requests, and the others are placed by the sum. The longer the tail is than what anybody would call good, the less is
won by placing for it, and the more it costs others: its weight falls as it grows.

Of these seconds those count `_OWN_SHARE` as much in which the request's own prompt is computed. A queue is nobody's
gain; but were long prompts kept off slow GPUs at any price, the fast ones would have nothing but long prompts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from extproc.core.values.arrays import Number

WEIGHT = 40.0
_OWN_SHARE = 0.125
_SHARE = 0.05  # of requests that are in the tail
_GOOD_S = 1.0  # TTFT that is good; with a tail as long as this the weight is half
_STEP = 0.05  # of each request's word, as a change of the logarithm
_LEAST_S, _MOST_S = 0.1, 600.0  # what seems immediate is no tail: nothing is won there by slowing answers


def counted_s(beyond_s: Number, waited_s: Number, weight: float) -> Number:
    """What seconds beyond the tail's beginning count more, of which so many are not the own prompt's."""
    return waited_s * (weight * (1.0 - _OWN_SHARE)) + beyond_s * (weight * _OWN_SHARE)


@dataclass(slots=True)
class TtftTail:
    """The 95th percentile of predicted TTFT, followed by stochastic approximation (Robbins and Monro) in its log."""

    begins_s: float = 0.5

    @property
    def weight(self) -> float:
        """What each second in the tail counts beside the one that it is."""
        return WEIGHT / (1.0 + self.begins_s / _GOOD_S)

    def add(self, ttft_s: float) -> None:
        """A request was sent where its first token is expected after so long."""
        step = _STEP * ((ttft_s > self.begins_s) - _SHARE)
        self.begins_s = min(_MOST_S, max(_LEAST_S, self.begins_s * math.exp(step)))
