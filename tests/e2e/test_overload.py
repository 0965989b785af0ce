"""A whole fleet with admission: services that end while they hold requests, and one tenant's flood beside another."""

from __future__ import annotations

import asyncio
import signal
import time
from collections import Counter
from statistics import quantiles
from typing import Any

import orjson
import pytest
from openai import APIStatusError

from extproc.adapters.http_client import Answer
from extproc.demo.stack import MODEL, EngineSpec
from tests.e2e.conftest import Fleet, StartFleet
from tests.e2e.eventually import eventually

TRUSTED = ("--class-header", "x-class", "--tenant-header", "x-tenant")
SLOW = ("--speed", "0.25")


async def held(fleet: Fleet) -> int:
    answer = await fleet.http.get(f"{fleet.stack.pages_url}/held")
    assert isinstance(answer, Answer)
    page = orjson.loads(answer.body)
    assert sum(page["by_class"].values()) == sum(page["by_tenant"].values()) == page["held"]
    return int(page["held"])


async def ask(fleet: Fleet, max_tokens: int) -> tuple[int, str]:
    """Status of a request that may be held for long, and the code of its error."""
    headers = {"x-class": "batch", "x-tenant": "t"}
    try:
        await fleet.ask(max_tokens=max_tokens, extra_headers=headers)
    except APIStatusError as error:
        refusal = error
    else:
        return 200, ""
    assert 1 <= int(refusal.response.headers["retry-after"]) <= 60
    return refusal.status_code, str(refusal.code)


@pytest.mark.long
async def test_a_service_that_is_told_to_stop_refuses_whom_it_holds_and_one_that_dies_leaves_them_to_envoy(
    start_fleet: StartFleet,
) -> None:
    """Dead, it cannot answer: then `envoy-config --fail-closed` decides, by default for balancing."""
    for number, expected in ((signal.SIGTERM, {(503, "overloaded")}), (signal.SIGKILL, {(200, "")})):
        flags = ("--admission", "--max-in-flight", "1", *TRUSTED)
        async with start_fleet([EngineSpec("a", "h100_sxm", flags=SLOW)], serve_flags=flags) as fleet:
            first = asyncio.create_task(ask(fleet, 200))
            await eventually(lambda: fleet.row("a"), lambda row: row.get("in_flight") == 1)
            waiting = [asyncio.create_task(ask(fleet, 2)) for _ in range(3)]
            await eventually(lambda: held(fleet), lambda requests: requests == 3)
            assert 'extproc_held{class="batch"} 3.0' in await fleet.metrics()
            fleet.stack.service.process.send_signal(number)
            assert set(await asyncio.gather(*waiting)) == expected
            assert await first == (200, "")


@pytest.mark.realtime
@pytest.mark.parametrize("flags", [(), ("--max-queued", "1")])
async def test_one_tenants_flood_leaves_another_its_share(flags: tuple[str, ...], start_fleet: StartFleet) -> None:
    """Alone and beside a flood of three times what the fleet can carry, in one run: what is within its share is served.

    Its TTFT stays within what its class allows; it is shown, for on a machine that is busy it says little.
    """
    engines = [EngineSpec(name, "h100_sxm", flags=("--speed", "0.1", "--max-num-seqs", "4")) for name in "ab"]
    async with start_fleet(engines, serve_flags=("--admission", *flags, *TRUSTED)) as fleet:
        alone = await ttfts(fleet, "quiet", 20, 0.5)
        floods = asyncio.create_task(ttfts(fleet, "flood", 280, 0.04))
        await asyncio.sleep(1.0)
        beside = await ttfts(fleet, "quiet", 20, 0.5)
        flood = await floods
        for name, (times_s, statuses) in {"alone": alone, "beside": beside, "flood": flood}.items():
            print(f"\n{name}: {dict(statuses)}, TTFT p50 {_p(5, times_s):.3f} s, p90 {_p(9, times_s):.3f} s")  # noqa: T201
        assert alone[1] == {200: 20}
        assert beside[1][200] >= 19
        assert flood[1][503] > flood[1][200] / 2


def _p(tenths: int, times_s: list[float]) -> float:
    return quantiles(times_s, n=10)[tenths - 1]


async def ttfts(fleet: Fleet, tenant: str, number: int, every_s: float) -> tuple[list[float], Counter[int]]:
    """Times to the first token of a tenant's requests that were served, and all statuses."""
    times_s: list[float] = []
    statuses: Counter[int] = Counter()

    async def one(turn: int) -> None:
        began_s = time.monotonic()
        messages: list[Any] = [{"role": "user", "content": f"{tenant} {turn} " + "word " * 300}]
        try:
            stream: Any = await fleet.openai.chat.completions.create(
                model=MODEL, messages=messages, max_tokens=10, stream=True, extra_headers={"x-tenant": tenant}
            )
            first = True
            async for _ in stream:
                if first:
                    times_s.append(time.monotonic() - began_s)
                first = False
            statuses[200] += 1
        except APIStatusError as error:
            statuses[error.status_code] += 1

    async with asyncio.TaskGroup() as group:
        for turn in range(number):
            group.create_task(one(turn))
            await asyncio.sleep(every_s)
    return times_s, statuses
