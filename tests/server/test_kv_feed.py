"""What agents write of engines' caches reaches the router's index, whatever becomes of instances and payloads."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from extproc.adapters.kv_log import Delta, KvLog, Whole
from extproc.adapters.redis_link import Link
from extproc.adapters.registry import Registry
from extproc.core.fleet.degradation import Rung
from extproc.core.fleet.events import Removed
from extproc.core.prefixes import kv_delta
from extproc.core.prefixes.kv_delta import KvDelta
from extproc.core.prefixes.kv_freshness import FROZEN_AFTER_S
from extproc.core.router import Router
from extproc.server.kv_feed import KvFeed
from extproc.server.ladder import LadderWatch
from tests.core.builders import blocks, instance, publish, router
from tests.e2e.eventually import eventually
from tests.redis_server import RedisServer

TELLER = instance("a", kv_events=True)
KEY = TELLER.key


def written(delta: KvDelta) -> bytes:
    return kv_delta.encode(delta)


class Clock:
    """Goes only when it is told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def run(self, seconds: float, made: Router, feed: KvFeed) -> None:
        """Let time pass in which agents publish, and the ladder looks twice a second."""
        for _ in range(int(seconds * 2)):
            self.now += 0.5
            for member in made.fleet.members():
                publish(made, member.instance, self.now)
            feed.look()


@asynccontextmanager
async def feeding(
    made: Router, folder: Path, clock: Callable[[], float] = time.monotonic
) -> AsyncIterator[tuple[KvLog, KvFeed]]:
    known, synced = asyncio.Event(), asyncio.Event()
    known.set()
    with RedisServer("valkey", folder) as server:
        async with Registry(server.url) as registry:
            kv_log = KvLog(registry.link, registry.base)
            feed = KvFeed(made, kv_log, known, clock)
            task = asyncio.create_task(feed.run(synced))
            await synced.wait()
            yield kv_log, feed
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


async def other(made: Router) -> int:
    await asyncio.sleep(0)
    return made.kv.size("b@1")


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


async def test_what_was_told_is_forgotten_once_its_log_stops_and_is_read_whole_when_it_goes_on(tmp_path: Path) -> None:
    """In the meantime the learned index answers, for no layout is known; the other instance is not touched."""
    made, clock = router(TELLER, instance("b", kv_events=True)), Clock()
    async with feeding(made, tmp_path, clock) as (kv_log, feed):
        ladder = LadderWatch(made, feed)
        clock.run(1.0, made, feed)
        up_to = (await kv_log.append(KEY, written(KvDelta(16, True, gpu=blocks(1, 100))))).entry_id
        await kv_log.write_snapshot(KEY, written(KvDelta(16, True, gpu=blocks(1, 100))), up_to)
        await eventually(lambda: size(made), lambda held: held == 100)
        for second in range(int(FROZEN_AFTER_S)):
            assert not feed.frozen
            clock.run(1.0, made, feed)
            await kv_log.append("b@1", written(KvDelta(16, gpu=blocks(1, second + 1))))
            await eventually(lambda: other(made), lambda held, second=second: held == second + 1)
        clock.run(0.5, made, feed)
        assert feed.frozen == {"a"}
        assert (made.kv.size(KEY), made.kv.size("b@1")) == (0, 10)
        assert made.kv.layout(TELLER, TELLER.models[0]) is None
        assert ladder.seen(clock.now).rungs_of("a") == (Rung.KV_FEED,)
        assert ladder.seen(clock.now).rungs_of("b") == ()
        await kv_log.append(KEY, written(KvDelta(16, gpu=blocks(2, 1))))
        await eventually(lambda: size(made), lambda held: held == 101)
        clock.run(0.5, made, feed)
        assert not feed.frozen
        assert ladder.seen(clock.now).rungs == frozenset()
        await kv_log.append(KEY, written(KvDelta(16, gpu=blocks(3, 1))))
        await eventually(lambda: size(made), lambda held: held == 102)


