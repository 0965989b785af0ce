"""How long a start takes until the model is served: learned from starts seen, told while one is under way. Pure."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

from extproc.agent.lifecycle import Sight
from extproc.core.values.instance import COMING, Lifecycle

if TYPE_CHECKING:
    from collections.abc import Sequence

STARTS_KEPT = 9  # of each kind; the oldest is forgotten
_LONGEST_S = 6 * 3600.0  # what took longer was no start but a machine that stood still
_SKEW_S = 60.0  # that the engine's clock may be behind ours
_DEFINITE = (Sight.REFUSED, Sight.ILL, Sight.NO_MODEL)  # an engine that is merely slow looks like none of these


@dataclass(frozen=True, slots=True)
class Kind:
    """What a start's duration depends on. `storage` is the operator's label for where the weights come from."""

    model: str = ""
    hardware: str = ""
    storage: str = ""


class ColdStarts:
    """Durations of past starts, in seconds, by kind; and of all models together, for a start whose model is unknown."""

    def __init__(self, kept: int = STARTS_KEPT) -> None:
        self._kept = kept
        self._durations_s: dict[Kind, deque[float]] = {}

    def learn(self, kind: Kind, duration_s: float) -> None:
        """Remember one start."""
        for each in {kind, _any_model(kind)}:
            self._durations_s.setdefault(each, deque(maxlen=self._kept)).append(duration_s)

    def expected_s(self, kind: Kind) -> float | None:
        """Median duration of such starts; None if none was seen."""
        return median(seen) if (seen := self._known(kind)) else None

    def remaining_s(self, kind: Kind, elapsed_s: float) -> float | None:
        """Median of what starts that took longer than `elapsed_s` still needed; None if none took longer."""
        left_s = [duration_s - elapsed_s for duration_s in self._known(kind) if duration_s > elapsed_s]
        return median(left_s) if left_s else None

    def dump(self) -> list[tuple[Kind, list[float]]]:
        """Everything that was learned, oldest first."""
        return [(kind, list(seen)) for kind, seen in self._durations_s.items()]

    def load(self, dumped: Sequence[tuple[Kind, Sequence[float]]]) -> None:
        """Take what an earlier `dump` gave."""
        for kind, durations_s in dumped:
            self._durations_s[kind] = deque(durations_s, maxlen=self._kept)

    def _known(self, kind: Kind) -> Sequence[float]:
        return self._durations_s.get(kind) or self._durations_s.get(_any_model(kind)) or ()


def _any_model(kind: Kind) -> Kind:
    return Kind("", kind.hardware, kind.storage)


class Start:
    """Follows one backend from the first sign that it is starting until it is ready. Times are Unix seconds."""

    def __init__(self) -> None:
        self._before: Lifecycle | None = None
        self._began_s: float | None = None
        self._definite = False
        self._after_ready = False  # it served before, so another process must have begun since

    def observe(
        self, sight: Sight, lifecycle: Lifecycle, process_started_s: float | None, now_s: float
    ) -> float | None:
        """Take what a look found; returns the start's duration in seconds when it has just become ready.

        `process_started_s` is the engine's own word. Without it a start begins with the first answer, else where the
        port was first seen closed.
        """
        before, self._before = self._before, lifecycle
        if sight is Sight.ASLEEP:  # it wakes when told to, which is no start
            self._forget()
            return None
        if lifecycle is Lifecycle.READY:
            duration_s = self._duration_s(process_started_s, now_s)
            self._forget()
            return duration_s
        self._after_ready = self._after_ready or before is Lifecycle.READY
        if self._began_s is None or (lifecycle is Lifecycle.LOADING and before is not Lifecycle.LOADING):
            self._began_s = now_s
        self._definite = self._definite or sight in _DEFINITE
        return None

    def _duration_s(self, process_started_s: float | None, now_s: float) -> float | None:
        if self._began_s is None or not self._definite:
            return None
        if process_started_s is not None and self._after_ready and process_started_s < self._began_s - _SKEW_S:
            return None  # the process that was ready before: it was away, and did not start
        began_s = self._began_s if process_started_s is None else process_started_s
        return now_s - began_s if 0 < now_s - began_s < _LONGEST_S else None

    def _forget(self) -> None:
        self._began_s, self._definite, self._after_ready = None, False, False

    def elapsed_s(self, now_s: float) -> float | None:
        """Seconds since the start that is under way began; None if none is, or only a process that is away."""
        if self._began_s is None or self._before not in COMING:
            return None
        return max(0.0, now_s - self._began_s)


def outlook(starts: ColdStarts, kind: Kind, elapsed_s: float | None) -> tuple[float | None, float | None]:
    """Progress (0 to 1) of a start that runs for `elapsed_s`, and seconds until it is over; None where unknown."""
    remaining_s = None if elapsed_s is None else starts.remaining_s(kind, elapsed_s)
    if elapsed_s is None or remaining_s is None:
        return None, None
    return elapsed_s / (elapsed_s + remaining_s), remaining_s
