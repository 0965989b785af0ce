"""Runs one engine's scheduler in real time: a single task sleeps through each step and hands out its tokens."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from extproc.sim.engine.metrics import EngineMetrics
    from extproc.sim.physics.request import EngineRequest, Progress, Step
    from extproc.sim.physics.scheduler import Scheduler

# Behind by more than this (the process was stopped, the machine is overloaded), lost time is not made up for.
_MAX_LAG_S = 1.0
# When steps are shorter than timers can tell, others get the event loop at least this often.
_MAX_BUSY_S = 0.005


class _Flight:
    """A request in the engine, and its times on the event loop's clock."""

    __slots__ = (
        "arrived_s",
        "due_tokens",
        "finish_reason",
        "first_token_s",
        "last_token_s",
        "on_tokens",
        "request",
    )

    def __init__(
        self, request: EngineRequest, finish_reason: str, on_tokens: Callable[[int, bool], None], now_s: float
    ) -> None:
        self.request = request
        self.finish_reason = finish_reason
        self.on_tokens = on_tokens
        self.arrived_s = now_s
        self.first_token_s = 0.0
        self.last_token_s = 0.0
        self.due_tokens = 0  # made, not handed out yet


class EngineLoop:
    """Drives a scheduler by the event loop's clock, `speed` times as fast as its profile says.

    Steps end at absolute deadlines, so that late timers do not add up. Tokens of several steps that are due at
    once are handed out together.
    """

    def __init__(self, scheduler: Scheduler, metrics: EngineMetrics, speed: float) -> None:
        self._scheduler = scheduler
        self._metrics = metrics
        self._speed = speed
        self._flights: dict[EngineRequest, _Flight] = {}
        self._due: dict[_Flight, bool] = {}  # flights with tokens to hand out -> finished
        self._wake = asyncio.Event()
        self._step_end_s = 0.0

    def submit(self, request: EngineRequest, finish_reason: str, on_tokens: Callable[[int, bool], None]) -> None:
        """Queue a request. `on_tokens(count, finished)` is called for its tokens, on the event loop; must not block.

        Raises ValueError if the request could never run.
        """
        self._scheduler.add(request)
        self._flights[request] = _Flight(request, finish_reason, on_tokens, asyncio.get_running_loop().time())
        self._wake.set()

    def abort(self, request: EngineRequest) -> None:
        """Drop a request whose client is gone; nothing happens if it is finished."""
        flight = self._flights.pop(request, None)
        if flight is not None and self._scheduler.abort(request):
            self._due.pop(flight, None)
            self._metrics.finished["abort"] += 1

    async def run(self) -> None:
        """Work until cancelled."""
        clock = asyncio.get_running_loop().time
        deadline_s = yielded_s = clock()
        while True:
            step = self._scheduler.plan()
            if step is None:
                self._hand_out()
                self._wake.clear()
                await self._wake.wait()
                deadline_s = yielded_s = clock()
                continue
            self._count_admitted(step, clock())
            deadline_s += step.duration_s / self._speed
            now_s = clock()
            if deadline_s > now_s or now_s - yielded_s > _MAX_BUSY_S:
                self._hand_out()
                await asyncio.sleep(max(0.0, deadline_s - clock()))
                yielded_s = clock()
            deadline_s = max(deadline_s, now_s - _MAX_LAG_S)
            self._take_in(step, self._scheduler.apply(), clock())

    def _count_admitted(self, step: Step, now_s: float) -> None:
        for request in step.admitted:
            if request.preemptions == 0:
                self._metrics.queue_s.observe(now_s - self._flights[request].arrived_s)

    def _take_in(self, step: Step, progress: Progress, now_s: float) -> None:
        """Book the tokens of a step that ended at `now_s`, and note who gets them."""
        metrics, due, flights = self._metrics, self._due, self._flights
        previous_s, self._step_end_s = self._step_end_s, now_s
        in_step = 0  # requests whose last token came with the step before, nearly all
        for request in progress.decoded:
            flight = flights[request]
            if flight.last_token_s == previous_s:
                in_step += 1
            else:
                metrics.itl_s.observe(now_s - flight.last_token_s)
            flight.last_token_s = now_s
            flight.due_tokens += 1
            due[flight] = False
        if in_step:
            metrics.itl_s.observe(now_s - previous_s, in_step)
        for request in progress.prefilled:
            self._take_in_prefilled(flights[request], now_s)
        metrics.generation_tokens += len(progress.decoded) + len(progress.prefilled)
        metrics.step_tokens.observe(step.tokens)
        for request in progress.finished:
            flight = flights.pop(request)
            due[flight] = True
            self._count_finished(flight, now_s)

    def _take_in_prefilled(self, flight: _Flight, now_s: float) -> None:
        metrics, request = self._metrics, flight.request
        if flight.first_token_s:  # it had been preempted
            metrics.itl_s.observe(now_s - flight.last_token_s)
        else:
            flight.first_token_s = now_s
            metrics.ttft_s.observe(now_s - flight.arrived_s)
            metrics.prompt_tokens += request.prompt_tokens
            metrics.prompt_cached_tokens += request.cached_tokens or 0
        flight.last_token_s = now_s
        flight.due_tokens += 1
        self._due[flight] = False

    def _count_finished(self, flight: _Flight, now_s: float) -> None:
        metrics, request = self._metrics, flight.request
        metrics.finished[flight.finish_reason] += 1
        metrics.e2e_s.observe(now_s - flight.arrived_s)
        metrics.prompt_length.observe(request.prompt_tokens)
        metrics.output_length.observe(request.output_tokens)
        if request.output_tokens > 1:
            metrics.tpot_s.observe((now_s - flight.first_token_s) / (request.output_tokens - 1))

    def _hand_out(self) -> None:
        due, self._due = self._due, {}
        for flight, finished in due.items():
            count, flight.due_tokens = flight.due_tokens, 0
            flight.on_tokens(count, finished)
