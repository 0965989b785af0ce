"""`extproc demo --autoscale`: a load swings, and `extproc autoscale` has engines started and stopped for it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from rich.console import Console, RenderableType

from extproc.adapters.http_client import HttpClient
from extproc.demo.answered import Answered
from extproc.demo.autoscaler import HARDWARE, LEAST, POOL, Autoscaler, start_autoscaler
from extproc.demo.live import live
from extproc.demo.machines import Machines, Order, write_command
from extproc.demo.processes import Processes, ended
from extproc.demo.scaling_table import Moment, Seen, order_line, scaling_view
from extproc.demo.stack import MODEL, EngineSpec, Stack, running_stack, start_engines
from extproc.demo.swing import Level, Swing, send_load
from extproc.errors import ProcessError

LOAD_S = 4.0  # that an engine takes to load its model
SWING = Swing(least_rps=1.0, most_rps=9.0, period_s=90.0)
_LONG_S = 3600.0  # a period that one swing is not enough to see
_LOOK_S = 1.0
_PATIENCE_S = 300.0  # for instances to follow the one swing of `once`


@dataclass(frozen=True, slots=True)
class Place:
    """Where a demo runs."""

    processes: Processes
    directory: Path
    redis_url: str
    port: int  # of Envoy; 0: a free one
    fleet: str


@dataclass(frozen=True, slots=True)
class _Scene:
    """All that moves. `rps` is what the load is at so many seconds since it began."""

    stack: Stack
    autoscaler: Autoscaler
    console: Console
    client: HttpClient
    rps: Callable[[float], float]
    began_s: float = field(default_factory=time.monotonic)
    answered: Answered = field(default_factory=Answered)
    seen: Seen = field(default_factory=Seen)

    @property
    def now_s(self) -> float:
        return time.monotonic() - self.began_s

    def ordered(self, order: Order) -> None:
        self.seen.orders.append((self.now_s, order))
        if not self.console.is_terminal:
            self.console.print(order_line(*self.seen.orders[-1]), highlight=False)

    async def watch(self) -> NoReturn:
        """See how things are every second. Raises ProcessError if a part has ended that should run."""
        while True:
            await self._look()
            for child in (self.autoscaler.child, self.stack.service, self.stack.agent):
                ended(child)
            await asyncio.sleep(_LOOK_S)

    async def _look(self) -> None:
        seen = self.seen
        page, seen.fleet, seen.decisions = await asyncio.gather(
            self.autoscaler.page(self.client),
            self.stack.fleet(self.client),
            self.stack.decisions(self.client),
        )
        seen.trouble = page.get("trouble", "")
        if not page.get("recommendations"):
            return
        made = seen.recommendation = page["recommendations"][0]
        load = made["forecast"]["now"] if made["forecast"] else 0.0
        seen.moments.append(Moment(self.rps(self.now_s), load, made["ready"]))
        seen.most_ready = max(seen.most_ready, made["ready"])

    async def view(self) -> RenderableType:
        status = f"{self.now_s:.0f} s, a day has {SWING.period_s:g}; Ctrl-C ends everything"
        return scaling_view(self.seen, self.answered, SWING.most_rps, status)


async def autoscaled(place: Place, console: Console, *, once: bool) -> dict[str, Any] | None:
    """Run until cancelled, or for one swing up and down (`once`), of which the report is returned.

    Raises ProcessError, also if instances do not follow the swing.
    """
    processes, directory = place.processes, place.directory
    registry = ("--redis-url", place.redis_url, "--fleet", place.fleet)
    period_s = _LONG_S if once else SWING.period_s
    began_s = time.monotonic()
    first = await start_engines(processes, [EngineSpec(f"{POOL}-first", HARDWARE)])
    async with (
        running_stack(
            processes, directory, first, place.redis_url, place.port, fleet=place.fleet, compared=False
        ) as stack,
        HttpClient() as client,
    ):
        command, orders = write_command(directory)
        autoscaler = await start_autoscaler(processes, directory, command, period_s, registry)
        console.print(f"Everything runs after {time.monotonic() - began_s:.1f} s, with one engine.")
        level = Level(SWING.most_rps)
        scene = _Scene(stack, autoscaler, console, client, level.rps if once else SWING.rps)
        if not once:
            _print_invitation(console, scene, directory)
        machines = Machines(processes, stack, HARDWARE, LOAD_S, scene.ordered)
        try:
            async with live(console, scene.view), asyncio.TaskGroup() as group:
                around = [group.create_task(machines.follow(orders)), group.create_task(scene.watch())]
                await _send(scene, level if once else None)
                for task in around:
                    task.cancel()
        except ExceptionGroup as errors:
            raise _first(errors) from None
        return _report(scene)


async def _send(scene: _Scene, level: Level | None) -> None:
    """Send the load: for ever, or as `level` until instances have followed it up and down."""
    stop = asyncio.Event()
    url = f"{scene.stack.routed_url}/v1/chat/completions"
    async with asyncio.TaskGroup() as group:
        group.create_task(send_load(url, MODEL, scene.rps, scene.answered.done, stop))
        if level is not None:
            await _until(scene, "there are more instances", lambda made: made["ready"] > LEAST)
            level.level_rps = SWING.least_rps
            await _until(scene, "they are gone again", lambda made: _settled(made) and _stopped(scene))
            stop.set()


async def _until(scene: _Scene, what: str, holds: Callable[[dict[str, Any]], bool]) -> None:
    for _ in range(int(_PATIENCE_S / _LOOK_S)):
        if scene.seen.recommendation and holds(scene.seen.recommendation):
            return
        await asyncio.sleep(_LOOK_S)
    trouble = scene.seen.trouble or "no trouble"
    raise ProcessError(f"waited {_PATIENCE_S:g} s until {what}; extproc autoscale tells of {trouble}")


def _settled(made: dict[str, Any]) -> bool:
    return bool(made["desired"] == made["ready"] == LEAST and not made["coming"] and not made["leaving"])


def _stopped(scene: _Scene) -> bool:
    return any(order.action == "stop" for _, order in scene.seen.orders)


def _first(errors: ExceptionGroup[Exception]) -> Exception:
    error = errors.exceptions[0]
    return _first(error) if isinstance(error, ExceptionGroup) else error


def _report(scene: _Scene) -> dict[str, Any]:
    answered = scene.answered
    return {
        "requests": answered.requests,
        "failed": sum(answered.failures.values()),
        "failures": sorted(answered.failures),
        "within_slo": answered.share,
        "most_ready": scene.seen.most_ready,
        "ready": scene.seen.recommendation["ready"],
        "orders": [
            {"at_s": round(at_s, 1), "action": order.action, "instance": order.instance, "signal": order.signal}
            for at_s, order in scene.seen.orders
        ],
    }


def _print_invitation(console: Console, scene: _Scene, directory: Path) -> None:
    """Where to look while it runs."""
    console.print("Look at it:", style="bold")
    lines = (
        f"curl {scene.autoscaler.pages_url}/recommendations",
        f"curl {scene.autoscaler.pages_url}/metrics",
        f"cat {directory / 'extproc.yaml'} {directory / 'ask.sh'}",
    )
    for line in lines:
        console.print(f"  {line}", highlight=False, soft_wrap=True)
