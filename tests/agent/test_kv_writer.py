"""A KV writer between a publisher of KV events and a real server that forgets: routers know what the engine holds."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
import redis.asyncio as aioredis

from extproc.adapters.kv_events import KvEventsSettings, KvPublisher, open_publisher, rank_endpoint
from extproc.adapters.kv_frames import write_batch
from extproc.adapters.kv_log import KvLog, KvNews, Whole
from extproc.adapters.redis_link import Link
from extproc.agent.kv_silence import PROOF_TOKENS
from extproc.agent.kv_writer import KvWriter
from extproc.core.prefixes import kv_delta
from tests.core.builders import instance
from tests.core.kv_parts import BLOCK, MODEL, Router, engine_hash, names
from tests.redis_server import RedisServer
from tests.registry.deployments import LONG_S, until

BASE = "extproc:{default}"
KEY = "a@1"
STREAM, SNAPSHOT = f"{BASE}:kv:{KEY}", f"{BASE}:kvsnap:{KEY}"
NEVER_S = 1000.0
INSTANCE = instance("a", models=(MODEL,), kv_events=True)


class Engine:
    """Publishes as vLLM does; `paths` is what it holds, as in `kv_parts`."""

    def __init__(self, publisher: KvPublisher) -> None:
        self._publisher = publisher
        self.paths: set[tuple[int, ...]] = set()

    def store(self, path: tuple[int, ...], *, hold: bool = True) -> None:
        """Compute the last block of a path; with `hold` false one whose parent was never told."""
        event = {
            "type": "BlockStored",
            "block_hashes": [engine_hash(path) >> 1],
            "parent_block_hash": engine_hash(path[:-1]) >> 1 if path[:-1] else None,
            "token_ids": [path[-1]] * BLOCK,
            "block_size": BLOCK,
            "lora_id": None,
            "medium": "GPU",
        }
        self._publisher.publish(write_batch(1.0, [event], 0))
        if hold:
            self.paths.add(path)

    def evict(self, path: tuple[int, ...]) -> None:
        """Let the last block of a path go."""
        event = {"type": "BlockRemoved", "block_hashes": [engine_hash(path) >> 1], "medium": "GPU"}
        self._publisher.publish(write_batch(1.0, [event], 0))
        self.paths.discard(path)


@asynccontextmanager
async def engine(settings: KvEventsSettings, rank: int = 0) -> AsyncIterator[Engine]:
    assert settings.replay_endpoint is not None
    endpoints = rank_endpoint(settings.endpoint, rank), rank_endpoint(settings.replay_endpoint, rank)
    async with open_publisher(*endpoints) as publisher:
        yield Engine(publisher)


@asynccontextmanager
async def reading(url: str) -> AsyncIterator[Router]:
    """A router that starts, and goes on following."""
    router, synced = Router(), asyncio.Event()

    def take(news: KvNews) -> None:
        if isinstance(news, Whole):
            router.tiers.clear()
        if news.payload is not None:
            router.apply(kv_delta.decode(news.payload))

    async with Link(url) as link:
        task = asyncio.create_task(KvLog(link, BASE).watch(lambda: [KEY], take, synced=synced))
        try:
            await asyncio.wait_for(synced.wait(), LONG_S)
            yield router
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


class Parts:
    """What a test of a writer needs, all of it running."""

    def __init__(self, server: RedisServer, raw: aioredis.Redis, log: KvLog, settings: KvEventsSettings) -> None:
        self.server, self.raw, self.log, self.settings = server, raw, log, settings


@pytest.fixture
async def parts(tmp_path: Path) -> AsyncIterator[Parts]:
    settings = KvEventsSettings(
        endpoint=f"ipc://{tmp_path}/pub", replay_endpoint=f"ipc://{tmp_path}/replay", batch_s=0.0
    )
    with RedisServer("valkey", tmp_path) as server:
        async with Link(server.url) as link, aioredis.Redis.from_url(server.url) as raw:
            yield Parts(server, raw, KvLog(link, BASE), settings)


@asynccontextmanager
async def writing(writer: KvWriter) -> AsyncIterator[KvWriter]:
    await writer.keep(INSTANCE)
    try:
        yield writer
    finally:
        await writer.stop()


def knows(router: Router, told: Engine) -> Callable[[], bool]:
    return lambda: set(router.tiers) == names(*told.paths)


async def until_saved(parts: Parts) -> None:
    """Wait until the snapshot holds the last entry."""
    async with asyncio.timeout(LONG_S), Link(parts.server.url) as link:
        while True:
            entries = await link.command("XREVRANGE", STREAM, "+", "-", "COUNT", 1)
            snapshot: bytes = await link.command("GET", SNAPSHOT) or b""
            if entries and snapshot.startswith(entries[0][0] + b"\n"):
                return
            await asyncio.sleep(0.02)


async def lag_behind(parts: Parts, told: Engine, router: Router) -> None:
    """Put a replica in the server's place that had not yet got the last two entries."""
    for path in ((1,), (1, 2), (1, 2, 3)):
        told.store(path)
    await until(knows(router, told))
    replica = await parts.raw.dump(STREAM)
    told.evict((1, 2, 3))
    await until(knows(router, told))
    told.store((7,))
    await until(knows(router, told))
    assert replica is not None
    await parts.raw.restore(STREAM, 60_000, replica, replace=True)


