"""Through a real Envoy: what a router counts of its requests stands in Redis, also after it was killed."""

from __future__ import annotations

import signal
from pathlib import Path

import openai
import pytest

from extproc.adapters.traffic_counts import Traffic, TrafficCounts
from extproc.core.scaling.sight import Counts
from extproc.demo.stack import MODEL, EngineSpec
from tests.e2e.conftest import StartFleet
from tests.e2e.eventually import eventually


async def test_what_a_router_has_counted_outlives_it(start_fleet: StartFleet, tmp_path: Path) -> None:
    """Requests as they come, answers as they end, refusals for want of an instance; not those that are malformed."""
    async with start_fleet((EngineSpec("a", "h100_sxm"),)) as fleet:
        counts = TrafficCounts(fleet.registry.link, fleet.registry.base)

        async def read() -> Traffic:
            return await counts.read()

        def of_model(told: Traffic) -> Counts:
            return told.counts.get(MODEL, Counts())

        # The stack has asked something by itself, to see whether it runs.
        before = of_model(await eventually(read, lambda told: 0 < of_model(told).requests == of_model(told).answers))
        for _ in range(3):
            await fleet.ask()
        async for _ in await fleet.ask(stream=True, stream_options={"include_usage": True}):
            pass
        with pytest.raises(openai.NotFoundError):
            await fleet.ask(model="nobody-serves-this")
        with pytest.raises(openai.BadRequestError):
            await fleet.ask(max_tokens="many")
        seen = await eventually(read, lambda told: of_model(told).answers == before.answers + 4)
        known = of_model(seen)
        assert (known.requests, known.shed) == (before.requests + 4, 0)
        assert known.output_tokens == before.output_tokens + 16
        assert (known.judged, known.paced) == (before.judged + 4, before.paced + 4)
        assert (known.late, known.slow) == (0, 0)
        assert known.prompt_tokens > before.prompt_tokens
        seen = await eventually(read, lambda told: "nobody-serves-this" in told.counts)
        assert set(seen.counts) == {MODEL, "nobody-serves-this"}
        unserved = seen.counts["nobody-serves-this"]
        assert (unserved.requests, unserved.shed) == (1, 1)
        assert (seen.held, seen.routers) == ({}, 1)

        (serve,) = [child for child in fleet.processes._children if child.name == "serve"]
        serve.process.send_signal(signal.SIGKILL)
        await serve.process.wait()
        assert (await read()).counts == seen.counts
