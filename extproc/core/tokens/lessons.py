"""How many outcomes of a model teach what hundreds of them have taught already: all of them, up to a rate."""

from __future__ import annotations

from collections import OrderedDict

LESSONS_PER_S = 100.0  # of one model; what is learned looks back on some hundred to two thousand requests
_MAX_MODELS = 256


class Lessons:
    """An allowance a model, refilled by time: one second's lessons may come at once.

    What is left out is chosen by time alone, so that it is not of one kind.
    """

    def __init__(self, per_s: float = LESSONS_PER_S) -> None:
        self._per_s = per_s
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()  # lessons, and when they were counted

    def take(self, model: str, now: float) -> bool:
        """Whether one more outcome of a model is to be learned from. `now` in seconds."""
        known = self._left.get(model)
        if known is None:
            left = self._per_s
            if len(self._left) >= _MAX_MODELS:
                self._left.popitem(last=False)
        else:
            left = min(self._per_s, known[0] + max(0.0, now - known[1]) * self._per_s)
        taken = left >= 1.0
        self._left[model] = (left - taken, now)
        return taken
