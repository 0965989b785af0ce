"""All that lies in Redis or is told there, as one version writes it: taken down, and laid into another server.

Times are kept as `{ms}`, `{us}` and `{s}`, with what they are ahead in minutes, since a reader leaves out what is old.
"""

from __future__ import annotations

import re
import time
from typing import Any

import redis.asyncio as aioredis

from extproc.adapters.intents import Intents
from extproc.adapters.kv_log import START, KvLog
from extproc.adapters.leader import Leader
from extproc.adapters.prefix_memory import PrefixMemory
from extproc.adapters.profile_memory import ProfileMemory
from extproc.adapters.rate_limits import RateLimits
from extproc.adapters.registry import Registry
from extproc.adapters.scaling_memory import ScalingMemory
from extproc.adapters.start_memory import StartMemory
from extproc.adapters.strict_bookings import StrictBookings
from extproc.adapters.traffic_counts import TrafficCounts
from extproc.core.limits.charge import Receipt, Settlement
from extproc.core.limits.rules import EACH, Limits, Rule
from extproc.core.prefixes import kv_delta
from extproc.core.scaling.recommendation import Driver, Forecast, Recommendation, Signal
from extproc.core.values.instance import Lifecycle
from extproc.scaling_service.word import Word, encode_word
from extproc.stream.errands import Charge, Place, TakePlace
from tests.wire.values import COUNTS, DELTA, INSTANCE, KIND

BASE = "extproc:{default}"
MODEL = "llama-3.1-8b"
ROUTER = "router-a"
BLOCKS = b"".join(number.to_bytes(8, "little") for number in (7, 8))
LIMITS = Limits(
    rules=(
        Rule(tenants=EACH, requests_per_minute=0.001, request_burst=2),  # nothing comes back while a test runs
        Rule(tenants=EACH, models=EACH, tokens_per_minute=0.001, token_burst=1000),
        Rule(tenants=EACH, concurrent=2),
    ),
    budget_s=30.0,
)
_TIMES = (("us", 1e6, r"\b1[7-9]\d{14}\b"), ("ms", 1e3, r"\b1[7-9]\d{11}\b"), ("s", 1.0, r"\b1[7-9]\d{8}\.\d+\b"))

WORD = Word(
    at_s=30.5,
    name="autoscale-a",
    about="host:9004",
    recommendations=(
        Recommendation(
            pool="h100", at_s=30.5, desired=3, ready=2, coming=1, leaving=1, without=2, broken=1,
            drivers=(Driver(Signal.LOAD, 3, "load 2.50 instances"),),
            forecast=Forecast(now=2.5, horizon_s=60.0, expected=2.6, planned=2.9),
            drain=("h100-1",), resume=("h100-2",), stop=("h100-3",),
        ),
    ),
    pending={"h100": 1},
    outside=("gpu-9",),
)  # fmt: skip


async def told(url: str) -> dict[str, Any]:
    """What the present code writes into an empty server and tells on its channels."""
    async with aioredis.Redis.from_url(url) as raw, Registry(url) as registry, raw.pubsub() as ear:
        await ear.subscribe(f"{BASE}:events")
        await registry.publish(INSTANCE)
        await registry.order(INSTANCE.id, Lifecycle.DRAINING)
        await registry.remove("gpu-0")
        await registry.publish(INSTANCE)
        await registry.order(INSTANCE.id, Lifecycle.DRAINING)
        await _learned(registry)
        await _counted(registry)
        await _taken(registry)
        events = await _heard(ear, 5)
        keys = {_text(key): await _value(raw, key) for key in sorted(await raw.keys("*"))}
        return {"events": events, "keys": {_timeless(name): value for name, value in keys.items()}}


async def _learned(registry: Registry) -> None:
    link, base = registry.link, registry.base
    await ProfileMemory(link, base).write(ROUTER, [KIND])
    prefixes = PrefixMemory(link, base)
    prefixes._me = "0123456789ab"  # by chance otherwise
    await prefixes.write(INSTANCE.key, BLOCKS)
    await StartMemory(link, base).write({}, [MODEL], {MODEL: {INSTANCE.key: 61.5}}, {MODEL: {"wait-1": 70.5}})
    log = KvLog(link, base)
    await log.hold(INSTANCE.key)
    await log.write_snapshot(INSTANCE.key, kv_delta.encode(DELTA), START)
    await log.append(INSTANCE.key, kv_delta.encode(DELTA))


