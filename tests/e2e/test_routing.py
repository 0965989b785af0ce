"""Requests through a real Envoy: unchanged clients, live state, sessions that stay with their prefix."""

from __future__ import annotations

import asyncio
import re
from collections import Counter

import openai
import orjson
import pytest

from extproc.adapters.http_client import Answer
from extproc.core.values.instance import Lifecycle
from extproc.demo.stack import MODEL, EngineSpec
from tests.e2e.conftest import EQUALS, TWO_KINDS, Fleet, StartFleet
from tests.e2e.eventually import eventually

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


async def test_an_overloaded_holder_of_a_prefix_is_left_for_an_idle_instance(start_fleet: StartFleet) -> None:
    async with start_fleet(EQUALS) as fleet:
        prompt = f"shared: {LONG}"
        await fleet.ask(prompt)
        await asyncio.gather(*(fleet.ask(prompt + f" {number}", max_tokens=200) for number in range(60)))
        share = Counter((await fleet.chosen())[-60:])
        assert min(share["a"], share["b"]) >= 10


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
    specs = (EngineSpec("here", "l40s"), EngineSpec("coming", "h100_sxm", load_delay_s=8.0))
    async with start_fleet(specs) as fleet:
        assert (await fleet.row("coming"))["lifecycle"] == "Loading"
        while (await fleet.row("coming"))["lifecycle"] == "Loading":
            await fleet.ask("while it loads")
        chosen = await fleet.chosen()
        assert set(chosen[:-1]) == {"here"}  # the last may have been sent as it became ready
        await fleet.ask("now it is ready")
        assert (await fleet.chosen())[-1] == "coming"


async def test_cancelled_streams_leave_nothing_in_flight(start_fleet: StartFleet) -> None:
    async with start_fleet(EQUALS) as fleet:

        async def begin_and_leave(number: int) -> None:
            if number % 2:  # before the answer begins
                with pytest.raises(asyncio.TimeoutError):
                    await asyncio.wait_for(fleet.ask(LONG * 3 + str(number), max_tokens=500), 0.05)
                return
            stream = await fleet.ask("x", max_tokens=2000, stream=True)
            async for _ in stream:
                break
            await stream.close()

        for start in range(0, 100, 20):
            await asyncio.gather(*(begin_and_leave(number) for number in range(start, start + 20)))

        async def in_flight() -> list[tuple[int, int | None]]:
            return [(row["in_flight"], row["running"]) for row in await fleet.stack.fleet(fleet.http)]

        assert await eventually(in_flight, lambda counts: counts == [(0, 0), (0, 0)])


async def refused(fleet: Fleet, body: bytes, status: int, code: str) -> None:
    answer = await fleet.http.post_json(f"{fleet.stack.routed_url}/v1/chat/completions", body)
    assert isinstance(answer, Answer)
    assert (answer.status, orjson.loads(answer.body)["error"]["code"]) == (status, code)


async def test_refusals_are_openai_shaped_and_bodies_of_any_size_arrive_whole(start_fleet: StartFleet) -> None:
    async with start_fleet(EQUALS) as fleet:
        await refused(fleet, b"null", 400, "invalid_request_body")
        await refused(fleet, b'{"model": "x"', 400, "invalid_request_body")
        await refused(fleet, b"", 400, "invalid_request_body")
        unknown = b'{"model": "nobody", "messages": [{"role": "user", "content": "x"}]}'
        await refused(fleet, unknown, 404, "model_not_found")
        with pytest.raises(openai.NotFoundError):
            await fleet.ask(model="nobody")
        for size in (31_000, 33_000, 128_000):
            answer = await fleet.ask("x" * size)
            assert answer.usage.prompt_tokens > size / 5
        await _large_bodies(fleet)


async def _large_bodies(fleet: Fleet) -> None:
    """Beyond the model's context but within every limit of framing: the answer is a 4xx that says so, never a 5xx."""
    for size in (1_000_000, 3_900_000, 4_200_000, 20_000_000):
        with pytest.raises(openai.BadRequestError) as caught:
            await fleet.ask("x" * size)
        assert "context" in str(caught.value)
