"""A replica of an autoscaler that does nothing but lead when it may, and what its standard input says.

python -m tests.registry.autoscaler_process URL NAME LEASE_S

    begin        note our fencing number, as whoever is about to act does; answers `began NUMBER` or `began None`
    write TEXT   tell TEXT by the number that was noted; answers `written` or `refused`
    lead         answers `leads NUMBER` or `leads None`
"""

from __future__ import annotations

import asyncio
import sys
from contextlib import suppress

from extproc.adapters.leader import Leader
from extproc.adapters.redis_link import Link
from extproc.adapters.scaling_memory import ScalingMemory

BASE = "extproc:{default}"


async def main(url: str, name: str, lease_s: str) -> None:
    async with Link(url) as link:
        leader, memory = Leader(link, BASE, name, lease_s=float(lease_s)), ScalingMemory(link, BASE)
        leading = asyncio.create_task(leader.run())
        fence: int | None = None
        while line := await asyncio.to_thread(sys.stdin.readline):
            match line.split():
                case ["begin"]:
                    fence = leader.fence
                    answer = f"began {fence}"
                case ["write", text]:
                    data, number = text.encode(), fence or 0
                    done = await memory.tell(data, number) and await memory.write(data, number)
                    answer = "written" if done else "refused"
                case _:
                    answer = f"leads {leader.fence}"
            sys.stdout.write(f"{answer}\n")
            sys.stdout.flush()
        leading.cancel()
        with suppress(asyncio.CancelledError):
            await leading


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
