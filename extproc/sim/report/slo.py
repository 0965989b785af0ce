"""Service level objectives: when an answer is good enough for who waits for it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from extproc.core.request import RequestClass
from extproc.errors import ConfigError

_FORM = (
    "CLASS=TTFT,ITL[,END] in seconds, '-' for no limit, END also as times of the unloaded time: "
    "interactive=2,0.05 or batch=-,-,60+10x"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Slo:
    """Limits of one request class; None: no limit."""

    ttft_s: float | None = None
    itl_s: float | None = None  # mean time between two tokens
    end_s: float | None = None  # until the last token
    end_times_unloaded: float | None = None  # times of what the request takes alone on the fleet; with `end_s` the sum

    def met(self, ttft_s: float, tpot_s: float | None, duration_s: float, unloaded_s: float) -> bool:
        """Whether an answer was good: no limit exceeded. An answer of one token has no TPOT and keeps that limit."""
        if self.ttft_s is not None and ttft_s > self.ttft_s:
            return False
        if self.itl_s is not None and tpot_s is not None and tpot_s > self.itl_s:
            return False
        if self.end_s is None and self.end_times_unloaded is None:
            return True
        return duration_s <= (self.end_s or 0.0) + (self.end_times_unloaded or 0.0) * unloaded_s

    def __str__(self) -> str:
        """In words: `TTFT ≤ 2 s, ITL ≤ 50 ms`."""
        parts = [
            f"TTFT ≤ {self.ttft_s:g} s" if self.ttft_s is not None else "",
            f"ITL ≤ {self.itl_s * 1e3:g} ms" if self.itl_s is not None else "",
        ]
        end = [
            f"{self.end_s:g} s" if self.end_s is not None else "",
            f"{self.end_times_unloaded:g} x unloaded" if self.end_times_unloaded is not None else "",
        ]
        parts.append("end ≤ " + " + ".join(filter(None, end)) if any(end) else "")
        return ", ".join(filter(None, parts)) or "any answer"


Slos = Mapping[RequestClass, Slo]

# Interactive: what the comparison of published routers on the same traces counts as good. The others are our choice:
# who hands in a book waits longer for its first word, and nobody waits for a batch unless it mostly stands still.
DEFAULT_SLOS: Slos = {
    RequestClass.INTERACTIVE: Slo(ttft_s=2.0, itl_s=0.05),
    RequestClass.LONG_CONTEXT: Slo(ttft_s=10.0, itl_s=0.1),
    RequestClass.BATCH: Slo(end_s=60.0, end_times_unloaded=10.0),
}


def parse_slos(texts: Iterable[str], defaults: Slos = DEFAULT_SLOS) -> Slos:
    """Defaults changed by `CLASS=TTFT,ITL[,END]` texts; a later one of the same class wins.

    Raises ConfigError, with the form to use, for a text that does not follow it.
    """
    slos = dict(defaults)
    for text in texts:
        name, _, limits = text.partition("=")
        try:
            request_class = RequestClass(name.strip().replace("-", "_"))
            slos[request_class] = _slo(limits)
        except ValueError:
            raise ConfigError(f"SLO {text!r} is not of the form {_FORM}") from None
    return slos


def _slo(limits: str) -> Slo:
    parts = [part.strip() for part in limits.split(",")]
    if not 2 <= len(parts) <= 3:
        raise ValueError(limits)
    ttft_s, itl_s = _limit(parts[0]), _limit(parts[1])
    end = parts[2] if len(parts) == 3 else "-"
    if not end.endswith("x"):
        return Slo(ttft_s=ttft_s, itl_s=itl_s, end_s=_limit(end))
    fixed, _, times = end[:-1].rpartition("+")
    return Slo(ttft_s=ttft_s, itl_s=itl_s, end_s=_limit(fixed or "-"), end_times_unloaded=_limit(times))


def _limit(text: str) -> float | None:
    if text == "-":
        return None
    value = float(text)
    if not (value > 0 and math.isfinite(value)):
        raise ValueError(text)
    return value
