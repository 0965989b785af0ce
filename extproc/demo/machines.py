"""Starts and stops simulated engines as an autoscaler asks: what a cloud, or you, would do with real ones.

The autoscaler's command appends a line to a file, and whoever follows the file has the instances in its hands.
"""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NoReturn

from extproc.demo.processes import Processes, wait_for_line
from extproc.demo.stack import MODEL, Backend, EngineSpec, Stack, start_engines
from extproc.errors import ProcessError

_LOOK_S = 0.05
_TOLD_S = 5.0  # that the agent may take to tell of a stop


@dataclass(frozen=True, slots=True)
class Order:
    """What the autoscaler has asked for, and which of its signals asked."""

    action: str  # start or stop
    instance: str
    signal: str


def write_command(directory: Path) -> tuple[str, Path]:
    """A command for `extproc autoscale --exec`, and the file to which it appends what it is called for."""
    orders, script = directory / "orders", directory / "ask.sh"
    orders.touch()
    script.write_text(
        "# extproc autoscale runs this once for each instance; yours would start or stop it here.\n"
        f'echo "$EXTPROC_ACTION $EXTPROC_INSTANCE $EXTPROC_SIGNAL" >> {shlex.quote(str(orders))}\n'
    )
    return f"sh {shlex.quote(str(script))}", orders


def read_orders(orders: Path) -> list[Order]:
    """All that was ever asked for; what follows the last end of a line is being written."""
    *lines, _ = orders.read_text().split("\n")
    return [Order(*line.split(" ")) for line in lines]


class Machines:
    """Has the engines of one pool, and lets the agent of `stack` know which there are."""

    def __init__(
        self, processes: Processes, stack: Stack, hardware: str, load_s: float, on_order: Callable[[Order], None]
    ) -> None:
        self._processes = processes
        self._stack = stack
        self._hardware, self._load_s = hardware, load_s
        self._on_order = on_order
        self._running = {backend.id: backend for backend in stack.backends}
        self._starting: dict[str, asyncio.Task[None]] = {}

    async def follow(self, orders: Path) -> NoReturn:
        """Do what is asked, side by side, until cancelled.

        Raises an exception group of ProcessError if an engine cannot be started.
        """
        done = 0
        async with asyncio.TaskGroup() as group:
            while True:
                asked = read_orders(orders)
                for order in asked[done:]:
                    self._begin(order, group)
                done = len(asked)
                await asyncio.sleep(_LOOK_S)

    def _begin(self, order: Order, group: asyncio.TaskGroup) -> None:
        self._on_order(order)
        if order.action == "start":
            self._starting[order.instance] = group.create_task(self._start(order.instance))
        else:
            group.create_task(self._stop(order.instance))

    async def _start(self, instance: str) -> None:
        spec = EngineSpec(instance, self._hardware, load_delay_s=self._load_s)
        (backend,) = await start_engines(self._processes, [spec])
        # The agent is told the model: an engine that still loads lists none, and would belong to no pool.
        self._running[instance] = replace(backend, facts={"model": MODEL})
        self._tell_agent()

    async def _stop(self, instance: str) -> None:
        if instance in self._starting:
            await self._starting.pop(instance)
        backend: Backend | None = self._running.pop(instance, None)
        if backend is None or backend.child is None:  # asked for twice
            return
        self._tell_agent()
        with suppress(ProcessError):  # an engine that is gone before its agent has told looks like one that failed
            await wait_for_line(self._stack.agent, f"{instance} is Stopped", _TOLD_S)
        await self._processes.end(backend.child)

    def _tell_agent(self) -> None:
        self._stack.tell_agent([*self._running.values()])
