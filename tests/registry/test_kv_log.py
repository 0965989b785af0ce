"""The KV log on real servers: readers that come early, late, and back; streams that are trimmed, lost and replaced."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from itertools import pairwise
from pathlib import Path

import pytest

from extproc.adapters.kv_log import START, Delta, Kept, KvLog, KvNews, Whole
from extproc.adapters.redis_link import Link
from tests.redis_server import RedisServer
from tests.registry.deployments import LONG_S, ask, cluster_of_three, until

BASE = "extproc:{default}"
KEY = "gpu-0@1"


@pytest.fixture
async def writer(server: RedisServer) -> AsyncIterator[KvLog]:
    async with Link(server.url) as link:
        yield KvLog(link, BASE, max_entries=200)


class Router:
    """What one router has made of the news: the payloads that it holds of each instance, in order."""

    def __init__(self) -> None:
        self.keys = {KEY}
        self.held: dict[str, list[bytes]] = {}
        self.news: list[KvNews] = []
        self.synced = asyncio.Event()

    def take(self, news: KvNews) -> None:
        self.news.append(news)
        match news:
            case Whole(key, payload):
                self.held[key] = payload.split(b",") if payload else []
            case Delta(key, payload, _):
                self.held[key].append(payload)


@asynccontextmanager
async def reading(url: str, router: Router) -> AsyncIterator[Router]:
    async with Link(url) as link:
        task = asyncio.create_task(KvLog(link, BASE).watch(lambda: router.keys, router.take, synced=router.synced))
        try:
            await asyncio.wait_for(router.synced.wait(), LONG_S)
            yield router
            assert not task.done()
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


async def write(log: KvLog, begin: int, end: int, key: str = KEY) -> str:
    last = START
    for number in range(begin, end):
        last = (await log.append(key, b"%d" % number)).entry_id
    return last


def numbers(begin: int, end: int) -> list[bytes]:
    return [b"%d" % number for number in range(begin, end)]


async def test_two_readers_get_every_entry_once_and_in_order(server: RedisServer, writer: KvLog) -> None:
    async with reading(server.url, Router()) as early:
        await write(writer, 0, 50)
        async with reading(server.url, Router()) as late:
            await write(writer, 50, 100)
            for router in (early, late):
                await until(lambda router=router: router.held[KEY] == numbers(0, 100))  # type: ignore[misc]
    assert early.news[0] == Whole(KEY, None)
    assert sum(isinstance(news, Whole) for news in early.news) == 1


async def test_a_reader_is_in_step_though_entries_never_cease_to_come(server: RedisServer, writer: KvLog) -> None:
    """A busy engine must not keep a router from starting."""

    async def go_on() -> None:
        while True:
            await writer.append(KEY, b"1")

    writing = asyncio.create_task(go_on())
    try:
        async with reading(server.url, Router()) as router:
            await until(lambda: len(router.held[KEY]) > 10)
    finally:
        writing.cancel()
        await asyncio.gather(writing, return_exceptions=True)


async def test_payloads_are_opaque_bytes(server: RedisServer, writer: KvLog) -> None:
    async with reading(server.url, Router()) as router:
        for payload in (b"", b"\x00\r\n\xff" * 5, bytes(range(256)) * 4096):
            await writer.append(KEY, payload)
            await until(lambda payload=payload: router.held.get(KEY, [None])[-1:] == [payload])  # type: ignore[misc]
        await writer.write_snapshot(KEY, b"\n\x00\n", START)
    async with reading(server.url, Router()) as router:
        assert router.news[0] == Whole(KEY, b"\n\x00\n")


async def test_a_fresh_reader_takes_the_snapshot_and_only_the_entries_after_it(
    server: RedisServer, writer: KvLog
) -> None:
    up_to = await write(writer, 0, 60)
    await writer.write_snapshot(KEY, b",".join(numbers(0, 60)), up_to)
    await write(writer, 60, 80)
    async with reading(server.url, Router()) as router:
        await until(lambda: router.held[KEY] == numbers(0, 80))
        assert router.news[0] == Whole(KEY, b",".join(numbers(0, 60)))
        assert len(router.news) == 21


async def test_a_stream_that_was_trimmed_past_the_reader_is_read_whole_again(
    server: RedisServer, writer: KvLog
) -> None:
    async with reading(server.url, Router()) as router:
        await write(writer, 0, 10)
        await until(lambda: router.held[KEY] == numbers(0, 10))
        stream = f"{BASE}:kv:{KEY}"
        # One step of the server in which entries come and go: nobody can have seen them.
        ask(
            server,
            "EVAL",
            "for i = 1, 600 do local last = redis.call('XREVRANGE', KEYS[1], '+', '-', 'COUNT', 1)[1][1] "
            "redis.call('XADD', KEYS[1], '*', 'd', '#', 'p', last) end redis.call('XTRIM', KEYS[1], 'MAXLEN', 5)",
            1,
            stream,
        )
        await until(lambda: router.held[KEY] == [b"#"] * 5)
        assert router.news[11] == Whole(KEY, None)
        await write(writer, 10, 12)
        await until(lambda: router.held[KEY] == [b"#"] * 5 + numbers(10, 12))


async def test_a_reader_without_a_snapshot_takes_the_next_one(server: RedisServer, writer: KvLog) -> None:
    """Entries were trimmed before it came: it knows a part, until the writer has told the whole."""
    await write(writer, 0, 1000)
    async with reading(server.url, Router()) as router:
        await until(lambda: router.held[KEY][-1:] == [b"999"])
        assert 200 <= len(router.held[KEY]) < 1000
        up_to = await write(writer, 1000, 1010)
        await writer.write_snapshot(KEY, b",".join(numbers(0, 1010)), up_to)
        await until(lambda: router.held[KEY] == numbers(0, 1010))


async def test_a_snapshot_that_the_stream_no_longer_reaches_back_to_is_not_used(
    server: RedisServer, writer: KvLog
) -> None:
    up_to = await write(writer, 0, 10)
    await writer.write_snapshot(KEY, b",".join(numbers(0, 10)), up_to)
    await write(writer, 10, 1000)
    async with reading(server.url, Router()) as router:
        await until(lambda: router.held[KEY][-1:] == [b"999"])
        assert b"5" not in router.held[KEY]
        assert router.news[0] == Whole(KEY, None)


async def test_a_server_that_comes_back_empty_is_noticed_with_the_next_entry(
    server: RedisServer, writer: KvLog
) -> None:
    """Until then the last that was known is kept: the engine's cache did not go with Redis."""
    async with reading(server.url, Router()) as router:
        await write(writer, 0, 10)
        await until(lambda: router.held[KEY] == numbers(0, 10))
        server.stop()
        server.start()
        await asyncio.sleep(1.0)
        assert router.held[KEY] == numbers(0, 10)
        up_to = await write(writer, 10, 20)
        await until(lambda: router.held[KEY] == numbers(10, 20))
        await writer.write_snapshot(KEY, b",".join(numbers(0, 20)), up_to)
        await until(lambda: router.held[KEY] == numbers(0, 20))


