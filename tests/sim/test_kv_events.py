"""KV events of the simulated engine: folded they are its cache, and routers predict its `cached_tokens` from them."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from extproc.adapters.kv_events import KvEventsSettings, follow
from extproc.adapters.kv_frames import read_frame, write_batch
from extproc.core.prefixes.kv_delta import KvDelta, decode, encode
from extproc.core.prefixes.kv_fold import KvFold
from extproc.core.prefixes.kv_sequence import KvSequence
from extproc.core.prefixes.prefix_chain import prefix_salt, token_chain
from extproc.core.speeds.profile import profile_for
from extproc.errors import ConfigError
from extproc.sim.engine import tokenizer
from extproc.sim.engine.config import EngineConfig, KvEventsConfig
from extproc.sim.engine.kv_events import KvEventLog, TokenChain
from extproc.sim.physics.blocks import BlockPool, CacheListener, hash_chain
from extproc.sim.physics.request import EngineRequest, Phase
from extproc.sim.physics.scheduler import Scheduler
from tests.core.kv_parts import Router
from tests.sim.engines import MODEL, Engine, listening, process, running, until

BLOCK = 16


class Prompts:
    """Prompts that share prefixes as conversations do: each begins with an earlier one, whole or in part."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.past: list[list[int]] = [[]]

    def next(self, longest_tokens: int = 400) -> list[int]:
        before = self.draw.choice(self.past[-20:])
        kept = before[: self.draw.choice([len(before), self.draw.randrange(len(before) + 1)])]
        prompt = kept + [self.draw.randrange(5) for _ in range(self.draw.randrange(1, 150))]
        if len(prompt) > longest_tokens:
            prompt = prompt[-self.draw.randrange(1, 100) :]
        self.past.append(prompt)
        return prompt


