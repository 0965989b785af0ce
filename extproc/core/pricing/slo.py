"""Service level objective of a class of requests: when an answer is good enough for who waits for it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Slo:
    """Limits of one class of requests; None: no limit."""

    ttft_s: float | None = None
    tpot_s: float | None = None  # mean time between two tokens
    completion_s: float | None = None  # until the last token
    completion_times_unloaded: float | None = None  # times of what it takes alone; with `completion_s` the sum

    def met(self, ttft_s: float, tpot_s: float | None, duration_s: float, unloaded_s: float) -> bool:
        """Whether an answer was good: no limit exceeded. An answer of one token has no TPOT and keeps that limit."""
        if self.ttft_s is not None and ttft_s > self.ttft_s:
            return False
        if self.tpot_s is not None and tpot_s is not None and tpot_s > self.tpot_s:
            return False
        if self.completion_s is None and self.completion_times_unloaded is None:
            return True
        return duration_s <= (self.completion_s or 0.0) + (self.completion_times_unloaded or 0.0) * unloaded_s

    def __str__(self) -> str:
        """In words: `TTFT ≤ 2 s, ITL ≤ 50 ms`."""
        parts = [
            f"TTFT ≤ {self.ttft_s:g} s" if self.ttft_s is not None else "",
            f"ITL ≤ {self.tpot_s * 1e3:g} ms" if self.tpot_s is not None else "",
        ]
        end = [
            f"{self.completion_s:g} s" if self.completion_s is not None else "",
            f"{self.completion_times_unloaded:g} x unloaded" if self.completion_times_unloaded is not None else "",
        ]
        parts.append("end ≤ " + " + ".join(filter(None, end)) if any(end) else "")
        return ", ".join(filter(None, parts)) or "any answer"