async def test_a_writer_that_tells_the_whole_after_an_outage_loses_nothing(server: RedisServer, writer: KvLog) -> None:
    async with reading(server.url, Router()) as router:
        await write(writer, 0, 10)
        await until(lambda: router.held[KEY] == numbers(0, 10))
        server.stop()
        server.start()
        await writer.write_snapshot(KEY, b",".join(numbers(0, 12)), START)
        await until(lambda: router.held[KEY] == numbers(0, 12))
        await write(writer, 12, 20)
        await until(lambda: router.held[KEY] == numbers(0, 20))


async def test_a_server_that_was_frozen_loses_nothing(server: RedisServer, writer: KvLog) -> None:
    async with reading(server.url, Router()) as router:
        await write(writer, 0, 10)
        await until(lambda: router.held[KEY] == numbers(0, 10))
        server.freeze()
        await asyncio.sleep(2.0)
        server.thaw()
        await write(writer, 10, 20)
        await until(lambda: router.held[KEY] == numbers(0, 20))


async def test_what_many_instances_tell_lets_others_through_while_it_is_taken(server: RedisServer) -> None:
    """All of it comes with one reply; a thousand deltas take some 7 ms."""
    router = Router()
    router.keys = {f"gpu-{number}@1" for number in range(10)}
    taken_before: list[int] = []

    async def other() -> None:
        while True:
            taken_before.append(len(router.news))
            await asyncio.sleep(0)

    async with Link(server.url) as link:
        for key in router.keys:
            for number in range(100):
                await link.command("XADD", f"{BASE}:kv:{key}", f"{number + 1}-0", "d", b"x", "p", f"{number}-0")
    beside = asyncio.create_task(other())
    async with reading(server.url, router):
        beside.cancel()
    steps = [later - sooner for sooner, later in pairwise(taken_before)]
    assert sum(steps) >= 1_000 - 10
    assert max(steps) <= 300


