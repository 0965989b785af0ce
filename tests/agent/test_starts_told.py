"""What an agent tells of a start for those who wait for the model: which model comes, and what the start took."""

from __future__ import annotations

import asyncio

import pytest

from extproc.adapters.engines.reading import Reading
from extproc.agent.backend import Backend
from extproc.agent.facts import Moment, record
from extproc.agent.lifecycle import Standing
from extproc.core.values.instance import Lifecycle
from tests.agent.harness import running_agent
from tests.redis_server import RedisServer
from tests.sim import engines


@pytest.mark.parametrize(
    ("listed", "known", "expected"),
    [((), "m", ("m",)), (("m", "n"), "m", ()), ((), "", ())],
)
def test_while_no_model_is_listed_the_one_that_comes_is_told(
    listed: tuple[str, ...], known: str, expected: tuple[str, ...]
) -> None:
    """As the operator or an earlier look has it; what is served already is no model to come."""
    moment = Moment(engine="vllm", address="127.0.0.1:1", age_s=0.0, model=known, start_s=7.5)
    made = record(Backend(url="http://x:1"), Reading(models=listed), Standing(Lifecycle.LOADING, "", "1"), moment)
    assert (made.models, made.loadable, made.start_s) == (listed, expected, 7.5)


async def test_an_instance_that_is_ready_tells_what_its_start_took(server: RedisServer) -> None:
    """While it loads it tells what it will serve, and no duration yet."""
    async with engines.running(load_delay_s=1.0) as engine:
        described = Backend(url=engine.url, id="gpu-0", model="named")
        async with running_agent(server, described) as (seen, _):
            loading = await seen.is_lifecycle(Lifecycle.LOADING)
            assert (loading.models, loading.loadable, loading.start_s) == ((), ("named",), None)
            async with asyncio.timeout(30):
                ready = await seen.is_lifecycle(Lifecycle.READY)
    assert ready.loadable == ()
    assert ready.start_s is not None
    assert ready.start_s > 0.0  # since the engine's process began, by its own word: here that of the tests
