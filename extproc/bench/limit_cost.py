"""What it costs a request to be held against limits: the round trip, beside a PING to the same server.

Charges requests one after the other under a fleet's name of its own; its keys expire by themselves.
"""

from __future__ import annotations

import secrets
import statistics
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from extproc.adapters.rate_limits import RateLimits
from extproc.adapters.redis_link import Link
from extproc.core.limits.rules import EACH, Limits, Rule
from extproc.stream.errands import Charge

_MANY = 1e9  # a minute, so that all are let through
_RULES = {
    "requests": (Rule(tenants=EACH, requests_per_minute=_MANY),),
    "requests, tokens": (Rule(tenants=EACH, requests_per_minute=_MANY, tokens_per_minute=_MANY),),
    "requests, tokens, places": (
        Rule(tenants=EACH, requests_per_minute=_MANY, tokens_per_minute=_MANY, concurrent=_MANY),
    ),
    "the same of tenant and of model": (
        Rule(tenants=EACH, requests_per_minute=_MANY, tokens_per_minute=_MANY, concurrent=_MANY),
        Rule(models=EACH, requests_per_minute=_MANY, tokens_per_minute=_MANY, concurrent=_MANY),
    ),
}


@dataclass(frozen=True, slots=True)
class LimitCost:
    """Times of one call. `redis_s`: of the server's processor, by its own count."""

    limits: str
    p50_s: float
    p99_s: float
    ping_s: float  # median
    redis_s: float


async def limit_costs(url: str, rounds: int) -> list[LimitCost]:
    """Measure each set of limits with `rounds` requests. Raises RegistryError."""
    async with Link(url) as link:
        return [await _measured(link, what, Limits(rules, budget_s=5.0), rounds) for what, rules in _RULES.items()]


async def _measured(link: Link, what: str, limits: Limits, rounds: int) -> LimitCost:
    made = RateLimits(link, f"extproc:{{bench-{secrets.token_hex(4)}}}", secrets.token_hex(4), limits)
    buckets = limits.buckets("acme", "m")

    async def charge(number: int) -> None:
        await made.charge(Charge(str(number), "acme", "m", 1000, buckets))

    await charge(-1)  # the server knows the script from now on
    before_s = await _script_s(link)
    charges = await _times(charge, rounds)
    after_s = await _script_s(link)
    pings = await _times(lambda _: link.command("PING"), rounds)
    return LimitCost(
        what,
        statistics.median(charges),
        charges[int(0.99 * (len(charges) - 1))],
        statistics.median(pings),
        (after_s - before_s) / rounds,
    )


async def _times(call: Callable[[int], Awaitable[Any]], rounds: int) -> list[float]:
    """Seconds of each call, the shortest first."""
    times = []
    for number in range(rounds):
        began_s = time.perf_counter()
        await call(number)
        times.append(time.perf_counter() - began_s)
    return sorted(times)


async def _script_s(link: Link) -> float:
    """Seconds that the server has spent in scripts so far."""
    told = (await link.command("INFO", "commandstats")).decode()
    for line in told.splitlines():
        if line.startswith("cmdstat_evalsha:"):
            return float(dict(part.split("=", 1) for part in line.partition(":")[2].split(","))["usec"]) * 1e-6
    return 0.0
