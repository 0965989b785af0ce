"""What agents write of engines' caches reaches the router's index, whatever becomes of instances and payloads."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from extproc.adapters.kv_log import KvLog, Whole
from extproc.adapters.registry import Registry
from extproc.core import kv_delta
from extproc.core.events import Removed
from extproc.core.kv_delta import KvDelta
from extproc.core.router import Router
from extproc.server.kv_feed import KvFeed
from tests.core.builders import blocks, instance, publish, router
from tests.e2e.eventually import eventually
from tests.redis_server import RedisServer

TELLER = instance("a", kv_events=True)
KEY = TELLER.key


def written(delta: KvDelta) -> bytes:
    return kv_delta.encode(delta)


@asynccontextmanager
async def feeding(made: Router, folder: Path) -> AsyncIterator[tuple[KvLog, KvFeed]]:
    known, synced = asyncio.Event(), asyncio.Event()
    known.set()
    with RedisServer("valkey", folder) as server:
        async with Registry(server.url) as registry:
            kv_log = KvLog(registry.link, registry.base)
            feed = KvFeed(made, kv_log, known)
            task = asyncio.create_task(feed.run(synced))
            await synced.wait()
            yield kv_log, feed
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


async def size(made: Router) -> int:
    await asyncio.sleep(0)
    return made.kv.size(KEY)


async def test_deltas_are_applied_in_order_and_by_pieces(tmp_path: Path) -> None:
    made = router(TELLER)
    async with feeding(made, tmp_path) as (kv_log, _):
        await kv_log.append(KEY, written(KvDelta(16, gpu=blocks(1, 9000))))
        await kv_log.append(KEY, written(KvDelta(16, removed=blocks(1, 9000)[5000:])))
        await kv_log.append(KEY, written(KvDelta(16, gpu=blocks(2, 10))))
        assert await eventually(lambda: size(made), lambda held: held == 5010) == 5010


async def test_an_instance_that_is_removed_and_published_again_at_once_is_still_known(tmp_path: Path) -> None:
    """Its engine lives and tells only what changes: what was forgotten would not come back."""
    made = router(TELLER)
    async with feeding(made, tmp_path) as (kv_log, _):
        await kv_log.append(KEY, written(KvDelta(16, gpu=blocks(1, 100))))
        await eventually(lambda: size(made), lambda held: held == 100)
        made.take(made.fleet.apply(Removed(id="a"), 1.0))
        publish(made, TELLER, 1.0)
        await kv_log.append(KEY, written(KvDelta(16, gpu=blocks(2, 1))))
        await eventually(lambda: size(made), lambda held: held == 101)


async def test_of_an_instance_that_is_gone_nothing_is_kept(tmp_path: Path) -> None:
    made = router(TELLER)
    async with feeding(made, tmp_path) as (kv_log, _):
        await kv_log.append(KEY, written(KvDelta(16, gpu=blocks(1, 100))))
        await eventually(lambda: size(made), lambda held: held == 100)
        made.take(made.fleet.apply(Removed(id="a"), 1.0))
        await kv_log.append(KEY, written(KvDelta(16, gpu=blocks(2, 100))))
        await eventually(lambda: size(made), lambda held: held == 0)
        assert list(made.kv.keys) == []


async def test_a_payload_that_cannot_be_read_ends_what_was_believed_of_its_instance_alone(tmp_path: Path) -> None:
    made = router(TELLER, instance("b", kv_events=True))
    async with feeding(made, tmp_path) as (kv_log, _):
        for key in (KEY, "b@1"):
            await kv_log.append(key, written(KvDelta(16, gpu=blocks(1, 100))))
        await eventually(lambda: size(made), lambda held: held == 100)
        await kv_log.append(KEY, b"no delta")
        await eventually(lambda: size(made), lambda held: held == 0)
        assert made.kv.size("b@1") == 100


async def test_a_whole_replaces_what_was_not_even_applied_yet(tmp_path: Path) -> None:
    made = router(TELLER)
    async with feeding(made, tmp_path) as (_, feed):
        feed.take(Whole(KEY, written(KvDelta(16, True, gpu=blocks(1, 9000)))))
        feed.take(Whole(KEY, written(KvDelta(16, True, gpu=blocks(2, 30)))))
        await eventually(lambda: size(made), lambda held: held == 30)
