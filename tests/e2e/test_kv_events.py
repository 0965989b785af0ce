"""What engines tell that they hold reaches the router, and is better than what it can guess."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import orjson
import pytest
import pytest_asyncio

from extproc.adapters.http_client import Answer
from extproc.demo.ports import HOST
from extproc.demo.processes import wait_for_line
from extproc.demo.stack import MODEL, EngineSpec
from tests.e2e.conftest import Fleet, running_fleet
from tests.e2e.eventually import eventually

TWINS = (EngineSpec("a", "h100_sxm", kv_events=True), EngineSpec("b", "h100_sxm", kv_events=True))


pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def twins(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Fleet]:
    """Two engines that tell what they hold."""
    async with running_fleet(tmp_path_factory.mktemp("twins"), TWINS) as fleet:
        yield fleet


def prompt_ids(number: int) -> list[int]:
    """A thousand tokens, others for every number."""
    return list(range(number * 10_000, number * 10_000 + 1000))


async def ask_engine(fleet: Fleet, instance_id: str, ids: list[int]) -> None:
    """Have an engine compute a prompt without the router knowing of it."""
    port = next(backend.port for backend in fleet.stack.backends if backend.id == instance_id)
    body = orjson.dumps({"model": MODEL, "prompt": ids, "max_tokens": 1})
    answer = await fleet.http.post_json(f"http://{HOST}:{port}/v1/completions", body)
    assert isinstance(answer, Answer)
    assert answer.status == 200


async def told(fleet: Fleet) -> dict[str, int]:
    rows: list[dict[str, Any]] = await fleet.stack.fleet(fleet.http)
    return {row["id"]: row["kv_blocks_told"] for row in rows}


async def test_a_prompt_goes_where_its_blocks_are_although_nobody_sent_it_there_before(twins: Fleet) -> None:
    for number, instance_id in enumerate("abab"):
        await ask_engine(twins, instance_id, prompt_ids(number))
    blocks = 1000 // 16
    await eventually(lambda: told(twins), lambda held: min(held.values()) >= 2 * blocks)
    for number, instance_id in enumerate("abab"):
        answer = await twins.openai.completions.create(model=MODEL, prompt=prompt_ids(number), max_tokens=1)
        decision = (await twins.stack.decisions(twins.http))[-1]
        assert decision["instance"] == instance_id
        assert answer.usage is not None
        assert answer.usage.prompt_tokens_details is not None
        assert decision["cached_tokens"] == answer.usage.prompt_tokens_details.cached_tokens == 16 * blocks
    await twins.stack.reset_caches(twins.http)
    await eventually(lambda: told(twins), lambda held: max(held.values()) == 0)


async def test_a_router_that_starts_knows_what_engines_hold_before_it_answers(twins: Fleet) -> None:
    for number in range(8):
        await ask_engine(twins, "b", prompt_ids(number))
    await eventually(lambda: told(twins), lambda held: held["b"] >= 8 * (1000 // 16))
    held = await told(twins)
    second = await twins.processes.start_extproc(
        "second", "serve", "--listen", f"{HOST}:0", "--metrics-listen", f"{HOST}:0", "--redis-url", twins.redis.url
    )
    found = await wait_for_line(second, r"ext_proc on port \d+, pages on port (\d+)", 30.0)
    answer = await twins.http.get(f"http://{HOST}:{found[1]}/fleet")
    assert isinstance(answer, Answer)
    assert {row["id"]: row["kv_blocks_told"] for row in orjson.loads(answer.body)} == held
