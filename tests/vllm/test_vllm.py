"""A real vLLM against what the router believes of it: exact counts, exact prefix hits, and the agent's reading."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import aiohttp
import pytest

from extproc.adapters.chat_template import ChatTemplate
from extproc.adapters.kv_log import KvLog
from extproc.adapters.registry import Registry
from extproc.adapters.tokenizers import Tokenizers
from extproc.adapters.vocabulary import Vocabulary, load_vocabulary
from extproc.agent.backend import Backend, KvEvents
from extproc.api.conversations import of_chat
from extproc.core.router import Router
from extproc.core.values.instance import Lifecycle, Load
from extproc.core.values.request import KvLayout
from extproc.server.kv_feed import KvFeed
from tests.agent.harness import eventually, running_agent
from tests.core.builders import instance
from tests.redis_server import RedisServer
from tests.vllm.chats import CHATS, TEMPLATES
from tests.vllm.client import Answered, send
from tests.vllm.engine import BLOCK_SIZE_TOKENS, KV_BLOCKS, MODEL, VllmEngine
from tests.vllm.model import MAX_MODEL_LEN_TOKENS
from tests.vllm.predictor import Predictor, Usage
from tests.vllm.traffic import CHAT, COMPLETIONS, Sending, Traffic

log = logging.getLogger(__name__)
pytestmark = pytest.mark.vllm

REQUESTS = 200
RESET_AT = 120  # requests, when the engine's prefix cache is emptied
BURST_EVERY, BURST = 25, 16  # requests with one prompt sent at once between the others, more than there is room for


class Agreement:
    """Blocks and tokens, predicted against reported."""

    def __init__(self) -> None:
        self.differences: list[str] = []
        self.kinds: Counter[str] = Counter()
        self.miscounted = 0
        self.predicted_blocks = self.reported_blocks = self.common_blocks = 0

    def add(self, kind: str, predicted: Usage, reported: Usage) -> None:
        self.kinds[kind] += 1
        ours, theirs = predicted.cached_tokens // BLOCK_SIZE_TOKENS, reported.cached_tokens // BLOCK_SIZE_TOKENS
        self.predicted_blocks += ours
        self.reported_blocks += theirs
        self.common_blocks += min(ours, theirs)
        self.miscounted += predicted.prompt_tokens != reported.prompt_tokens
        if predicted != reported:
            self.differences.append(f"{kind} {sum(self.kinds.values())}: {predicted} but {reported}")

    def __str__(self) -> str:
        return (
            f"{dict(self.kinds)}: blocks predicted {self.predicted_blocks}, reported {self.reported_blocks}, "
            f"both {self.common_blocks}; {len(self.differences)} differences {self.differences}"
        )


class Fence:
    """Waits until all that the engine did so far has been heard.

    The engine publishes events in order, so a prompt of one block that nobody else sends is sent, and once the router
    holds it, the router has heard all events before. It costs the engine a block of its cache, as any request does.
    """

    def __init__(self, session: aiohttp.ClientSession, traffic: Traffic) -> None:
        self._session = session
        self._traffic = traffic

    async def wait(self, *predictors: Predictor) -> None:
        prompt = self._traffic.ids(BLOCK_SIZE_TOKENS)
        await send(self._session, COMPLETIONS, {"model": MODEL, "prompt": prompt, "max_tokens": 1})
        for predictor in predictors:
            await predictor.holds(prompt)


@pytest.fixture(scope="module")
def vocabulary(engine: VllmEngine) -> Vocabulary:
    return load_vocabulary(engine.model_folder)


@pytest.fixture
def counter(engine: VllmEngine) -> Iterator[Tokenizers]:
    made = Tokenizers.load({MODEL: engine.model_folder}, budget_s=60.0)
    yield made
    made.close()


def predicting(counter: Tokenizers) -> Predictor:
    silent, known = (
        instance(name, models=(MODEL,), block_size_tokens=BLOCK_SIZE_TOKENS, kv_blocks=KV_BLOCKS, max_num_seqs=None)
        for name in ("silent", "vllm")
    )
    return Predictor(known, silent, counter)


@pytest.fixture
async def predictor(engine: VllmEngine, counter: Tokenizers) -> AsyncIterator[Predictor]:
    made = predicting(counter)
    async with made.following(engine.kv_events):
        yield made


async def test_the_router_predicts_what_vllm_reports(session: aiohttp.ClientSession, predictor: Predictor) -> None:
    """Of 200 mixed requests, tokens are counted as the engine counts them, and cached blocks are known to 99 %."""
    traffic = Traffic(seed=4)
    fence = Fence(session, traffic)
    seen = Agreement()

    async def check(sending: Sending) -> Answered:
        await fence.wait(predictor)
        predicted = await predictor.predict(sending.path, sending.body)
        answer = await send(session, sending.path, sending.body)
        seen.add(sending.kind, predicted, answer.usage)
        sending.heard(answer)
        return answer

    for number in range(REQUESTS):
        if number == RESET_AT:
            async with session.post("/reset_prefix_cache") as response:
                assert response.status == 200
        if number % BURST_EVERY == BURST_EVERY - 1:
            burst = traffic.same_prompt(BURST)
            await asyncio.gather(*(send(session, each.path, each.body) for each in burst))
        await check(traffic.next())

    log.info("%s; unplaced %d, surplus %d", seen, predictor.fold.unplaced_blocks, predictor.fold.surplus_blocks)
    assert seen.common_blocks >= 0.99 * seen.predicted_blocks, f"precision: {seen}"
    assert seen.common_blocks >= 0.99 * seen.reported_blocks, f"recall: {seen}"
    assert not seen.miscounted, f"prompt tokens: {seen}"
    assert seen.common_blocks > REQUESTS, "the cache was hardly ever hit"


async def test_who_comes_late_learns_it_all_from_the_replay(
    engine: VllmEngine, session: aiohttp.ClientSession, predictor: Predictor, counter: Tokenizers
) -> None:
    """A second listener starts in the middle of the engine's life, and knows the same blocks as the first."""
    traffic = Traffic(seed=5)
    fence = Fence(session, traffic)
    for _ in range(20):
        sending = traffic.next()
        sending.heard(await send(session, sending.path, sending.body))
    await fence.wait(predictor)
    late = predicting(counter)
    async with late.following(engine.kv_events):
        await fence.wait(predictor, late)
        held = set(predictor.fold.whole().gpu)
        assert set(late.fold.whole().gpu) == held
    assert KV_BLOCKS // 2 < len(held) < KV_BLOCKS