async def test_after_a_failover_to_a_replica_that_lags_the_next_entry_tells_everything(parts: Parts) -> None:
    """Else an eviction that the replica never got would be believed to be held for ever."""
    writer = KvWriter(parts.settings, parts.log, hold_every_s=NEVER_S)
    async with engine(parts.settings) as told, writing(writer), reading(parts.server.url) as router:
        await lag_behind(parts, told, router)
        told.store((9,))
        await until(knows(router, told))
        async with reading(parts.server.url) as late:
            await until(knows(late, told))


async def test_what_a_replica_lacks_is_told_though_the_engine_rests(parts: Parts) -> None:
    writer = KvWriter(parts.settings, parts.log, hold_every_s=0.2)
    async with engine(parts.settings) as told, writing(writer), reading(parts.server.url) as router:
        await lag_behind(parts, told, router)
        async with reading(parts.server.url) as late:
            await until(knows(late, told))
            await until(knows(router, told))


async def test_the_log_of_an_engine_that_rests_is_written_anew_once_redis_has_lost_it(parts: Parts) -> None:
    """A router that starts then knows it, and one that was in step stays right, also with what comes next."""
    writer = KvWriter(parts.settings, parts.log, hold_every_s=0.2, beat_every_s=NEVER_S)
    async with engine(parts.settings) as told, writing(writer), reading(parts.server.url) as router:
        told.store((1,))
        told.store((1, 2))
        await until(knows(router, told))
        for lose in ("flush", "end of its time to live", "restart"):
            await until_saved(parts)  # there is nothing new that would be written in any case
            if lose == "flush":
                await parts.raw.flushall()
            elif lose == "restart":
                parts.server.stop()
                parts.server.start()
            else:
                await parts.raw.delete(STREAM, SNAPSHOT)
            async with reading(parts.server.url) as late:
                await until(knows(late, told))
                await until(knows(router, told))
                told.store((max(told.paths)[0] + 1,))
                await until(knows(late, told))
                await until(knows(router, told))


async def test_a_snapshot_that_was_lost_alone_is_written_anew(parts: Parts) -> None:
    writer = KvWriter(parts.settings, parts.log, hold_every_s=0.2)
    async with engine(parts.settings) as told, writing(writer), reading(parts.server.url) as router:
        told.store((1,))
        await until(knows(router, told))
        for _ in range(2):
            async with asyncio.timeout(LONG_S):
                while not await parts.raw.exists(SNAPSHOT):  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
            await parts.raw.delete(SNAPSHOT)


async def test_ranks_that_become_known_later_are_followed_too(parts: Parts) -> None:
    writer = KvWriter(parts.settings, parts.log)
    async with (
        engine(parts.settings) as first,
        engine(parts.settings, 1) as second,
        writing(writer),
        reading(parts.server.url) as router,
    ):
        first.store((1,))
        second.store((2,))
        await until(knows(router, first))
        await writer.keep(instance("a", models=(MODEL,), kv_events=True, data_parallel=2))
        await until(lambda: set(router.tiers) == names((1,), (2,)))


async def test_what_could_not_be_taken_in_is_logged_once(parts: Parts, caplog: pytest.LogCaptureFixture) -> None:
    """And again only when there is more of it."""

    def lines() -> list[str]:
        return [record.message for record in caplog.records if "cannot be named" in record.message]

    caplog.set_level(logging.WARNING, "extproc.agent")
    writer = KvWriter(parts.settings, parts.log, tell_losses_every_s=0.05)
    async with engine(parts.settings) as told, writing(writer):
        told.store((4, 5), hold=False)
        await until(lambda: len(lines()) == 1)
        await asyncio.sleep(0.5)
        assert lines() == ["a@1: KV events: 1 blocks left out because they cannot be named, 1 in all"]
        told.store((6, 7), hold=False)
        await until(lambda: len(lines()) == 2)
        assert lines()[1] == "a@1: KV events: 1 blocks left out because they cannot be named, 2 in all"


