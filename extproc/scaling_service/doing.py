"""Does what `scaling_service.acting` has found to do, and notes what became of it.

Calls that take long run beside the looks. An action is begun only after it was written into the journal by a replica
that led at that moment, and only while that replica still surely leads.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING

from extproc.core.values.instance import Lifecycle
from extproc.errors import RegistryError
from extproc.scaling_service.acting import Action, ActionKind
from extproc.scaling_service.instance_command import Ended

if TYPE_CHECKING:
    from extproc.adapters.registry import Registry
    from extproc.core.scaling.rules import PoolRules
    from extproc.core.values.instance import Instance
    from extproc.scaling_service.instance_command import InstanceCommand
    from extproc.scaling_service.journal import Journal

    _Command = Callable[[Action, PoolRules, Instance | None], Awaitable[Ended]]

_FIRST_PAUSE_S = 5.0  # after a start that has failed, until the pool's next; doubled each time
_LONGEST_PAUSE_S = 300.0
_LONGEST_WASTE_PAUSE_S = 3600.0  # after starts that were taken and that no Ready instance came of: each may cost

log = logging.getLogger("extproc.autoscale")


class Doing:
    """Acts for a leader. Without a `command`, only drain orders are given: somebody else starts and stops."""

    def __init__(self, registry: Registry, command: InstanceCommand | None) -> None:
        self._registry = registry
        self._command = command
        self._under_way: dict[tuple[ActionKind, str], asyncio.Task[None]] = {}  # calls that run or wait their turn
        self._failed_starts: list[str] = []  # ids, not taken out of the journal yet
        self._failed_stops: list[str] = []
        self._pauses: dict[str, tuple[float, float]] = {}  # by pool: until when, and how long
        self.done: Counter[tuple[str, str, str]] = Counter()
        """Actions by kind, pool and what became of them: `done`, `failed`, `timed_out`, `given_up`."""

    @property
    def starts(self) -> bool:
        """Whether instances are started here at all."""
        return self._command is not None

    def may_start(self, pool: str) -> bool:
        """Whether a start may be asked for now: not soon after one that has come to nothing."""
        return self.starts and asyncio.get_running_loop().time() >= self._pauses.get(pool, (0.0, 0.0))[0]

    def settled(self, journal: Journal) -> Journal:
        """The journal without what has come to nothing since the last time."""
        for launch_id in self._failed_starts:
            journal = journal.without_launch(launch_id)
        for instance_id in self._failed_stops:
            journal = journal.without_stop(instance_id)
        self._failed_starts, self._failed_stops = [], []
        return journal

    def still_stopping(self, journal: Journal, now_s: float) -> Journal:
        """The journal, in which a stop grows older only from when its call has ended.

        A call may wait its turn and run for longer than it takes until a stop is asked for again. Nor may an instance
        be resumed meanwhile.
        """
        stops = {instance for kind, instance in self._under_way if kind is ActionKind.STOP}
        return journal.with_stops_anew(stops, now_s) if stops else journal

    def note_starts(self, before: Journal, after: Journal, ready: Collection[str]) -> None:
        """Note what has come of starts between two looks. `ready`: ids of those that have become so.

        An instance that loads lets others start; how long the next pause is, is forgotten once one is Ready.
        """
        left = {launch.id: launch for launch in after.launches}
        for launch in before.launches:
            now = left.get(launch.id)
            if now is None and launch.instance not in ready:
                words = "%s has failed or is not Ready in time" if launch.instance else "no agent has told of %s"
                log.warning(f"{words}, which was to start in pool %s", launch.instance or launch.id, launch.pool)
                self._note_result("start", launch.pool, "given_up")
                self._pause(launch.pool, _LONGEST_WASTE_PAUSE_S)
            elif now is None:
                self._pauses.pop(launch.pool, None)
            elif now.instance and not launch.instance and launch.pool in self._pauses:
                self._pauses[launch.pool] = (0.0, self._pauses[launch.pool][1])

    async def do(
        self,
        actions: Iterable[Action],
        pools: Mapping[str, PoolRules],
        instances: Mapping[str, Instance],
        leads: Callable[[], bool],
        *,
        fence: int,
    ) -> None:
        """Begin all. `instances` by id, as agents tell of them; `leads` is asked right before each.

        `fence`, the leader's number, goes with each: whoever has seen a higher one can refuse it.

        Those that are not begun count as come to nothing, also where the turn is cut off.
        """
        left = deque(actions)
        try:
            while left and leads():
                action = left[0]
                if action.kind in (ActionKind.DRAIN, ActionKind.RESUME):
                    await self._order(action, fence)
                elif self._command is not None:
                    called = partial(self._command, leads=leads, fence=fence)
                    self._begin(called, action, pools[action.pool], instances.get(action.instance))
                left.popleft()
        finally:
            for action in left:
                log.warning("%s of %s is left undone", action.kind, action.instance)
                self._undone(action)

    async def take_back(self, instance_ids: Iterable[str], fence: int) -> tuple[str, ...]:
        """Take our orders back from instances that are gone: another one may come under the same id.

        Returns those from whom it was done.
        """
        done = []
        for instance_id in instance_ids:
            try:
                await self._registry.order(instance_id, None, fence)
            except RegistryError as error:
                log.warning("the order to drain %s was not taken back: %s", instance_id, error)
            else:
                done.append(instance_id)
        return tuple(done)

    async def end(self, within_s: float) -> None:
        """Let commands come to their end, within that time."""
        if self._under_way:
            await asyncio.wait([*self._under_way.values()], timeout=within_s)

    async def _order(self, action: Action, fence: int) -> None:
        lifecycle = Lifecycle.DRAINING if action.kind is ActionKind.DRAIN else None
        try:
            known = await self._registry.order(action.instance, lifecycle, fence)
        except RegistryError as error:
            self._note(action, "failed")
            log.warning("%s of %s: %s", action.kind, action.instance, error)
            return
        self._note(action, "done" if known else "failed")
        log.info("%s of %s in pool %s: %s", action.kind, action.instance, action.pool, "ordered" if known else "gone")

    def _begin(self, command: _Command, action: Action, pool: PoolRules, instance: Instance | None) -> None:
        """Have it run beside us, unless it does so already."""
        key = action.kind, action.instance
        if key in self._under_way:
            log.info("%s of %s is under way already", action.kind, action.instance)
            return
        task = asyncio.create_task(self._run(command, action, pool, instance), name=" ".join(key))
        self._under_way[key] = task
        task.add_done_callback(lambda _: self._under_way.pop(key))

    async def _run(self, command: _Command, action: Action, pool: PoolRules, instance: Instance | None) -> None:
        ended = await command(action, pool, instance)
        self._note(action, ended.value)
        if ended is Ended.FAILED:  # one that timed out may have done it: it is reckoned with
            self._undone(action)
            if action.kind is ActionKind.START:
                self._pause(pool.name, _LONGEST_PAUSE_S)

    def _pause(self, pool: str, longest_s: float) -> None:
        last_s = self._pauses.get(pool, (0.0, 0.0))[1]
        pause_s = min(longest_s, 2.0 * last_s) if last_s else _FIRST_PAUSE_S
        self._pauses[pool] = (asyncio.get_running_loop().time() + pause_s, pause_s)

    def _undone(self, action: Action) -> None:
        if action.kind is ActionKind.START:
            self._failed_starts.append(action.instance)
        elif action.kind is ActionKind.STOP:
            self._failed_stops.append(action.instance)

    def _note(self, action: Action, result: str) -> None:
        self._note_result(action.kind.value, action.pool, result)

    def _note_result(self, kind: str, pool: str, result: str) -> None:
        self.done[kind, pool, result] += 1
