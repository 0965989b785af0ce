"""From what probes of one backend see, over time, to its lifecycle and its incarnation. No I/O, no clock.

One probe that fails proves little: a loaded engine answers late. So a ready instance stays ready until three probes
in a row have failed. A refused connection is definite at once: nobody listens. So is an engine that says it is asleep:
it counts as Loading, for its port answers and its model is not served until its weights are back. What it had cached is
gone then, so falling asleep ends the incarnation.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from extproc.core.values.instance import Lifecycle

if TYPE_CHECKING:
    from extproc.core.values.instance import Instance

FAILURES_UNTIL_UNHEALTHY = 3
_ASLEEP = "asleep: serves nothing until it is woken"


class Sight(StrEnum):
    """What one probe saw."""

    REFUSED = "refused"  # nobody listens on the port
    SILENT = "silent"  # no complete answer in time
    ILL = "ill"  # answers, and says that it is not healthy
    NO_MODEL = "no_model"  # healthy, but lists no model
    ASLEEP = "asleep"  # healthy, and its weights are put away
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
        self._asleep = False
        self._started = ""
        self._work_done: float | None = None
        self._restarts = 0  # that `started` does not tell
        self._recalled = ""  # incarnation that an agent before this one gave, until it is confirmed or contradicted

    def recall(self, last: Instance) -> None:
        """Go on from the record that an agent before this one left: the same process keeps its incarnation.

        A record that says Stopped is not gone on from: the engine was to end with its agent.
        """
        if last.lifecycle is Lifecycle.STOPPED:
            return
        self._recalled = last.incarnation
        self._answered = last.lifecycle is not Lifecycle.STARTING
        self._was_ready = last.lifecycle in (Lifecycle.READY, Lifecycle.DRAINING)
        self._asleep = bool(last.asleep)
        self._work_done = last.work_done
        lifecycle = Lifecycle.READY if self._was_ready else last.lifecycle
        self._stand(lifecycle, "" if self._was_ready else last.lifecycle_reason)

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
            case Sight.ASLEEP:
                self._meet(probe)
                self._sleep(probe)
            case Sight.SERVING:
                self._meet(probe)
                self._failures = 0
                self._was_ready = True
                self._asleep = False
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

    def _sleep(self, probe: Probe) -> None:
        if self._was_ready and not self._asleep:
            self._begin_anew()
        self._failures = 0
        self._was_ready = False
        self._asleep = True
        self._stand(Lifecycle.LOADING, probe.detail or _ASLEEP)

    def _meet(self, probe: Probe) -> None:
        """Notice, by an answer, that the engine is another process than the one known before."""
        self._confirm(probe)
        renamed = bool(probe.started and self._started and probe.started != self._started)
        came_back = self._refused and self._answered and not probe.started
        if renamed or came_back or _less(probe.work_done, self._work_done):
            self._was_ready = self._asleep = False
            self._work_done = None
            self._begin_anew()
            if renamed:
                self._restarts = 0
        self._started = probe.started or self._started
        if probe.work_done is not None:
            self._work_done = probe.work_done
        self._answered = True
        self._refused = False

    def _confirm(self, probe: Probe) -> None:
        """Compare the recalled incarnation with the engine's own word for its start, once it is given."""
        if not self._recalled or not probe.started:
            return
        name, _, restarts = self._recalled.rpartition(".")
        if self._recalled == probe.started:
            self._started = probe.started
        elif name == probe.started and restarts.isdigit():
            self._started, self._restarts = name, int(restarts)
        else:  # another process, which `_meet` then notices by its name
            self._started = self._recalled
        self._recalled = ""

    def _begin_anew(self) -> None:
        self._restarts += 1
        self._recalled = ""

    def _incarnation(self) -> str:
        if self._recalled:
            return self._recalled
        name = self._started or self._born
        return f"{name}.{self._restarts}" if self._restarts else name

    def _stand(self, lifecycle: Lifecycle, reason: str) -> None:
        self._lifecycle, self._reason = lifecycle, reason


def _less(count: float | None, before: float | None) -> bool:
    return count is not None and before is not None and count < before
