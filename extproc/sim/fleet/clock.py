"""A virtual clock: what shall happen is called in the order of its time."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any


class Clock:
    """Calls at given moments; those of one moment in the order in which they were asked for."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._calls: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._number = 0

    def at(self, when_s: float, call: Callable[..., None], *args: Any) -> None:
        """Call `call(*args)` at `when_s`, or at once after the running call if that is past."""
        self._number += 1
        heapq.heappush(self._calls, (max(when_s, self.now_s), self._number, call, args))

    def run(self, goes_on: Callable[[], bool]) -> None:
        """Make the calls one after another, as long as there are any and `goes_on` says so."""
        calls, pop = self._calls, heapq.heappop
        while calls and goes_on():
            self.now_s, _, call, args = pop(calls)
            call(*args)
