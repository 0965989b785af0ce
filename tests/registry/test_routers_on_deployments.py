"""Two routers, their bookings and strict mode, on a cluster, under the least rights, and through failovers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from extproc.adapters.bookings import Bookings
from extproc.adapters.redis_link import Link
from extproc.adapters.redis_settings import RedisSettings, parse
from extproc.adapters.strict_bookings import StrictBookings
from extproc.core.flight.ledger import Ledger, Reservation
from extproc.stream.errands import Place, TakePlace
from tests.redis_server import RedisServer
from tests.registry.deployments import LONG_S, ask, cluster_of_three, until, watched_by_sentinels
from tests.registry.test_deployments import migrate, owns
from tests.registry.test_users import ACL, GuardedServer, login

BASE = "extproc:{default}"
HEARTBEAT_S, LEASE_S = 0.2, 0.6
LIMIT = 5
A, B = Place("a@1", LIMIT), Place("b@1")


@dataclass(frozen=True, slots=True)
class Replica:
    """One router: what it has booked and heard of, and its places in strict mode."""

    ledger: Ledger
    strict: StrictBookings

    async def send(self, request_id: str) -> str | None:
        """Take a place for a request and book it there; returns where."""
        number = await self.strict.take(TakePlace(request_id, (A, B)))
        if number is None:
            return None
        key = (A, B)[number].key
        self.ledger.reserve(key, Reservation(request_id, time.monotonic(), 0.1, 100, 50, 100))
        return key

    def end(self, request_id: str) -> None:
        """A request has ended."""
        self.strict.release(request_id)
        self.ledger.release(request_id, time.monotonic())


@asynccontextmanager
async def replica(settings: RedisSettings, name: str) -> AsyncIterator[Replica]:
    async with Link(replace(settings, timeout_s=0.5)) as link:
        ledger = Ledger()
        strict = StrictBookings(link, BASE, name, budget_s=LONG_S, heartbeat_s=HEARTBEAT_S, lease_s=LEASE_S)
        bookings = Bookings(link, BASE, name, ledger, heartbeat_s=HEARTBEAT_S, lease_s=LEASE_S)
        tasks = [asyncio.create_task(strict.run()), asyncio.create_task(bookings.run())]
        try:
            yield Replica(ledger, strict)
            assert not any(task.done() for task in tasks)
        finally:
            for task in tasks:
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task


def seen(replicas: tuple[Replica, Replica], on_a: int, on_b: int) -> Callable[[], bool]:
    """Whether both know of so many requests at each instance."""
    return lambda: all(
        (each.ledger.work(A.key).requests, each.ledger.work(B.key).requests) == (on_a, on_b) for each in replicas
    )


async def work_together(first: Replica, second: Replica) -> None:
    """Fill A up to its limit from both sides, the rest goes to B; a place that is given back is free for the other."""
    sent = [each.send(f"{number}-{name}") for number in range(4) for name, each in (("1", first), ("2", second))]
    taken = await asyncio.gather(*sent)
    assert (taken.count(A.key), taken.count(B.key)) == (LIMIT, 3)
    assert first.strict.unsettled == second.strict.unsettled == 0
    await until(seen((first, second), LIMIT, 3))
    for number in range(4):
        first.end(f"{number}-1")
        second.end(f"{number}-2")
    await until(seen((first, second), 0, 0))
    async with asyncio.timeout(LONG_S):
        while await second.send("again") != A.key:
            second.end("again")
            await asyncio.sleep(0.02)
    second.end("again")
    await until(seen((first, second), 0, 0))


async def test_routers_at_different_nodes_of_a_cluster_keep_a_limit_together(kind: str, tmp_path: Path) -> None:
    """Channels and hashes live at whichever node has the fleet's slot."""
    with cluster_of_three(kind, tmp_path) as nodes:
        first, second = (parse(f"redis+cluster://127.0.0.1:{node.port}") for node in nodes[:2])
        async with replica(first, "r1") as one, replica(second, "r2") as other:
            await work_together(one, other)


async def test_the_rights_of_the_routers_user_suffice_for_bookings_and_strict_mode(kind: str, tmp_path: Path) -> None:
    """Both scripts, their hashes and the channel."""
    with GuardedServer(kind, tmp_path, "--aclfile", str(ACL)) as server:
        settings = login(server, "router")
        async with replica(settings, "r1") as one, replica(settings, "r2") as other:
            await work_together(one, other)


def counts(server: RedisServer, key: str) -> dict[bytes, int]:
    """Open requests by router as a server has them."""
    flat = ask(server, "HGETALL", f"{BASE}:open:{key}")
    return {name: int(count) for name, count in zip(flat[::2], flat[1::2], strict=True)}


@pytest.mark.chaos
async def test_after_a_failover_by_sentinel_both_routers_count_right_again_and_the_limit_holds(
    kind: str, tmp_path: Path
) -> None:
    """The new primary lacks the last counts, as one that lagged does: each router states what it has."""
    with watched_by_sentinels(kind, tmp_path) as group:
        settings = parse(group.url)
        async with replica(settings, "r1") as one, replica(settings, "r2") as other:
            assert [await one.send("1"), await one.send("2"), await other.send("3")] == [A.key] * 3
            await until(seen((one, other), 3, 0))
            group.primary.stop()
            one.end("1")
            await until(lambda: group.told_primary() == group.replica.port)
            ask(group.replica, "DEL", f"{BASE}:open:{A.key}")
            await until(lambda: counts(group.replica, A.key) == {b"r1": 1, b"r2": 1})
            await until(seen((one, other), 2, 0))
            taken = await asyncio.gather(*(each.send(f"{each.strict}{n}") for n in range(4) for each in (one, other)))
            assert (taken.count(A.key), taken.count(B.key)) == (LIMIT - 2, 8 - (LIMIT - 2))


@pytest.mark.chaos
async def test_a_slot_that_moves_takes_the_counts_and_the_channel_with_it(kind: str, tmp_path: Path) -> None:
    """The old node stays; nobody is told anything but by the cluster's own redirections."""
    with cluster_of_three(kind, tmp_path) as nodes:
        settings = parse(f"redis+cluster://127.0.0.1:{nodes[0].port}")
        async with replica(settings, "r1") as one, replica(settings, "r2") as other:
            assert await one.send("1") == A.key
            await until(seen((one, other), 1, 0))
            slot = ask(nodes[0], "CLUSTER", "KEYSLOT", f"{BASE}:seq")
            source = next(node for node in nodes if owns(node, slot))
            target = next(node for node in nodes if node is not source)
            await asyncio.to_thread(migrate, nodes, slot, source, target)
            await until(lambda: counts(target, A.key) == {b"r1": 1})
            one.end("1")
            await until(seen((one, other), 0, 0))
            await work_together(one, other)
