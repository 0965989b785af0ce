"""Made-up texts: how long they are, and the names of their blocks."""

from __future__ import annotations

import math
from bisect import bisect
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from random import Random
from typing import Any

import msgspec

from extproc.sim.traffic.arrival import Arrival

BLOCK_TOKENS = 64  # of all made-up workloads


class Text(msgspec.Struct, frozen=True):
    """A prompt so far. Texts that begin alike share the names of the full blocks that they have in common."""

    tokens: int = 0
    blocks: tuple[int, ...] = ()


class Writer:
    """Continues texts; every block that it fills is new to the workload."""

    def __init__(self) -> None:
        self._next = 0

    def after(self, text: Text, tokens: int) -> Text:
        """`text` and `tokens` more that stand nowhere else."""
        total, first = text.tokens + tokens, self._next
        self._next = next_ = first + total // BLOCK_TOKENS - len(text.blocks)
        return Text(total, text.blocks + tuple(range(first, next_)))

    def asked(self, prompt: Text, answer_tokens: int, **said: Any) -> tuple[Arrival, Text]:
        """The request with this prompt, `said` being the other fields of an `Arrival`; and the text with its answer."""
        text = self.after(prompt, answer_tokens)
        arrival = Arrival(prompt_tokens=prompt.tokens, output_tokens=answer_tokens, blocks=text.blocks, **said)
        return arrival, text


@dataclass(frozen=True, slots=True)
class Lengths:
    """Numbers with a log-normal distribution, kept between two limits: lengths, counts, waits."""

    median: float
    sigma: float
    least: float
    most: float
    _log_median: float = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Hundreds of thousands are drawn for a workload: the logarithm is taken once."""
        object.__setattr__(self, "_log_median", math.log(self.median))

    def draw(self, random: Random) -> float:
        """One of them."""
        drawn = random.lognormvariate(self._log_median, self.sigma)
        return self.least if drawn < self.least else min(drawn, self.most)

    def whole(self, random: Random) -> int:
        """One of them as a whole number."""
        return round(self.draw(random))

    @property
    def mean(self) -> float:
        """Their mean, as if there were no limits."""
        return self.median * math.exp(self.sigma**2 / 2)


def zipf(items: int, exponent: float = 1.0) -> Sequence[float]:
    """Weights of things of which few are popular, summed up for `pick`."""
    return list(accumulate(1 / rank**exponent for rank in range(1, items + 1)))


def pick(random: Random, cumulative: Sequence[float]) -> int:
    """Index of one of them, by such weights."""
    return bisect(cumulative, random.random() * cumulative[-1], 0, len(cumulative) - 1)