async def test_what_the_agent_writes_down_is_what_a_router_knows(
    engine: VllmEngine, session: aiohttp.ClientSession, predictor: Predictor, tmp_path: Path
) -> None:
    """Block for block, over Redis, as one who listens to the engine knows it."""
    told = KvEvents(endpoint=engine.kv_events.endpoint, replay_endpoint=engine.kv_events.replay_endpoint or "")
    with RedisServer("valkey", tmp_path) as server:
        async with running_agent(server, Backend(url=engine.url, kv_events=told)) as (seen, _):
            ready = await seen.is_lifecycle(Lifecycle.READY)
            async with Registry(server.url) as registry:
                router, known = Router(), asyncio.Event()
                router.fleet = seen.fleet
                known.set()
                feed = KvFeed(router, KvLog(registry.link, registry.base), known)
                following = asyncio.create_task(feed.run(asyncio.Event()))
                await Fence(session, Traffic(seed=6)).wait(predictor)
                held = predictor.fold.whole().gpu
                assert held
                everything = {KvLayout(BLOCK_SIZE_TOKENS, str(block)): (block,) for block in held}
                await eventually(lambda: router.kv.size(ready.key) == len(held))
                assert len(router.kv.hits(everything)) == len(held)
                following.cancel()


@pytest.mark.parametrize("source", TEMPLATES)
@pytest.mark.parametrize("name", CHATS)
async def test_templates_make_of_a_chat_what_vllm_makes_of_it(
    session: aiohttp.ClientSession, vocabulary: Vocabulary, source: str, name: str
) -> None:
    """Templates that want text, parts, thoughts, tools or a developer's word get the same prompt, id by id."""
    body = {"model": MODEL, "max_tokens": 1, **CHATS[name]}
    conversation = of_chat(body)
    assert conversation is not None
    templated = replace(vocabulary, template=ChatTemplate(TEMPLATES[source], {"bos_token": "<s>"}))
    with closing(Tokenizers({MODEL: templated}, budget_s=60.0)) as counter:
        exact = await counter.count(MODEL, conversation, want_ids=True)
    assert exact is not None
    told = {"chat_template": TEMPLATES[source], "return_token_ids": True}
    async with session.post(CHAT, json=body | told) as response:
        page = await response.json()
    assert response.status == 200, page
    assert list(exact.token_ids or ()) == page["prompt_token_ids"]


async def test_the_agent_reads_the_live_pages(
    engine: VllmEngine, session: aiohttp.ClientSession, tmp_path: Path
) -> None:
    """Instance, cache and limits are published as the engine was started, and its load while it works."""
    with RedisServer("valkey", tmp_path) as server:
        async with running_agent(server, Backend(url=engine.url)) as (seen, _):
            idle = await seen.is_lifecycle(Lifecycle.READY)
            long = {"model": MODEL, "prompt": "x", "max_tokens": 400, "ignore_eos": True}
            working = asyncio.create_task(send(session, COMPLETIONS, long))
            busy = await seen.until(lambda instance: bool(instance.load.running and instance.load.kv_usage))
            await working
    assert (idle.engine, idle.models) == ("vllm", (MODEL,))
    assert (idle.block_size_tokens, idle.kv_blocks) == (BLOCK_SIZE_TOKENS, KV_BLOCKS)
    assert idle.max_model_len_tokens == MAX_MODEL_LEN_TOKENS
    assert idle.engine_version
    assert idle.load == Load(running=0, waiting=0, kv_usage=0.0)
    assert (busy.load.running, busy.load.waiting) == (1, 0)
    assert busy.work_done is not None
    assert idle.work_done is not None
    assert busy.key == idle.key
