"""The autoscaler's word, read from a real Redis while somebody looks."""

from __future__ import annotations

import asyncio
from pathlib import Path

from extproc.adapters.redis_link import Link
from extproc.adapters.scaling_memory import ScalingMemory
from extproc.core.scaling.recommendation import Driver, Recommendation, Signal
from extproc.scaling_service.word import Word, encode_word
from extproc.server.advice import Advice
from tests.redis_server import RedisServer

BASE = "extproc:{f}"
LOAD = Driver(Signal.LOAD, 3, "load 2.5")
WANTED = Recommendation(pool="p", at_s=1.0, desired=3, ready=1, coming=0, leaving=0, drivers=(LOAD,), without=1)


async def say(link: Link, word: Word | bytes) -> None:
    """As the leader does, without an election."""
    seconds, _ = await link.command("TIME")
    data = word if isinstance(word, bytes) else encode_word(word)
    await link.command("HSET", f"{BASE}:recommendations", "data", data, "at_ms", str(int(seconds) * 1000 - 5000))


async def test_it_is_told_with_its_age_read_now_and_then_and_survives_redis(tmp_path: Path) -> None:
    """Nothing before it speaks; nothing of another version; its last word, ever older, where Redis is gone."""
    now = 100.0
    with RedisServer("valkey", tmp_path) as server:
        async with Link(server.url) as link:
            advice = Advice(ScalingMemory(link, BASE), lambda: now)
            assert await advice.look() is None
            word = Word(at_s=1.0, name="one", about="http://one", recommendations=(WANTED,), pending={"p": 2})
            await say(link, word)
            assert await advice.look() is None  # read a moment ago
            now += 3.0
            told = await advice.look()
            assert told is not None
            assert (told["name"], told["outside"], 4.0 < told["age_s"] < 60.0) == ("one", 0, True)
            (pool,) = told["pools"]
            assert (pool["pool"], pool["desired"], pool["pending"]) == ("p", 3, 2)
            assert list(pool["drivers"]) == [{"signal": "load", "instances": 3, "why": "load 2.5"}]
            await asyncio.to_thread(server.stop)
            now += 100.0
            later = await advice.look()
            assert later is not None
            assert later["age_s"] > 100.0
            await asyncio.to_thread(server.start)
            await say(link, b"not JSON")
            now += 100.0
            while (last := await advice.look()) is not None:
                now += 3.0
            assert last is None
