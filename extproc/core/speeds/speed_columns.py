"""How fast one model is on each instance, as columns: what `Speed` says of one, worked out for all at once."""

from __future__ import annotations

import numpy as np

from extproc.core.speeds.speed import Speed
from extproc.core.values.arrays import Flags, Floats, Numbers

_COEFFICIENTS = 6
_HALF = np.array(0.5)


class SpeedColumns:
    """`Speed.coefficients`, one place an instance; of those that nobody asked for they have no meaning."""

    def __init__(self, rows: int) -> None:
        self.asked: Flags = np.zeros(rows, np.bool_)  # of whom the speed is known
        self._table: Floats = np.zeros((_COEFFICIENTS, rows))
        self.begin_s, self.token_s, self.pair_s, self.step_s, self.sequence_s, self.context_s = self._table

    def write(self, row: int, speed: Speed) -> None:
        """What is known of one instance's speed."""
        self._table[:, row] = speed.coefficients()
        self.asked[row] = True

    def prefill_s(self, new_tokens: Numbers, cached_tokens: Numbers) -> Floats:
        """Seconds to compute so many tokens of a prompt after those that are cached."""
        token_s: Floats = self.token_s + self.pair_s * (cached_tokens + new_tokens * _HALF)
        prefill_s: Floats = self.begin_s + new_tokens * token_s
        return prefill_s

    def growth_s(self, sequences: Numbers, context_tokens: Numbers) -> Floats:
        """Seconds of a decode step beyond that of an empty batch."""
        growth_s: Floats = self.sequence_s * sequences + self.context_s * context_tokens
        return growth_s