async def test_an_engine_that_began_anew_and_cost_all_that_was_known_is_logged(
    parts: Parts, caplog: pytest.LogCaptureFixture
) -> None:
    """Counted in the sequences of its ranks, which are the listeners' own."""
    caplog.set_level(logging.WARNING, "extproc.agent")
    writer = KvWriter(parts.settings, parts.log, tell_losses_every_s=0.05)
    async with writing(writer), reading(parts.server.url) as router:
        for path in ((1,), (2,)):
            async with engine(parts.settings) as told:
                told.store(path)
                await until(knows(router, told))

        def lines() -> list[str]:
            return [record.message for record in caplog.records if "were forgotten" in record.message]

        await until(lambda: bool(lines()))
    assert lines() == ["a@1: KV events: 1 times that all blocks of a rank were forgotten, 1 in all"]


async def empty_entries(parts: Parts) -> int:
    """How many entries of the log say nothing but that it goes on."""
    entries = await parts.raw.xrange(STREAM)
    deltas = [kv_delta.decode(fields[b"d"]) for _, fields in entries]
    return sum(not delta.blocks and not delta.cleared for delta in deltas)


async def until_more(parts: Parts, before: int) -> int:
    """Wait until there are more empty entries than this."""
    async with asyncio.timeout(LONG_S):
        while (number := await empty_entries(parts)) <= before:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        return number


async def test_the_log_of_an_engine_that_rests_goes_on_and_costs_no_snapshots(parts: Parts) -> None:
    """Routers see that nothing was lost; and what they hold stays as it is."""
    writer = KvWriter(parts.settings, parts.log, hold_every_s=0.2, beat_every_s=0.05)
    async with engine(parts.settings) as told, writing(writer), reading(parts.server.url) as router:
        told.store((1,))
        await until(knows(router, told))
        number = await until_more(parts, 5)
        snapshot = await parts.raw.get(SNAPSHOT)
        await until_more(parts, number + 10)
        assert await parts.raw.get(SNAPSHOT) == snapshot
        assert knows(router, told)()


async def test_the_log_of_an_engine_that_works_unheard_stops_until_it_is_heard_again(
    parts: Parts, caplog: pytest.LogCaptureFixture
) -> None:
    """Its load is published all the while; a log line tells when it begins and when it is over."""
    caplog.set_level(logging.INFO, "extproc.agent")
    settings = replace(parts.settings, replay_endpoint=None)
    writer = KvWriter(settings, parts.log, hold_every_s=NEVER_S, beat_every_s=0.05, patience_s=0.2)

    def lines() -> list[str]:
        return [record.message for record in caplog.records if "its engine works" in record.message]

    async with engine(parts.settings) as told, writing(writer):
        await writer.keep(msgspec.structs.replace(INSTANCE, work_done=10.0))
        await until_more(parts, 5)
        await writer.keep(msgspec.structs.replace(INSTANCE, work_done=10.0 + PROOF_TOKENS))
        await until(lambda: bool(lines()))
        number = await empty_entries(parts)
        await asyncio.sleep(0.5)
        assert await empty_entries(parts) == number
        told.store((1,))
        await until_more(parts, number)
    assert lines() == ["a@1: its engine works, but no KV events come; telling nothing of its cache"]


async def test_an_engine_whose_replay_proves_that_it_said_nothing_is_believed_however_much_it_works(
    parts: Parts,
) -> None:
    """The same prompt again and again fills no block."""
    settings = replace(parts.settings, check_s=0.05)
    writer = KvWriter(settings, parts.log, hold_every_s=NEVER_S, beat_every_s=0.05, patience_s=0.5)
    async with engine(parts.settings) as told, writing(writer), reading(parts.server.url) as router:
        told.store((1,))
        await until(knows(router, told))
        number = await empty_entries(parts)
        for work in range(1, 12):
            await writer.keep(msgspec.structs.replace(INSTANCE, work_done=float(work * PROOF_TOKENS)))
            number = await until_more(parts, number + 1)
