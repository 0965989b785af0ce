"""Bookings between routers over real servers: Valkey from its wheel, and the system's Redis if there is one."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace

import pytest
import redis.asyncio as aioredis

from extproc.adapters.bookings import Bookings
from extproc.adapters.redis_link import Link
from extproc.adapters.redis_settings import parse
from extproc.bench.visibility import visibility
from extproc.core.flight.ledger import Ledger
from extproc.core.flight.work import Reservation
from tests.redis_server import RedisServer

LONG_S = 30.0  # never reached by a machine that works
HEARTBEAT_S, LEASE_S = 0.2, 0.6


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(LONG_S):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


@asynccontextmanager
async def router(url: str, name: str, *, lease_s: float = LEASE_S) -> AsyncIterator[tuple[Ledger, Bookings]]:
    """One router's ledger, told to others and kept in step with them while the context lasts."""
    ledger = Ledger()
    async with Link(replace(parse(url), timeout_s=0.5)) as link:
        made = Bookings(link, "extproc:{default}", name, ledger, heartbeat_s=HEARTBEAT_S, lease_s=lease_s)
        task = asyncio.create_task(made.run())
        try:
            yield ledger, made
            assert not task.done()
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
            await made.farewell()


@asynccontextmanager
async def router_process(url: str, name: str) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.registry.router_process", url, name, stdin=asyncio.subprocess.PIPE
    )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()


def say(process: asyncio.subprocess.Process, *lines: str) -> None:
    assert process.stdin is not None
    process.stdin.write("".join(line + "\n" for line in lines).encode())


def booking(request_id: str) -> Reservation:
    return Reservation(request_id, time.monotonic(), 0.1, 100, 50, 100)


async def test_three_routers_see_each_others_requests_and_their_ends(server: RedisServer) -> None:
    """Every ledger counts all requests; only the router that sent one has it among its own."""
    async with AsyncExitStack() as stack:
        ledgers = [(await stack.enter_async_context(router(server.url, name)))[0] for name in ("r1", "r2", "r3")]
        for number, ledger in enumerate(ledgers):
            for each in range(50):
                ledger.reserve("a@1", booking(f"{number}-{each}"))
        await until(lambda: all(ledger.work("a@1").requests == 150 for ledger in ledgers))
        assert [ledger.in_flight() for ledger in ledgers] == [{"a@1": 50}] * 3
        ledgers[0].move("0-0", "b@1", time.monotonic())
        await until(lambda: all(ledger.work("b@1").requests == 1 for ledger in ledgers))
        for number, ledger in enumerate(ledgers):
            for each in range(50):
                ledger.release(f"{number}-{each}", time.monotonic())
        await until(lambda: all(ledger.work("a@1").requests == 0 for ledger in ledgers))
        assert all(ledger.work(key).booked_tokens == 0 for ledger in ledgers for key in ("a@1", "b@1"))


async def test_a_router_that_joins_late_learns_thousands_of_open_requests(server: RedisServer) -> None:
    """And one that leaves takes its own with it, without anybody waiting for its lease."""
    async with router(server.url, "late", lease_s=1000.0) as (late, _):
        async with router(server.url, "early") as (early, _):
            for number in range(3000):
                early.reserve("a@1", booking(str(number)))
            await until(lambda: late.work("a@1").requests == 3000)
            async with router(server.url, "latest") as (latest, _):
                await until(lambda: latest.work("a@1").requests == 3000)
        await until(lambda: late.work("a@1").requests == 0)


async def test_a_killed_router_process_leaves_no_request_behind(server: RedisServer) -> None:
    """kill -9 with requests in flight: they count until its lease is over."""
    async with router(server.url, "alive") as (ledger, bookings), router_process(server.url, "dies") as process:
        say(process, *(f"book {number} a@1" for number in range(7)))
        await until(lambda: ledger.work("a@1").requests == 7)
        process.kill()
        await until(lambda: ledger.work("a@1").requests == 0)
        assert bookings.sharing.peers.names == []
        assert bookings.sharing.peers.counts.expired_routers == 1


async def test_a_frozen_router_process_is_dropped_and_restored(server: RedisServer) -> None:
    """SIGSTOP ends its lease; after SIGCONT its open requests count again, without a gap in its stream."""
    async with router(server.url, "alive") as (ledger, _), router_process(server.url, "frozen") as process:
        say(process, "book 1 a@1", "book 2 b@1")
        await until(lambda: ledger.work("a@1").requests == ledger.work("b@1").requests == 1)
        process.send_signal(signal.SIGSTOP)
        await until(lambda: ledger.work("a@1").requests == ledger.work("b@1").requests == 0)
        process.send_signal(signal.SIGCONT)
        say(process, "end 2")
        await until(lambda: ledger.work("a@1").requests == 1)
        await until(lambda: ledger.work("b@1").requests == 0)


async def test_without_redis_our_own_stay_and_peers_run_out_and_both_come_back(
    server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    """One line says it is gone and one that it is back; what happened in between is stated anew."""
    caplog.set_level(logging.WARNING)
    async with router(server.url, "r1") as (first, _), router(server.url, "r2") as (second, _):
        first.reserve("a@1", booking("ends meanwhile"))
        first.reserve("a@1", booking("stays"))
        await until(lambda: second.work("a@1").requests == 2)
        server.stop()
        await until(lambda: second.work("a@1").requests == 0)
        assert first.work("a@1").requests == 2
        first.release("ends meanwhile", time.monotonic())
        first.reserve("b@1", booking("comes meanwhile"))
        server.start()
        await until(lambda: second.work("b@1").requests == 1)
        assert dict(second.booked("r1")) == {"stays": "a@1", "comes meanwhile": "b@1"}
    for text in ("going on with what is known", "in touch with"):
        assert len([line for line in caplog.messages if text in line]) == 2  # once for each router


async def test_a_frozen_server_is_the_same_as_none(server: RedisServer) -> None:
    """SIGSTOP of the server: connections stay open, nothing answers, nothing waits for ever."""
    async with router(server.url, "r1") as (first, _), router(server.url, "r2") as (second, _):
        first.reserve("a@1", booking("r"))
        await until(lambda: second.work("a@1").requests == 1)
        server.freeze()
        await until(lambda: second.work("a@1").requests == 0)
        server.thaw()
        await until(lambda: second.work("a@1").requests == 1)


async def test_what_is_no_batch_is_counted_and_does_no_harm(server: RedisServer) -> None:
    """Anybody may publish anything on a channel."""
    async with router(server.url, "r1") as (first, _), router(server.url, "r2") as (second, bookings):
        await until(lambda: bookings.sharing.peers.names == ["r1"])
        async with aioredis.Redis.from_url(server.url) as raw:
            for data in (b"", b"hello", b"\xc1", b"\x93\x01\x02\x03"):
                await raw.publish("extproc:{default}:bookings", data)
        first.reserve("a@1", booking("r"))
        await until(lambda: second.work("a@1").requests == 1)
        assert bookings.unusable == 4


async def test_the_bench_of_visibility_sees_every_booking(server: RedisServer) -> None:
    """Each of them reaches the other process; how fast is for the bench to say."""
    seen = await visibility(server.url, rate_per_s=500.0, bookings=200)
    assert (seen.bookings, seen.seen) == (200, 200)
    assert 0.0 < seen.p50_s <= seen.p99_s <= seen.longest_s
