"""What earlier versions have left in Redis, and told there, is taken by the present one."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from extproc.adapters.intents import Intents
from extproc.adapters.kv_log import Delta, KvLog, KvNews, Whole
from extproc.adapters.leader import Leader
from extproc.adapters.prefix_memory import PrefixMemory
from extproc.adapters.profile_memory import ProfileMemory
from extproc.adapters.rate_limits import RateLimits
from extproc.adapters.registry import Registry
from extproc.adapters.scaling_memory import ScalingMemory
from extproc.adapters.start_memory import StartMemory
from extproc.adapters.strict_bookings import StrictBookings
from extproc.adapters.traffic_counts import TrafficCounts
from extproc.core.fleet.events import Ordered, Published, Removed, decode_event
from extproc.core.limits.rules import Kind
from extproc.core.prefixes import kv_delta
from extproc.core.values.instance import Lifecycle
from extproc.scaling_service.word import decode_word
from extproc.stream.errands import Place, TakePlace
from tests.redis_server import RedisServer
from tests.wire.forms import kept
from tests.wire.redis_state import BLOCKS, LIMITS, MODEL, ROUTER, WORD, charge, lay, now, told
from tests.wire.values import COUNTS, DELTA, INSTANCE, KIND

EVERY = pytest.mark.parametrize("state", [json.loads((path / "redis.json").read_text()) for path in kept()])


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    started = RedisServer("valkey", tmp_path)
    started.start()
    yield started
    started.stop()


def newer(state: dict[str, Any]) -> dict[str, Any]:
    """As a version might write it that knows more: further fields in each JSON, hash and list of numbers."""

    def grown(text: str) -> str:
        if text.startswith('{"'):
            return '{"not_known_yet":{"a":[1]},' + text[1:]
        return text

    keys: dict[str, Any] = {}
    for key, value in state["keys"].items():
        name = key.removeprefix("extproc:{default}:")
        if isinstance(value, str) and name.startswith("instance:"):
            keys[key] = grown(value).replace('"load":{', '"load":{"not_known_yet":1,')
        elif isinstance(value, dict) and name == "traffic":
            keys[key] = {model: f"{numbers} 77 78" for model, numbers in value.items()}
        elif isinstance(value, dict) and name not in ("orders", "traffic-routers") and not name.startswith("prefixes:"):
            fields = {field: grown(told) for field, told in value.items()}
            keys[key] = fields if name in ("profiles", "starts") else {**fields, "not_known_yet": "1"}
        else:
            keys[key] = value
    keys["extproc:{default}:not-known-yet"] = {"a": "1"}
    return {"events": [grown(event) for event in state["events"]], "keys": keys}


async def read_all(url: str) -> dict[str, Any]:
    """By each of those who read it."""
    async with Registry(url) as registry:
        link, base = registry.link, registry.base
        state = await registry.state()
        traffic = await TrafficCounts(link, base).read()
        (intent,) = await Intents(link, base).read()
        memory, word = await ScalingMemory(link, base).read(), await ScalingMemory(link, base).told()
        leader = Leader(link, base, "another")
        leads = await leader.turn()
        starts = await StartMemory(link, base).read(3600.0)
        kinds = await ProfileMemory(link, base).read()
        news = await kv_news(KvLog(link, base))
        assert word is not None
        assert leader.led is not None
        return {
            "instances": [record.instance for record in state.records],
            "orders": dict(state.orders),
            "kinds": {name: [repr(each).split(", lain_s")[0] for each in told] for name, told in kinds.items()},
            "prefixes": await PrefixMemory(link, base).read(INSTANCE.key),
            "starts": {model: (each.starts, each.waits) for model, each in starts.items()},
            "kv": news,
            "counts": {model: asdict(each) for model, each in traffic.counts.items()},
            "held": (dict(traffic.held), traffic.routers),
            "intent": (intent.model, intent.requests, intent.waiting),
            "leader": (leads, leader.led.name, leader.led.about),
            "memory": memory,
            "word": decode_word(word.data),
            "full": [await refused_by(registry, tokens) for tokens in (391, 390)],
            "place": await StrictBookings(link, base, "router-b", budget_s=30.0).take(
                TakePlace("r-2", (Place(INSTANCE.key, 1), Place("gpu-1@1", 1)))
            ),
        }


async def refused_by(registry: Registry, tokens: int) -> list[Kind]:
    """Limits that another router finds full for one more request."""
    limits = RateLimits(registry.link, registry.base, "router-b", LIMITS)
    verdict = await limits.charge(charge("r-2", tokens))
    assert verdict is not None
    return [state.bucket.kind for state in verdict.states if state.wait_s > 0]


async def kv_news(log: KvLog) -> list[KvNews]:
    """Whole and delta, as a router gets them that starts."""
    found: list[KvNews] = []
    watching = asyncio.create_task(log.watch(lambda: {INSTANCE.key}, found.append, synced=asyncio.Event()))
    try:
        async with asyncio.timeout(30.0):
            while len(found) < 2:  # noqa: ASYNC110 (what is taken is not ours to signal)
                await asyncio.sleep(0.01)
    finally:
        watching.cancel()
        with suppress(asyncio.CancelledError):
            await watching
    return [each if isinstance(each, Whole) else Delta(each.instance_key, each.payload, "") for each in found]


EXPECTED = {
    "instances": [INSTANCE],
    "orders": {INSTANCE.id: Lifecycle.DRAINING},
    "kinds": {ROUTER: [repr(KIND).split(", lain_s")[0]]},
    "prefixes": BLOCKS,
    "starts": {MODEL: (((INSTANCE.key, 61.5),), (("wait-1", 70.5),))},
    "kv": [Whole(INSTANCE.key, kv_delta.encode(DELTA)), Delta(INSTANCE.key, kv_delta.encode(DELTA), "")],
    "counts": {MODEL: asdict(COUNTS)},
    "held": ({MODEL: 3}, 1),
    "intent": ("llama-3.1-70b", 5, 2),
    "leader": (False, "autoscale-a", "host:9004"),
    "memory": b"memory",
    "word": WORD,
    "full": [[Kind.TOKENS], []],  # of 1,000 tokens 610 were used
    "place": 1,  # the other one: router-a has that of the first
}


@EVERY
@pytest.mark.parametrize("by", [lambda state: state, newer], ids=["as it was", "with more than is known"])
async def test_what_a_version_left_in_redis_is_read(
    state: dict[str, Any], by: Callable[[dict[str, Any]], dict[str, Any]], server: RedisServer
) -> None:
    """Each key that ages is as of now; who leads goes on leading until its lease ends."""
    laid = by(state)
    leases = laid["keys"]
    leases["extproc:{default}:leader"] |= {"until_ms": "{ms+1min}"}
    leases["extproc:{default}:routers"] = [[ROUTER, "{ms+1min}"]]
    await lay(server.url, laid)
    assert await read_all(server.url) == EXPECTED


@EVERY
@pytest.mark.parametrize("by", [lambda state: state, newer], ids=["as it was", "with more than is known"])
def test_what_a_version_told_on_the_channel_of_events_is_taken(
    state: dict[str, Any], by: Callable[[dict[str, Any]], dict[str, Any]]
) -> None:
    """Each of its kinds, in its order, and the number that tells a gap."""
    events = [decode_event(now(text)) for text in by(state)["events"]]
    assert [type(event) for event in events] == [Published, Ordered, Removed, Published, Ordered]
    assert all(event.seq is not None for event in events)
    published, ordered, removed = events[:3]
    assert isinstance(published, Published)
    assert published.instance == INSTANCE
    assert published.ttl_ms == 10_000
    assert isinstance(ordered, Ordered)
    assert (ordered.id, ordered.lifecycle) == (INSTANCE.id, Lifecycle.DRAINING)
    assert isinstance(removed, Removed)
    assert removed.id == INSTANCE.id


async def test_what_is_left_in_redis_now_is_kept(server: RedisServer) -> None:
    """By name, kind and text: whatever changes is then read by all that come later."""
    latest = json.loads((kept()[-1] / "redis.json").read_text())
    assert await told(server.url) == latest, "run python -m tests.wire.snapshot"
