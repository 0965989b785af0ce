"""Limits over real servers: no router, and no number of them, lets more through; nothing leaks, nor is freed twice."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from extproc.adapters.rate_limits import RateLimits
from extproc.adapters.redis_link import Link
from extproc.adapters.redis_scripts import Script
from extproc.adapters.redis_settings import RedisSettings, parse
from extproc.core.limits.charge import Receipt, Settlement, Verdict
from extproc.core.limits.rules import EACH, Kind, Limits, Rule
from extproc.stream.errands import Charge
from tests.redis_server import RedisServer
from tests.registry.deployments import CutWire, Wire, cluster_of_three
from tests.registry.test_users import GuardedServer, login

LONG_S = 30.0  # never reached by a machine that works
BASE = "extproc:{default}"
SLOW = Limits(
    rules=(
        Rule(tenants=EACH, requests_per_minute=0.001, request_burst=7),  # nothing comes back while a test runs
        Rule(tenants=EACH, models=EACH, tokens_per_minute=0.001, token_burst=1000),
    ),
    budget_s=LONG_S,
)
PLACES = Limits(rules=(Rule(tenants=EACH, concurrent=2),), budget_s=LONG_S)


@asynccontextmanager
async def router(
    where: str | RedisSettings, name: str, limits: Limits, *, heartbeat_s: float = 0.2, timeout_s: float = 0.5
) -> AsyncIterator[RateLimits]:
    settings = parse(where) if isinstance(where, str) else where
    async with Link(replace(settings, timeout_s=timeout_s)) as link:
        made = RateLimits(link, BASE, name, limits, heartbeat_s=heartbeat_s, lease_s=3 * heartbeat_s)
        task = asyncio.create_task(made.run())
        try:
            yield made
            assert not task.done()
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


def wish(limits: Limits, request_id: str, tokens: int = 1, tenant: str = "acme", model: str = "m") -> Charge:
    return Charge(request_id, tenant, model, tokens, limits.buckets(tenant, model))


async def ask(made: RateLimits, limits: Limits, request_id: str, tokens: int = 1, tenant: str = "acme") -> Verdict:
    verdict = await made.charge(wish(limits, request_id, tokens, tenant))
    assert verdict is not None
    return verdict


async def allowed(made: RateLimits, limits: Limits, request_id: str, tokens: int = 1, tenant: str = "acme") -> bool:
    return (await ask(made, limits, request_id, tokens, tenant)).allowed


def left(verdict: Verdict, kind: Kind) -> int:
    state = verdict.tightest(kind)
    assert state is not None
    return state.remaining


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(LONG_S):
        while not await condition():  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def tokens_left(made: RateLimits) -> int:
    """What is left, asked by one who is refused for its size and so charged nothing."""
    verdict = await made.charge(wish(SLOW, "look", 10_000_000))
    assert verdict is not None
    assert not verdict.allowed
    return left(verdict, Kind.TOKENS)


async def test_routers_that_ask_at_once_never_pass_a_limit_together(server: RedisServer) -> None:
    """Each tenant has what is its own, and those that are refused cost nothing."""
    async with router(server.url, "r1", SLOW) as first, router(server.url, "r2", SLOW) as second:
        asked = [
            allowed(each, SLOW, f"{tenant}{number}", tenant=tenant)
            for number in range(10)
            for each in (first, second)
            for tenant in ("acme", "umbrella")
        ]
        assert sum(await asyncio.gather(*asked)) == 14
        refused = await ask(first, SLOW, "next")
        assert (left(refused, Kind.REQUESTS), left(refused, Kind.TOKENS)) == (0, 993)
        assert first.counts.refused[Kind.REQUESTS] + second.counts.refused[Kind.REQUESTS] == 27


async def test_no_window_lets_through_more_than_the_burst_and_what_comes_back(server: RedisServer) -> None:
    """Of any number of routers that ask as fast as they can; the time is that of the server."""
    limits = Limits(rules=(Rule(models=EACH, requests_per_minute=6000, request_burst=5),), budget_s=LONG_S)
    async with AsyncExitStack() as stack:
        routers = [await stack.enter_async_context(router(server.url, f"r{number}", limits)) for number in range(3)]
        passed = []
        while not passed or passed[-1] - passed[0] < 500_000:
            asked = [ask(each, limits, "") for each in routers for _ in range(5)]
            passed += sorted(verdict.at_us for verdict in await asyncio.gather(*asked) if verdict.allowed)
        passed.sort()
    for first, began_us in enumerate(passed):
        for last in range(first, len(passed)):
            assert last - first + 1 <= 5 + (passed[last] - began_us) / 10_000 + 1e-6
    assert len(passed) > 5  # something came back


async def test_one_call_charges_all_limits_or_none(server: RedisServer) -> None:
    """A request that has no tokens left is not counted as a request."""
    async with router(server.url, "r1", SLOW) as made:
        assert await allowed(made, SLOW, "0", 900)
        refused = await ask(made, SLOW, "1", 200)
        assert not refused.allowed
        assert refused.full is not None
        assert refused.full.bucket.kind is Kind.TOKENS
        assert refused.full.wait_s > 1000
        assert (left(refused, Kind.REQUESTS), left(refused, Kind.TOKENS)) == (6, 100)
        assert await allowed(made, SLOW, "2", 100)


async def test_what_a_request_used_is_settled_by_whichever_router_hears_of_it(server: RedisServer) -> None:
    """Less than charged comes back, more is charged too, down to a debt."""
    async with router(server.url, "r1", SLOW) as first, router(server.url, "r2", SLOW) as second:
        verdict = await ask(first, SLOW, "0", 900)
        first.handed_over("0")
        first.release("0")
        receipt = Receipt(900, verdict.at_us, "acme", "m")
        second.settle(Settlement(receipt, -600))
        await until(lambda: _is(second, 700))
        second.settle(Settlement(receipt, 300))
        await until(lambda: _is(second, 400))
        second.settle(Settlement(receipt, 2000))
        await until(lambda: _is(second, 0))
        assert not await allowed(first, SLOW, "1", 1)
        assert (first.counts.charged_tokens, first.counts.returned_tokens) == (900, 0)
        assert (second.counts.returned_tokens, second.counts.added_tokens) == (600, 2300)


async def _is(made: RateLimits, tokens: int) -> bool:
    return await tokens_left(made) == tokens


async def test_a_request_that_no_engine_saw_gets_its_tokens_back_once(server: RedisServer) -> None:
    """Refused afterwards, or its client went away before: ending twice ends once."""
    async with router(server.url, "r1", SLOW) as made:
        assert await allowed(made, SLOW, "0", 400)
        assert await allowed(made, SLOW, "1", 400)
        made.release("0")
        made.release("0")
        made.release("unknown")
        await until(lambda: _is(made, 600))
        assert made.counts.returned_tokens == 400


async def test_places_are_counted_over_all_routers_and_free_again_when_requests_end(server: RedisServer) -> None:
    """Nobody can tell how long to wait; ending twice ends once."""
    async with router(server.url, "r1", PLACES) as first, router(server.url, "r2", PLACES) as second:
        assert await allowed(first, PLACES, "0")
        assert await allowed(second, PLACES, "1")
        refused = await ask(first, PLACES, "2")
        assert refused.full is not None
        assert (refused.full.wait_s, refused.full.used) == (float("inf"), 2)
        assert await allowed(first, PLACES, "other", tenant="umbrella")
        second.release("1")
        second.release("1")
        await until(lambda: allowed(first, PLACES, "3"))
        assert not await allowed(second, PLACES, "4")


async def test_the_places_of_a_router_that_dies_are_free_when_its_lease_ends(server: RedisServer) -> None:
    """And those of one that lives stay taken for as long as its requests run."""
    async with router(server.url, "alive", PLACES, heartbeat_s=0.6) as alive:  # a busy machine may be late by a second
        assert await allowed(alive, PLACES, "long")
        async with router(server.url, "dies", PLACES, heartbeat_s=0.6) as dies:
            assert await allowed(dies, PLACES, "0")
        await until(lambda: allowed(alive, PLACES, "second"))
        await asyncio.sleep(2.5)  # longer than any lease
        assert not await allowed(alive, PLACES, "third")


async def test_a_client_that_hangs_up_while_it_is_charged_leaves_no_place_behind(server: RedisServer) -> None:
    """Redis has taken the place, the answer is on its way, and nobody will be there to give it back."""
    async with (
        Wire(server.port) as wire,
        router(wire.url, "r1", PLACES, heartbeat_s=1000.0, timeout_s=LONG_S) as made,
        router(server.url, "r2", PLACES) as other,
        Link(server.url) as link,
    ):
        assert await allowed(other, PLACES, "0")
        await asyncio.sleep(0.3)  # its first statement is out
        wire.delay_s = 1.0  # long enough to be looked at before the answer comes
        asked = asyncio.create_task(made.charge(wish(PLACES, "1")))

        async def taken() -> bool:
            return b"r1" in await link.command("HGETALL", f"{BASE}:limit:concurrent:acme:*")

        await until(taken)
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked
        made.release("1")
        await until(lambda: allowed(other, PLACES, "2"))


async def test_without_redis_nobody_knows_and_only_one_at_a_time_waits_for_it(server: RedisServer) -> None:
    """Requests are not held up by a server that does not answer; once it does, limits hold again."""
    limits = replace(SLOW, budget_s=1.5)
    async with router(server.url, "r1", limits, timeout_s=LONG_S) as made:
        assert await allowed(made, limits, "0", 100)
        server.freeze()
        assert await made.charge(wish(limits, "1", 100)) is None
        trying = asyncio.create_task(made.charge(wish(limits, "2", 100)))
        await asyncio.sleep(0)
        assert [await made.charge(wish(limits, f"o{number}", 100)) for number in range(100)] == [None] * 100
        assert not trying.done()  # none of the hundred waited
        assert await trying is None
        assert made.counts.lost == 102
        server.thaw()

        async def back() -> bool:
            return await made.charge(wish(limits, "look", 10_000_000)) is not None

        await until(back)
        server.stop()
        assert await made.charge(wish(limits, "3", 100)) is None
        made.release("0")
        await until(lambda: _unsettled(made))
        server.start()
        await until(back)


async def test_what_a_broken_connection_made_the_client_send_twice_is_settled_once(server: RedisServer) -> None:
    """Redis had settled it, and only the reply was lost."""
    async with CutWire(server.port) as wire, router(wire.url, "r1", SLOW, heartbeat_s=1000.0, timeout_s=5.0) as made:
        verdict = await ask(made, SLOW, "0", 900)
        made.handed_over("0")
        await asyncio.sleep(0.3)  # the first statement of places is out
        wire.armed = Script("settle.lua").sha1
        receipt = Receipt(900, verdict.at_us, "acme", "m")
        made.settle(Settlement(receipt, -100))
        await until(lambda: _returned(made, 100))
        assert wire.cut == 2
        assert await tokens_left(made) == 200


async def _returned(made: RateLimits, tokens: int) -> bool:
    return made.counts.returned_tokens + 100 * made.counts.unsettled == tokens


async def test_what_a_router_has_not_settled_when_it_ends_it_settles_then(server: RedisServer) -> None:
    """More than one batch; without Redis it ends all the same."""
    async with router(server.url, "r1", SLOW) as other:
        verdict = await ask(other, SLOW, "0", 900)
        async with Link(server.url) as link:
            ends = RateLimits(link, BASE, "r2", SLOW)
            for _ in range(700):
                ends.settle(Settlement(Receipt(900, verdict.at_us, "acme", "m"), -1))
            await ends.farewell()
        assert await tokens_left(other) == 800
    server.stop()
    async with Link(replace(parse(server.url), timeout_s=0.5)) as link:
        ends = RateLimits(link, BASE, "r3", SLOW)
        ends.settle(Settlement(Receipt(900, verdict.at_us, "acme", "m"), -1))
        await ends.farewell()
        assert ends.counts.unsettled == 1


async def test_calls_from_before_a_loss_let_no_second_one_try(server: RedisServer) -> None:
    """They end one after the other, and none of them says that nobody tries any more."""
    limits = replace(SLOW, budget_s=3.0)
    async with router(server.url, "r1", limits, timeout_s=LONG_S) as made:
        assert await allowed(made, limits, "0")
        server.freeze()
        first = asyncio.create_task(made.charge(wish(limits, "first")))
        await asyncio.sleep(1.5)
        others = [asyncio.create_task(made.charge(wish(limits, f"o{number}"))) for number in range(5)]
        assert await first is None
        trying = asyncio.create_task(made.charge(wish(limits, "trying")))
        assert await asyncio.gather(*others) == [None] * 5
        tries = not trying.done()
        late = asyncio.create_task(made.charge(wish(limits, "late")))
        await asyncio.sleep(0)
        waits = not late.done()
        assert [await trying, await late] == [None, None]
        server.thaw()
        assert (tries, waits) == (True, False)


async def _unsettled(made: RateLimits) -> bool:
    return made.counts.unsettled == 1


async def test_the_least_rights_suffice(kind: str, tmp_path: Path) -> None:
    """Those of the user `router` in redis/users.acl, for charges, places and settlements."""
    limits = Limits(rules=(*SLOW.rules, *PLACES.rules), budget_s=LONG_S)
    acl = Path(__file__).parents[2] / "redis" / "users.acl"
    with GuardedServer(kind, tmp_path, "--aclfile", str(acl)) as server:
        async with router(login(server, "router"), "r1", limits) as made:
            assert await allowed(made, limits, "0", 400)
            assert await allowed(made, limits, "1", 400)
            assert not await allowed(made, limits, "2", 10)
            made.release("0")
            await until(lambda: allowed(made, limits, "3", 500))
            assert made.counts.unsettled == 0


async def test_a_cluster_has_all_of_a_fleets_limits_in_one_slot(kind: str, tmp_path: Path) -> None:
    """Whatever tenants and models are called."""
    limits = Limits(rules=(*SLOW.rules, *PLACES.rules), budget_s=LONG_S)
    with cluster_of_three(kind, tmp_path) as nodes:
        where = parse(f"redis+cluster://127.0.0.1:{nodes[0].port}")
        async with router(where, "r1", limits) as made:
            for tenant in ("{a}", "a:b", "é" * 200, ""):
                for number in range(3):
                    charge = wish(limits, f"{tenant}{number}", 400, tenant, "{m}:" + "x" * 100)
                    verdict = await made.charge(charge)
                    assert verdict is not None
                    assert verdict.allowed == (number < 2)
                made.release(f"{tenant}0")
            await until(lambda: allowed(made, limits, "next", 1, "{a}"))
            assert made.counts.unsettled == 0
