"""An engine that serves and tells no load, since it is read as another or was started without its metrics."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from extproc.adapters.engines.known import ENGINES
from extproc.adapters.http_client import Answer, Failure, FailureKind
from extproc.agent.backend import Backend
from extproc.agent.untold import why_untold
from extproc.core.values.instance import Lifecycle, Load
from tests.agent.backends import ScriptedBackend
from tests.agent.harness import LONG_S, running_agent
from tests.redis_server import RedisServer

FIXTURES = Path(__file__).parents[1] / "fixtures"
PAGES = {
    "vllm": FIXTURES / "vllm-0.32-metrics-busy.txt",
    "llamacpp": FIXTURES / "llamacpp-metrics.txt",
    "sglang": FIXTURES / "engines/sglang-metrics.txt",
    "tgi": FIXTURES / "engines/tgi-metrics.txt",
    "tensorrt-llm": FIXTURES / "engines/trtllm-metrics.txt",
    "triton": FIXTURES / "engines/triton-metrics.txt",
    "dynamo": FIXTURES / "engines/dynamo-metrics.txt",
}


@pytest.mark.parametrize("name", PAGES)
def test_the_page_of_another_engine_is_known_by_its_metrics(name: str) -> None:
    """Each page, read as each other engine; as its own it may yet tell, as before the first request."""
    page = Answer(200, PAGES[name].read_bytes())
    for engine in ENGINES.values():
        why = why_untold(engine, page, Load())
        own = {"sglang-old": "sglang", "tensorrt-llm-iterations": "tensorrt-llm"}.get(engine.name, engine.name)
        path = engine.paths["metrics"]
        assert why == (
            "" if own == name else f"{path} has the metrics of {name}, and is read as {engine.name}'s (--engine)"
        )


def test_a_page_that_is_not_there_is_told_and_one_that_may_come_is_not() -> None:
    """A look that failed says nothing of the engine; nor is anything to be said where load is told."""
    engine = ENGINES["llamacpp"]
    told = "/metrics answers HTTP 501: what llamacpp needs is told in docs/engines.md"
    assert why_untold(engine, Answer(501, b""), Load()) == told
    assert why_untold(engine, Answer(501, b""), Load(running=1)) == ""
    assert why_untold(engine, Answer(200, b""), Load()) == ""
    assert why_untold(engine, Failure(FailureKind.TIMED_OUT, "slow"), Load()) == ""


async def test_it_is_logged_once_when_it_lasts(
    server: RedisServer, backend: ScriptedBackend, caplog: pytest.LogCaptureFixture
) -> None:
    """A vLLM that is read as TGI is Ready, and nobody would see why it is preferred."""
    async with backend, running_agent(server, Backend(url=backend.url, id="a", engine="tgi")) as (seen, _):
        await seen.is_lifecycle(Lifecycle.READY)
        before = backend.probes
        async with asyncio.timeout(LONG_S):
            while backend.probes < before + 8:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
    complaints = [record.getMessage() for record in caplog.records if "load is not known" in record.message]
    assert complaints == [
        "a: its load is not known; routers see only what they send there: "
        "/metrics has the metrics of vllm, and is read as tgi's (--engine)"
    ]