async def test_a_log_that_is_read_but_never_to_its_end_is_frozen_too(tmp_path: Path) -> None:
    """What comes is old news."""
    made, clock = router(TELLER), Clock()
    async with feeding(made, tmp_path, clock) as (_, feed):
        feed.look()
        for number in range(int(FROZEN_AFTER_S) + 1):
            feed.take(Delta(KEY, written(KvDelta(16, gpu=blocks(number, 1))), f"{number}-1", behind=True))
            await eventually(lambda: size(made), lambda held, number=number: held == number + 1)
            clock.run(1.0, made, feed)
        assert feed.frozen == {"a"}
        assert made.kv.size(KEY) == 0


async def test_a_feed_that_has_died_leaves_nothing_believed(tmp_path: Path) -> None:
    """The ladder looks after it."""
    made, clock = router(TELLER), Clock()
    async with feeding(made, tmp_path, clock) as (kv_log, feed):
        clock.run(1.0, made, feed)
        await kv_log.append(KEY, written(KvDelta(16, gpu=blocks(1, 100))))
        await eventually(lambda: size(made), lambda held: held == 100)
    clock.run(FROZEN_AFTER_S + 0.5, made, feed)
    assert (feed.frozen, made.kv.size(KEY)) == ({"a"}, 0)


async def test_an_instance_whose_agent_is_silent_is_on_another_rung(tmp_path: Path) -> None:
    """Its log stops with it, and that is no news."""
    made, clock = router(TELLER), Clock()
    async with feeding(made, tmp_path, clock) as (_, feed):
        ladder = LadderWatch(made, feed)
        clock.run(1.0, made, feed)
        for _ in range(11):
            clock.now += 0.5
            made.fleet.heard(clock.now)
            feed.look()
        assert ladder.seen(clock.now).rungs == {Rung.INSTANCE_STALE}
        clock.run(FROZEN_AFTER_S, made, feed)
        assert ladder.seen(clock.now).rungs == frozenset()


async def test_what_many_instances_told_is_applied_in_one_turn_and_much_of_it_in_several(tmp_path: Path) -> None:
    """To wake up for each costs more than to apply it; a prompt of thousands of blocks lets requests through."""
    keys = [instance(name, kv_events=True).key for name in "abc"]
    for told, turns in ((100, 0), (3_000, 5)):  # pieces of at most 2,000, one a turn
        made = router(*(instance(name, kv_events=True) for name in "abc"))
        feed = KvFeed(made, KvLog(Link("redis://127.0.0.1:1"), "none"), asyncio.Event())
        for number, key in enumerate(keys):
            feed.take(Whole(key, written(KvDelta(16, gpu=blocks(number, told)))))
        assert turns_of(feed) == turns
        assert [made.kv.size(key) for key in keys] == [told] * 3


async def test_a_block_of_each_of_many_instances_lets_requests_through() -> None:
    """There a turn is full of what applying any delta takes, and not of blocks."""
    names = [f"i{number}" for number in range(400)]
    feed = KvFeed(router(), KvLog(Link("redis://127.0.0.1:1"), "none"), asyncio.Event())
    for name in names:
        feed.take(Whole(f"{name}@1", written(KvDelta(16, gpu=(7,)))))
    assert turns_of(feed) >= 3


def turns_of(feed: KvFeed) -> int:
    """How often requests are let through while all that was taken down is applied."""
    applying, seen = feed.apply(), 0
    with suppress(StopIteration):
        while True:
            applying.send(None)
            seen += 1
    return seen


@pytest.mark.parametrize("applied", [0, 2_000])
async def test_what_is_forgotten_between_two_turns_is_applied_no_further(applied: int) -> None:
    """Nobody would forget it again: its instance is gone, or its log has stopped."""
    made = router(TELLER, instance("b", kv_events=True))
    feed = KvFeed(made, KvLog(Link("redis://127.0.0.1:1"), "none"), asyncio.Event())
    feed.take(Delta("b@1", written(KvDelta(16, gpu=blocks(1, 1_900))), "1-1"))
    feed.take(Delta(KEY, written(KvDelta(16, gpu=blocks(2, 3_000))), "1-1"))
    applying = feed.apply()
    applying.send(None)
    while made.kv.size(KEY) < applied:
        applying.send(None)
    feed.take(Whole(KEY, None))
    with pytest.raises(StopIteration):
        applying.send(None)
    assert (made.kv.size("b@1"), made.kv.size(KEY), list(made.kv.keys)) == (1_900, 0, ["b@1"])