async def test_a_writer_is_told_what_the_server_has_of_its_log(server: RedisServer, writer: KvLog) -> None:
    """The entry before its own, the last one, and whether there is a snapshot: what it did not write was lost."""
    assert await writer.hold(KEY) == Kept(START, has_snapshot=False)
    first = await writer.append(KEY, b"1")
    assert first.before == START
    second = await writer.append(KEY, b"2")
    assert second.before == first.entry_id
    await writer.write_snapshot(KEY, b"x", second.entry_id)
    assert await writer.hold(KEY) == Kept(second.entry_id, has_snapshot=True)
    ask(server, "XDEL", f"{BASE}:kv:{KEY}", second.entry_id)
    assert await writer.hold(KEY) == Kept(first.entry_id, has_snapshot=True)
    ask(server, "FLUSHALL")
    assert await writer.hold(KEY) == Kept(START, has_snapshot=False)


async def test_a_new_incarnation_deletes_the_log_of_the_one_before(server: RedisServer, writer: KvLog) -> None:
    await writer.hold(KEY)
    up_to = await write(writer, 0, 10)
    await writer.write_snapshot(KEY, b"x", up_to)
    async with reading(server.url, Router()) as router:
        await until(lambda: router.held == {KEY: [b"x"]})
        await writer.hold(KEY)
        assert sorted(ask(server, "KEYS", "*")) == [
            b"extproc:{default}:kv:gpu-0@1",
            b"extproc:{default}:kvnow:gpu-0",
            b"extproc:{default}:kvsnap:gpu-0@1",
        ]
        await writer.hold("gpu-0@2")
        await write(writer, 0, 3, "gpu-0@2")
        router.keys = {"gpu-0@2"}
        await until(lambda: router.held.get("gpu-0@2") == numbers(0, 3))
        assert sorted(ask(server, "KEYS", "*")) == [b"extproc:{default}:kv:gpu-0@2", b"extproc:{default}:kvnow:gpu-0"]


async def test_every_key_goes_by_itself_unless_it_is_held(server: RedisServer) -> None:
    async with Link(server.url) as link:
        held, left = KvLog(link, BASE, ttl_s=1.0), KvLog(link, BASE, ttl_s=0.3)
        for log, key in ((held, "a@1"), (left, "b@1")):
            await log.hold(key)
            await log.write_snapshot(key, b"x", (await log.append(key, b"y")).entry_id)
        await until(lambda: not ask(server, "KEYS", "*b*"))
        for _ in range(4):
            await held.hold("a@1")
            await asyncio.sleep(0.4)
        assert len(ask(server, "KEYS", "*a@1*")) == 2


async def test_the_log_works_on_a_cluster(kind: str, tmp_path: Path) -> None:
    with cluster_of_three(kind, tmp_path) as nodes:
        url = f"redis+cluster://127.0.0.1:{nodes[1].port}"
        async with Link(url) as link, reading(url, Router()) as router:
            log = KvLog(link, BASE)
            await log.hold(KEY)
            up_to = await write(log, 0, 10)
            await log.write_snapshot(KEY, b",".join(numbers(0, 10)), up_to)
            await until(lambda: router.held[KEY] == numbers(0, 10))
