"""A fleet that does what `--exec` asks for: instances are records that the test publishes, as their agents would."""

from __future__ import annotations

import asyncio
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from extproc.adapters.http_client import Answer, HttpClient
from extproc.adapters.registry import Registry
from extproc.adapters.traffic_counts import TrafficCounts
from extproc.core.scaling.sight import Counts
from extproc.core.values.instance import Lifecycle, Load
from extproc.demo.processes import Child, wait_for_line
from tests.core.builders import MODEL, instance
from tests.e2e.eventually import eventually
from tests.processes import Processes

LONG_S = 60.0
POOL = "h100"
QUICK = ("--settle-s", "0.5", "--lease-s", "1.5")
POLICY = f"""
autoscale:
  tick_s: 0.2
  period_s: 600
  drain_s: 600
  pools:
    {POOL}: {{models: [{MODEL}], hardware: h100_sxm, least: 1, most: 4, start_s: 3, dwell_s: 0.5, labels: {{zone: b}}}}
"""


def write_script(folder: Path, *more: str) -> tuple[Path, Path]:
    """A program that appends the environment it was called with to a log, one line a call; returns both paths."""
    script, log = folder / "scale.sh", folder / "calls.log"
    log.write_text("")
    lines = ["#!/bin/sh", f'printf "%s\\n" "$(env | grep ^EXTPROC_ | tr "\\n" " ")" >> {log}', *more]
    script.write_text("\n".join(lines) + "\n")
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    return script, log


@dataclass
class World:
    """What the command has been asked for, and the instances that came of it."""

    registry: Registry
    log: Path
    counting: bool = True  # a router tells
    answers: bool = True  # a start is followed by an instance, a stop by its end
    asked: list[dict[str, str]] = field(default_factory=list)
    lifecycles: dict[str, Lifecycle] = field(default_factory=dict)
    running: int = 0  # requests, on each instance
    held: dict[str, int] = field(default_factory=dict)  # that wait in the router
    requests_s: float = 0.0
    _batch: int = 0
    _read: int = 0

    def calls(self, action: str) -> list[dict[str, str]]:
        return [call for call in self.asked if call["EXTPROC_ACTION"] == action]

    def started(self) -> list[str]:
        return [call["EXTPROC_INSTANCE"] for call in self.calls("start")]

    def stopped(self) -> list[str]:
        return [call["EXTPROC_INSTANCE"] for call in self.calls("stop")]

    async def run(self) -> None:
        """Publish, count and obey, until cancelled."""
        counting = TrafficCounts(self.registry.link, self.registry.base, "router")
        while True:
            self._obey()
            for name, lifecycle in [*self.lifecycles.items()]:
                load = Load(running=self.running, waiting=0, kv_usage=0.1)
                record = instance(name, lifecycle=lifecycle, load=load, address="127.0.0.1:9", start_s=2.0)
                await self.registry.publish(record, 0.3 if lifecycle is Lifecycle.STOPPED else 10.0)
                if lifecycle in (Lifecycle.STARTING, Lifecycle.LOADING):
                    self.lifecycles[name] = Lifecycle.READY
                elif lifecycle is Lifecycle.STOPPED:
                    del self.lifecycles[name]  # its record runs out; an order for it does not
            if self.counting:
                self._batch += 1
                came = 0.1 * self.requests_s
                added = Counts(requests=came, prompt_tokens=2000 * came, answers=came, output_tokens=300 * came)
                await counting.add(self._batch, {MODEL: added}, self.held)
            await asyncio.sleep(0.1)

    def _obey(self) -> None:
        lines = self.log.read_text().splitlines()
        for line in lines[self._read :]:
            call = dict(word.partition("=")[::2] for word in line.split())
            self.asked.append(call)
            if not self.answers:
                continue
            name = call["EXTPROC_INSTANCE"]
            if call["EXTPROC_ACTION"] == "start":
                self.lifecycles[name] = Lifecycle.STARTING
            elif name in self.lifecycles:
                self.lifecycles[name] = Lifecycle.STOPPED
        self._read = len(lines)


@asynccontextmanager
async def living(url: str, log: Path) -> AsyncIterator[World]:
    """A world that turns."""
    async with Registry(url) as registry:
        world = World(registry, log)
        turning = asyncio.create_task(world.run())
        try:
            yield world
        finally:
            turning.cancel()
            await asyncio.gather(turning, return_exceptions=True)


@dataclass(frozen=True)
class Replica:
    """A running `extproc autoscale`."""

    child: Child
    pages: str

    async def page(self) -> dict[str, Any]:
        return dict(orjson.loads(await self.get("/recommendations")))

    async def get(self, path: str) -> bytes:
        async with HttpClient() as client:
            answer = await client.get(self.pages + path)
        assert isinstance(answer, Answer), answer
        assert answer.status == 200, answer
        return answer.body

    async def desired(self) -> int | None:
        made = (await self.page())["recommendations"]
        return made[0]["desired"] if made else None


async def start_replica(processes: Processes, name: str, url: str, *flags: str) -> Replica:
    """Start one and find its pages."""
    child = await processes.start_extproc(
        name, "autoscale", "--redis-url", url, "--metrics-listen", "127.0.0.1:0", *flags
    )
    found = await wait_for_line(child, r"pages on port (\d+)", LONG_S)
    return Replica(child, f"http://127.0.0.1:{found[1]}")


def config_file(folder: Path, text: str = POLICY) -> str:
    path = folder / "extproc.yaml"
    path.write_text(text)
    return str(path)


async def starts(world: World) -> list[str]:
    return world.started()


async def ready(world: World) -> list[str]:
    return [name for name, lifecycle in world.lifecycles.items() if lifecycle is Lifecycle.READY]


async def turns(replica: Replica, count: int = 5) -> None:
    """Wait until a leader has looked so many times more."""
    for _ in range(count):
        last = (await replica.page())["recommendations"][0]["at_s"]
        await eventually(replica.page, lambda page, last=last: page["recommendations"][0]["at_s"] > last)


def leads(page: dict[str, Any]) -> bool:
    """Whether it leads, and has said something."""
    return bool(page["role"] == "leader" and page["recommendations"])
