"""From what probes of one backend see, over time, to its lifecycle and its incarnation. No I/O, no clock.

One probe that fails proves little: a loaded engine answers late. So a ready instance stays ready until three probes
in a row have failed. A refused connection is definite at once: nobody listens.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from extproc.core.model import Lifecycle

FAILURES_UNTIL_UNHEALTHY = 3


class Sight(StrEnum):
    """What one probe saw."""

    REFUSED = "refused"  # nobody listens on the port
    SILENT = "silent"  # no complete answer in time
    ILL = "ill"  # answers, and says that it is not healthy
    NO_MODEL = "no_model"  # healthy, but lists no model
    SERVING = "serving"


@dataclass(frozen=True, slots=True)
class Probe:
    """One probe's result. `started` and `work_done` are those of the engine's `Reading`."""

    sight: Sight
    detail: str = ""  # for people
    started: str = ""
    work_done: float | None = None


@dataclass(frozen=True, slots=True)
class Standing:
    """What is published about a backend's life."""

    lifecycle: Lifecycle
    reason: str
    incarnation: str


class LifecycleTracker:
    """Follows one backend. `born` names this run of the agent, for engines that do not tell when they started."""

    def __init__(self, born: str, failures: int = FAILURES_UNTIL_UNHEALTHY) -> None:
        self._born = born
        self._limit = failures
        self._lifecycle = Lifecycle.STARTING
        self._reason = "not probed yet"
        self._failures = 0  # in a row
        self._refused = False  # since the last answer
        self._answered = False  # ever
        self._was_ready = False  # in this incarnation
        self._started = ""
        self._work_done: float | None = None
        self._restarts = 0  # that `started` does not tell

    def observe(self, probe: Probe) -> Standing:
        """Take one probe's result and return where the backend stands now."""
        match probe.sight:
            case Sight.REFUSED:
                self._refuse(probe)
            case Sight.SILENT:
                self._fail(Lifecycle.LOADING if self._answered else Lifecycle.STARTING, probe)
            case Sight.ILL | Sight.NO_MODEL:
                self._meet(probe)
                self._fail(Lifecycle.LOADING, probe)
            case Sight.SERVING:
                self._meet(probe)
                self._failures = 0
                self._was_ready = True
                self._stand(Lifecycle.READY, probe.detail)
        return self.standing()

    def standing(self) -> Standing:
        """Return where the backend stands, without a new probe."""
        return Standing(self._lifecycle, self._reason, self._incarnation())

    def _refuse(self, probe: Probe) -> None:
        self._refused = True
        self._failures += 1
        up_before = self._answered
        self._stand(Lifecycle.UNHEALTHY if up_before else Lifecycle.STARTING, probe.detail or "connection refused")

    def _fail(self, before_ready: Lifecycle, probe: Probe) -> None:
        """Count a failure that is not definite; before it was ever ready, it is just not ready yet."""
        self._failures += 1
        if not self._was_ready:
            if not self._refused:  # else it stays refused until it answers
                self._stand(before_ready, probe.detail or probe.sight.value)
        elif self._failures >= self._limit:
            self._stand(Lifecycle.UNHEALTHY, probe.detail or probe.sight.value)

    def _meet(self, probe: Probe) -> None:
        """Notice, by an answer, that the engine is another process than the one known before."""
        renamed = bool(probe.started and self._started and probe.started != self._started)
        came_back = self._refused and self._answered and not probe.started
        if renamed or came_back or _less(probe.work_done, self._work_done):
            self._was_ready = False
            self._work_done = None
            self._restarts = 0 if renamed else self._restarts + 1
        self._started = probe.started or self._started
        if probe.work_done is not None:
            self._work_done = probe.work_done
        self._answered = True
        self._refused = False

    def _incarnation(self) -> str:
        name = self._started or self._born
        return f"{name}.{self._restarts}" if self._restarts else name

    def _stand(self, lifecycle: Lifecycle, reason: str) -> None:
        self._lifecycle, self._reason = lifecycle, reason


def _less(count: float | None, before: float | None) -> bool:
    return count is not None and before is not None and count < before
