"""Held requests wait here, and are woken when the router lets them go.

The router is asked after every change of its state and at `wake_at_s`, but never for more than half of the event loop's
time: as long as it was busy with that, it is then left alone.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from extproc.core.router import Router
from extproc.core.values.option import Choice
from extproc.core.values.request import RequestClass
from extproc.stream.errands import Hold

log = logging.getLogger("extproc.serve")

_LEAST_GAP_S = 0.001  # between two times that the router is asked
_OVERDUE_S = 0.5  # for which the router may be late with what it sheds
_FULL_S = 0.25  # for which an instance without a place left is taken to have none
_TENANTS_SHOWN = 20
_SUSPICIOUS = 20  # held requests in a row, from the first one on, whose stream ended before their turn


@dataclass(frozen=True, slots=True)
class _Waiting:
    future: asyncio.Future[Choice | None]
    hold: Hold
    since_s: float


class Holding:
    """All that one process holds. To be used in one event loop."""

    def __init__(self, router: Router, clock: Callable[[], float], draw: Callable[[], float]) -> None:
        """`clock` is the router's, in seconds; `draw` gives chances in [0, 1)."""
        self._router, self._clock, self._draw = router, clock, draw
        self._waiting: dict[str, _Waiting] = {}
        self._full: dict[str, float] = {}  # keys of instances, and until when they are taken to be full
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at_s = float("inf")
        self._rests_until_s = float("-inf")
        self._closed = False
        self._any_turn = False
        self.left: Counter[RequestClass] = Counter()
        """Requests whose stream ended while they were held, by class."""

    def __len__(self) -> int:
        """Requests that are held."""
        return len(self._waiting)

    def by_class(self) -> dict[RequestClass, int]:
        """Requests that are held, by class; those of which there are none too."""
        held = Counter(each.hold.request_class for each in self._waiting.values())
        return {kind: held[kind] for kind in RequestClass}

    def by_model(self) -> Counter[str]:
        """Requests that are held, by the likeliest model of each."""
        return Counter(each.hold.model for each in self._waiting.values())

    def view(self) -> dict[str, object]:
        """What is held, as plain values for JSON: number, by class, by tenant (the most first), the longest wait."""
        tenants = Counter(each.hold.tenant for each in self._waiting.values())
        now = self._clock()
        return {
            "held": len(self._waiting),
            "by_class": {kind.value: number for kind, number in self.by_class().items()},
            "by_tenant": dict(tenants.most_common(_TENANTS_SHOWN)),
            "longest_s": max((now - each.since_s for each in self._waiting.values()), default=0.0),
        }

    def expect(self, hold: Hold) -> None:
        """A request is held from now on; to be called as soon as the router has said so."""
        if self._closed:
            return
        now = self._clock()
        self._full.update(dict.fromkeys(hold.full, now + _FULL_S))
        self._waiting[hold.request_id] = _Waiting(asyncio.get_running_loop().create_future(), hold, now)
        self._ask_at(self._router.wake_at_s)

    async def turn(self, hold: Hold) -> Choice | None:
        """Wait for the turn of a request that is expected; None if it must not wait any longer."""
        waiting = self._waiting.get(hold.request_id)
        if waiting is None:
            return None
        try:
            async with asyncio.timeout(max(0.0, hold.until_s - self._clock()) + _OVERDUE_S):
                choice = await waiting.future
        except TimeoutError:
            log.error("request %s was not let go in time", hold.request_id)
            choice = None
        self._any_turn = True
        self._waiting.pop(hold.request_id, None)
        return choice

    def forget(self, request_id: str) -> None:
        """The stream of a request has ended; it need not be held."""
        waiting = self._waiting.pop(request_id, None)
        if waiting is None:
            return
        waiting.future.cancel()
        self.left[waiting.hold.request_class] += 1
        if not self._any_turn and self.left.total() == _SUSPICIOUS:
            log.warning(
                "the streams of the first %d held requests all ended before their turn: does Envoy's "
                "max_message_timeout allow as long as requests are held here? see its counter "
                "ext_proc.override_message_timeout_ignored",
                _SUSPICIOUS,
            )

    def stir(self) -> None:
        """The router's state has changed: perhaps somebody can go."""
        if self._waiting:
            self._ask_at(self._clock())

    def close(self) -> None:
        """Nobody is held any longer, nor is anybody from now on."""
        self._closed = True
        for waiting in self._waiting.values():
            if not waiting.future.done():
                waiting.future.set_result(None)
        if self._timer is not None:
            self._timer.cancel()

    def _ask_at(self, when_s: float) -> None:
        when_s = max(when_s, self._rests_until_s)
        if self._closed or not self._waiting or when_s >= self._timer_at_s:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at_s = when_s
        in_s = max(0.0, when_s - self._clock())
        self._timer = asyncio.get_running_loop().call_later(in_s, self._ask)

    def _ask(self) -> None:
        began_s = self._clock()
        self._timer, self._timer_at_s = None, float("inf")
        self._full = {key: until_s for key, until_s in self._full.items() if until_s > began_s}
        try:
            for turn in self._router.let_go(began_s, self._draw(), frozenset(self._full)):
                waiting = self._waiting.get(turn.request_id)
                if waiting is None:
                    self._router.release(turn.request_id, began_s)
                elif not waiting.future.done():
                    waiting.future.set_result(turn.choice)
        finally:
            ended_s = self._clock()
            self._rests_until_s = ended_s + max(_LEAST_GAP_S, ended_s - began_s)
            self._ask_at(self._router.wake_at_s)
