"""The LoRA adapters of one engine: slots in the GPU for so many at once, and what it takes to load another.

As in vLLM: an adapter stays in its slot until another one needs it, the one that was used least recently first; one
that running requests use never leaves (`vllm/lora/worker_manager.py`). While one is loaded the batch stands still.
"""

from __future__ import annotations

from collections import Counter, OrderedDict

BASE = ""  # in the place of an adapter's name: none


class AdapterSlots:
    """Which adapters are in the GPU; `max_loras` at once, each of which takes `load_s` seconds to load."""

    def __init__(self, max_loras: int, load_s: float) -> None:
        self.max_loras = max_loras
        self.load_s = load_s
        self.loads = 0  # adapters loaded so far
        self._requests: Counter[str] = Counter()  # running, by adapter
        self._resident: OrderedDict[str, None] = OrderedDict()  # used longest ago first

    @property
    def running(self) -> list[str]:
        """Adapters that running requests use."""
        return list(self._requests)

    @property
    def resident(self) -> list[str]:
        """Adapters in the GPU, used longest ago first."""
        return list(self._resident)

    def admits(self, adapter: str) -> bool:
        """Whether a request may run: its adapter is in use, or there is a slot that no running request uses."""
        return adapter == BASE or adapter in self._requests or len(self._requests) < self.max_loras

    def enter(self, adapter: str) -> float:
        """A request that is admitted runs from now on; returns the seconds of loading that this takes."""
        if adapter == BASE:
            return 0.0
        self._requests[adapter] += 1
        was_there = adapter in self._resident
        self._resident[adapter] = None
        self._resident.move_to_end(adapter)
        if was_there:
            return 0.0
        if len(self._resident) > self.max_loras:
            del self._resident[next(each for each in self._resident if each not in self._requests)]
        self.loads += 1
        return self.load_s

    def leave(self, adapter: str) -> None:
        """A request runs no more; its adapter stays."""
        if adapter == BASE:
            return
        self._resident.move_to_end(adapter)
        self._requests[adapter] -= 1
        if not self._requests[adapter]:
            del self._requests[adapter]
