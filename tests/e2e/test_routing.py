"""Requests through a real Envoy: unchanged clients, live state, sessions that stay with their prefix."""

from __future__ import annotations

import asyncio
import re
from urllib.parse import urlsplit

from extproc.core.values.instance import Lifecycle
from extproc.demo.stack import MODEL, Backend, EngineSpec
from tests.e2e.conftest import EQUALS, TWO_KINDS, Fleet, StartFleet
from tests.e2e.eventually import eventually
from tests.sim import engines

LONG = "a prefix that is worth keeping " * 300  # about 2,300 tokens


async def test_an_unchanged_openai_client_is_routed_by_live_state(start_fleet: StartFleet, kind: str) -> None:
    async with start_fleet(TWO_KINDS, kind) as fleet:
        answer = await fleet.ask("hello", max_tokens=5)
        assert answer.usage.completion_tokens == 5
        stream = await fleet.ask("hello", max_tokens=5, stream=True, stream_options={"include_usage": True})
        chunks = [chunk async for chunk in stream]
        assert chunks[-1].usage.completion_tokens == 5
        assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
        completion = await fleet.openai.completions.create(model=MODEL, prompt="hello", max_tokens=3)
        assert completion.usage is not None
        models = [model.id async for model in fleet.openai.models.list()]  # passed on: no decision
        assert models == [MODEL]
        assert (await fleet.chosen())[-3:] == ["fast"] * 3
        await _drained_instance_gets_nothing(fleet)
        await _outcomes_are_measured(fleet)


async def _drained_instance_gets_nothing(fleet: Fleet) -> None:
    """Within a second of the order, every request goes elsewhere; and back after the order is taken back."""
    await fleet.registry.order("fast", Lifecycle.DRAINING)
    await asyncio.sleep(1.0)
    for _ in range(5):
        await fleet.ask("to another")
    assert (await fleet.chosen())[-5:] == ["slow"] * 5
    await fleet.registry.order("fast", None)
    await asyncio.sleep(1.0)
    await fleet.ask("back again")
    assert (await fleet.chosen())[-1] == "fast"


async def _outcomes_are_measured(fleet: Fleet) -> None:
    """The access log brings tokens (JSON and SSE), statuses and TTFT of all requests that were routed."""

    def counted(page: str) -> bool:
        completion = re.search(rf'extproc_tokens_total{{kind="completion",model="{MODEL}"}} (\d+)', page)
        return completion is not None and int(completion[1]) >= 5 + 5 + 3 + 6 * 4

    page = await eventually(fleet.metrics, counted)
    assert 'extproc_outcomes_total{routed="true",status="200"}' in page
    assert 'extproc_outcomes_total{routed="false",status="200"}' in page
    assert re.search(rf'extproc_ttft_seconds_count{{model="{MODEL}"}} [1-9]', page)


async def test_sessions_stay_with_their_prefix_and_spread_over_equal_instances(start_fleet: StartFleet) -> None:
    async with start_fleet(EQUALS) as fleet:
        homes = []
        for session in range(20):  # so many that near-ties drawn at random cannot all fall on one side
            prompt = f"session {session}: {LONG}"
            before = len(await fleet.chosen())
            for turn in range(2):
                answer = await fleet.ask(prompt + "and more " * turn)
            chosen = (await fleet.chosen())[before:]
            assert len(set(chosen)) == 1, f"session {session} went to {chosen}"
            assert answer.usage.prompt_tokens_details.cached_tokens > 2000
            homes.append(chosen[0])
        assert len(set(homes)) == 2


async def test_a_killed_instance_gets_no_new_request_and_nobody_notices(start_fleet: StartFleet) -> None:
    async with start_fleet(EQUALS) as fleet:
        victim = fleet.stack.backends[0].child
        assert victim is not None
        await fleet.processes.stop(victim)
        for _ in range(10):  # at once: Envoy goes on to our second choice
            await fleet.ask("right after the kill")
        await asyncio.sleep(1.0)
        assert (await fleet.row("a"))["lifecycle"] == "Unhealthy"
        before = len(await fleet.chosen())
        for _ in range(10):
            await fleet.ask("a second later")
        assert set((await fleet.chosen())[before:]) == {"b"}


async def test_a_loading_instance_gets_nothing_until_it_is_ready(start_fleet: StartFleet) -> None:
    async with engines.running(
        models=(MODEL,), load_delay_s=3600.0
    ) as engine:  # it loads for as long as the test wants
        coming = Backend("coming", urlsplit(engine.url).port or 0, hardware="h100_sxm", loading=True)
        async with start_fleet((EngineSpec("here", "l40s"), coming)) as fleet:
            assert (await fleet.row("coming"))["lifecycle"] == "Loading"
            for _ in range(5):
                await fleet.ask("while it loads")
            assert set(await fleet.chosen()) == {"here"}
            engine.server.lifecycle = Lifecycle.READY
            await eventually(lambda: fleet.row("coming"), lambda row: row["lifecycle"] == "Ready")
            await fleet.ask("now it is ready")
            assert (await fleet.chosen())[-1] == "coming"