async def _counted(registry: Registry) -> None:
    link, base = registry.link, registry.base
    await TrafficCounts(link, base, ROUTER).add(1, {MODEL: COUNTS}, {MODEL: 3})
    await Intents(link, base, ROUTER).want("llama-3.1-70b", 5, 2, 300.0)
    leader = Leader(link, base, "autoscale-a", "host:9004")
    assert await leader.turn()
    assert leader.fence is not None
    assert await ScalingMemory(link, base).write(b"memory", leader.fence)
    assert await ScalingMemory(link, base).tell(encode_word(WORD), leader.fence)


async def _taken(registry: Registry) -> None:
    """One request against all kinds of limits, 10 tokens more than were charged; and one place in strict mode."""
    limits = RateLimits(registry.link, registry.base, ROUTER, LIMITS)
    verdict = await limits.charge(charge("r-1", 600))
    assert verdict is not None
    assert verdict.allowed
    limits.settle(Settlement(Receipt(600, verdict.at_us, "acme", MODEL), 10))
    await limits.farewell()
    strict = StrictBookings(registry.link, registry.base, ROUTER, budget_s=30.0)
    assert await strict.take(TakePlace("r-1", (Place(INSTANCE.key, 1),))) == 0


def charge(request_id: str, tokens: int) -> Charge:
    """Of one tenant and model, against all of `LIMITS`."""
    return Charge(request_id, "acme", MODEL, tokens, LIMITS.buckets("acme", MODEL))


async def _heard(ear: Any, number: int) -> list[str]:
    """As many messages of the channel, or as many as come within ten seconds."""
    found: list[str] = []
    ends_s = time.monotonic() + 10.0
    while len(found) < number and time.monotonic() < ends_s:
        message = await ear.get_message(ignore_subscribe_messages=True, timeout=0.1)
        if message is not None:
            found.append(_timeless(_text(message["data"])))
    return found


async def _value(raw: aioredis.Redis, key: bytes) -> Any:
    match _text(await raw.type(key)):
        case "string":
            return _timeless(_text(await raw.get(key)))
        case "hash":
            flat = await raw.hgetall(key)
            return {_text(name): _timeless(_text(value)) for name, value in sorted(flat.items())}
        case "zset":
            pairs = await raw.zrange(key, 0, -1, withscores=True)
            return [[_text(name), _timeless(f"{score:.0f}")] for name, score in pairs]
        case "stream":
            entries = await raw.xrange(key)
            return [
                {"id": _timeless(_text(at)), **{_text(name): _timeless(_text(value)) for name, value in fields.items()}}
                for at, fields in entries
            ]
    raise AssertionError(f"{key!r} is of a kind that is not kept yet")


async def lay(url: str, state: dict[str, Any]) -> None:
    """Write what was taken down into an empty server, as of now."""
    async with aioredis.Redis.from_url(url) as raw:
        for key, value in state["keys"].items():
            if isinstance(value, str):
                await raw.set(key, now(value))
            elif isinstance(value, dict):
                await raw.hset(key, mapping={name: now(each) for name, each in value.items()})
            elif isinstance(value[0], list):
                await raw.zadd(key, {name: float(now(score)) for name, score in value})
            else:
                for entry in value:
                    fields = {name: now(each) for name, each in entry.items() if name != "id"}
                    await raw.xadd(key, fields, id=now(entry["id"]))


def now(text: str) -> bytes:
    """With the times of now in place of those that were taken out."""
    at_s = time.time()
    for name, scale, _ in _TIMES:
        digits = 6 if name == "s" else 0
        for told in re.findall(rf"\{{{name}(?:\+(\d+)min)?\}}", text):
            ahead = f"+{told}min" if told else ""
            then = (at_s + 60.0 * float(told or 0)) * scale
            text = text.replace(f"{{{name}{ahead}}}", f"{then:.{digits}f}")
    return text.encode("latin-1")


def _timeless(text: str) -> str:
    at_s = time.time()
    for name, scale, pattern in _TIMES:

        def ahead(found: re.Match[str], name: str = name, scale: float = scale) -> str:
            minutes = round((float(found[0]) / scale - at_s) / 60.0)
            return f"{{{name}+{minutes}min}}" if minutes else f"{{{name}}}"

        text = re.sub(pattern, ahead, text)
    return text


def _text(data: bytes) -> str:
    """Any bytes, and back by `encode("latin-1")`."""
    return data.decode("latin-1")