class Harness:
    """A scheduler whose events go through bytes into a fold, and through written deltas into a router."""

    def __init__(self, kv_blocks: int, *, arrays: bool = False) -> None:
        self.log = KvEventLog(BLOCK)
        self.pool = BlockPool(kv_blocks, BLOCK)
        self.pool.log = self.log
        self.scheduler = Scheduler(
            self.pool, profile_for(MODEL, "h100_sxm", 1), max_num_seqs=8, max_num_batched_tokens=256
        )
        self.arrays = arrays
        self.fold = KvFold(MODEL)
        self.sequence = KvSequence(self.fold, 0, can_replay=False)
        self.router = Router()
        self.seq = 0
        self.ours: dict[int, int] = {}  # engine's hash -> the router's, of every block that a request had

    def request(self, number: int, prompt: list[int], output: list[int], cache_salt: str = "") -> EngineRequest:
        """Queue a request; prompt and answer are cached."""
        tokens = tokenizer.from_ids(prompt + output)
        hashes = hash_chain(tokens, BLOCK, cache_salt.encode())
        salt = prefix_salt(MODEL, cache_salt=cache_salt)
        self.ours.update(zip(hashes, token_chain(prompt + output, salt, BLOCK), strict=True))
        chain = TokenChain(hashes, tokens, cache_salt.encode())
        request = EngineRequest(str(number), len(prompt), len(output), chain)
        self.scheduler.add(request)
        return request

    def step(self) -> bool:
        """One iteration of the engine, and its events told."""
        busy = self.scheduler.plan() is not None
        if busy:
            self.scheduler.apply()
        self.tell()
        return busy

    def tell(self) -> None:
        payload = write_batch(float(self.seq), self.log.take(), 0, arrays=self.arrays)
        self.sequence.live(read_frame([b"", self.seq.to_bytes(8, "big"), payload]))
        self.seq += 1
        while (delta := self.fold.take()) is not None:
            self.router.apply(decode(encode(delta)))

    def held(self) -> set[int]:
        """What the engine has in its cache, in the router's names."""
        return {ours for block, ours in self.ours.items() if self.pool.holds(block)}

    def predicted_tokens(self, prompt: list[int], cache_salt: str = "") -> int:
        """What a router expects the engine to find, never the whole prompt."""
        chain = token_chain(prompt, prefix_salt(MODEL, cache_salt=cache_salt), BLOCK)[: (len(prompt) - 1) // BLOCK]
        blocks = next((i for i, block in enumerate(chain) if block not in self.router.tiers), len(chain))
        return BLOCK * blocks


@pytest.mark.parametrize("arrays", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_folding_its_events_gives_exactly_the_blocks_it_holds(seed: int, arrays: bool) -> None:
    """After 300 mixed requests, side by side, with evictions, preemptions, aborts and a cache reset."""
    harness, prompts = Harness(kv_blocks=60, arrays=arrays), Prompts(seed)
    draw, open_requests, resets = prompts.draw, [], 0
    for number in range(300):
        output = [draw.randrange(5) for _ in range(draw.randrange(1, 60))]
        open_requests.append(harness.request(number, prompts.next(), output, draw.choice(["", "", "secret"])))
        for _ in range(draw.randrange(12)):
            harness.step()
        if draw.random() < 0.1:
            harness.scheduler.abort(draw.choice(open_requests))
        if number in (150, 220):
            while harness.step():
                pass
            resets += harness.pool.reset_cache()
            harness.tell()
            assert harness.router.tiers == {}
        harness.tell()
        assert set(harness.router.tiers) == harness.held()
    while harness.step():
        assert set(harness.router.tiers) == harness.held()
    assert harness.pool.evicted_blocks > 300
    assert harness.scheduler.preemptions > 0
    assert resets == 2
    assert harness.fold.unplaced_blocks == 0
    assert harness.router.tiers


def test_a_routers_chain_predicts_the_cached_tokens_of_every_request() -> None:
    """Precision and recall are 1: what is predicted at admission is what the engine then reports."""
    harness, prompts = Harness(kv_blocks=60), Prompts(7)
    hits = misses = 0
    for number in range(300):
        prompt, salt = prompts.next(), prompts.draw.choice(["", "", "secret"])
        expected = harness.predicted_tokens(prompt, salt)
        request = harness.request(number, prompt, [prompts.draw.randrange(5) for _ in range(20)], salt)
        while request.phase is not Phase.FINISHED:
            harness.step()
        assert request.cached_tokens == expected
        hits, misses = hits + (expected > 0), misses + (expected == 0)
    assert min(hits, misses) > 30
    assert harness.pool.evicted_blocks > 300


def test_blocks_stored_together_are_one_event_as_in_vllm() -> None:
    """With the parent of the first, the tokens of all, and the salt at the first block only."""
    log = KvEventLog(2)
    chain = TokenChain([11, 12, 13], tokenizer.from_ids([1, 2, 3, 4, 5, 6]), b"s")
    for index in range(3):
        log.stored(chain, index)
    log.removed(12)
    log.stored(chain, 1)
    first, gone, again = log.take()
    assert (first["block_hashes"], first["parent_block_hash"]) == ([11, 12, 13], None)
    assert (first["token_ids"], first["extra_keys"]) == ([1, 2, 3, 4, 5, 6], [["s"], None, None])
    assert gone["block_hashes"] == [12]
    assert (again["block_hashes"], again["parent_block_hash"], again["token_ids"]) == ([12], 11, [3, 4])
    assert log.take() == []
    with pytest.raises(TypeError, match="TokenChain"):
        log.stored([1], 0)


@asynccontextmanager
async def followed(place: Path, router: Router, **settings: Any) -> AsyncIterator[Engine]:
    """An engine with an HTTP server, and a listener to its events."""
    kv_events = KvEventsConfig(endpoint=f"ipc://{place}/pub", replay_endpoint=f"ipc://{place}/replay")
    assert kv_events.replay_endpoint is not None

    async def apply(delta: KvDelta) -> None:
        router.apply(delta)

    listen = KvEventsSettings(endpoint=kv_events.endpoint, replay_endpoint=kv_events.replay_endpoint, batch_s=0.0)
    async with running(kv_events=kv_events, **settings) as engine:
        task = asyncio.create_task(follow(listen, KvFold(MODEL), apply))
        try:
            yield engine
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


class Witness(KvEventLog):
    """Stands before an engine's log and keeps the routers' names of the blocks that the engine holds."""

    def __init__(self, log: CacheListener) -> None:
        super().__init__(BLOCK)
        self.log = log
        self.names: dict[int, int] = {}

    def stored(self, chain: Sequence[int], index: int) -> None:
        assert isinstance(chain, TokenChain)
        self.names[chain[index]] = token_chain(tokenizer.to_ids(chain.tokens), prefix_salt(MODEL), BLOCK)[index]
        self.log.stored(chain, index)

    def removed(self, block: int) -> None:
        del self.names[block]
        self.log.removed(block)

    def cleared(self) -> None:
        self.names.clear()
        self.log.cleared()


async def test_over_its_sockets_a_router_predicts_what_the_usage_reports(tmp_path: Path) -> None:
    """60 chats of growing conversations through HTTP and ZeroMQ, with evictions and a reset between."""
    router, draw = Router(), random.Random(3)
    words = "prefix cache block token engine router chain hash".split()
    talks: list[list[dict[str, str]]] = [[] for _ in range(4)]
    async with followed(tmp_path, router, kv_blocks=120, speed=500.0) as engine:
        pool = engine.server.scheduler.pool
        assert pool.log is not None
        pool.log = witness = Witness(pool.log)
        hits = 0
        for number in range(60):
            talk = draw.choice(talks)
            talk.append({"role": "user", "content": " ".join(draw.choices(words, k=40))})
            if len(talk) > 9:
                del talk[1:]
            if number == 40:
                await engine.http.post(f"{engine.url}/reset_prefix_cache")
            await until(lambda: set(router.tiers) == set(witness.names.values()))  # the listener has heard of all
            _, told = await engine.post("/tokenize", {"model": MODEL, "messages": talk})
            chain = token_chain(told["tokens"], prefix_salt(MODEL), BLOCK)[: (told["count"] - 1) // BLOCK]
            predicted = next((i for i, block in enumerate(chain) if block not in router.tiers), len(chain))
            answer = await engine.openai.chat.completions.create(model=MODEL, messages=talk, max_tokens=30)  # type: ignore[arg-type]
            assert answer.usage is not None
            details = answer.usage.prompt_tokens_details
            assert details is not None
            assert details.cached_tokens == BLOCK * predicted
            hits += predicted > 0
            talk.append({"role": "assistant", "content": answer.choices[0].message.content or ""})
        assert hits > 20
        assert pool.evicted_blocks > 100


async def test_the_command_publishes_where_the_flag_says(tmp_path: Path) -> None:
    """A process of its own, with the older form of events."""
    listen = KvEventsSettings(endpoint=f"ipc://{tmp_path}/pub", replay_endpoint=f"ipc://{tmp_path}/replay")
    config = json.dumps({"endpoint": listen.endpoint, "replay_endpoint": listen.replay_endpoint})
    told: list[KvDelta] = []

    async def note(delta: KvDelta) -> None:
        told.append(delta)

    flags = ("--speed", "500", "--model", MODEL, "--kv-events-config", config, "--kv-events-arrays")
    async with process(*flags) as child, aiohttp.ClientSession() as http:
        _, url = await listening(child)
        task = asyncio.create_task(follow(listen, KvFold(MODEL), note))
        prompt = list(range(100))
        await http.post(f"{url}/v1/completions", json={"model": MODEL, "prompt": prompt, "max_tokens": 1})
        await until(lambda: any(delta.gpu for delta in told))
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert told[-1].gpu == token_chain(prompt, prefix_salt(MODEL), BLOCK)


async def test_a_mistake_in_the_flag_is_one_line_and_status_2() -> None:
    """It names the flag and the key."""
    async with process("--kv-events-config", '{"endpoint": "ipc://x", "nonsense": 1}') as child:
        _, error = await child.communicate()
        assert child.returncode == 2
        assert error.decode().startswith("extproc engine: --kv-events-config: ")
        assert len(error.decode().splitlines()) == 1


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", None),
        ('{"enable_kv_cache_events": false}', None),
        ('{"publisher": "null"}', None),
        ('{"endpoint": "tcp://*:1", "topic": "kv"}', KvEventsConfig(endpoint="tcp://*:1", topic="kv", arrays=True)),
    ],
)
def test_the_flag_is_read_as_vllm_reads_it(text: str, expected: KvEventsConfig | None) -> None:
    """Off unless asked for, with vLLM's defaults."""
    assert KvEventsConfig.parse(text, arrays=True) == expected


@pytest.mark.parametrize("text", ["{", "[]", '{"endpoint": 1}', '{"hwm": "x"}', '{"topic": "\udcff"}'])
def test_a_flag_that_makes_no_sense_is_a_readable_error(text: str) -> None:
    """It names the flag."""
    with pytest.raises(ConfigError, match="--kv-events-config"):
        KvEventsConfig.parse(text)


def test_an_engine_without_the_flag_has_no_log() -> None:
    """Simulations of whole fleets do not pay for events."""
    assert EngineConfig(models=(MODEL,)).kv_events is None
    assert BlockPool(1, 1).log is None
