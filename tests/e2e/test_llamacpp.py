"""A real engine: two llama.cpp servers with a random model, found, routed to, and their prefix cache used."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import pytest
import xllamacpp

from extproc.adapters.engines.llamacpp import PATHS, read
from extproc.core.values.instance import Load
from extproc.demo.ports import free_port
from extproc.demo.stack import Backend
from tests.e2e.conftest import Fleet, StartFleet
from tests.e2e.eventually import eventually
from tests.e2e.tiny_gguf import write_tiny_gguf

MODEL = "tiny"


def _server(model: Path, batch_tokens: int = 2048) -> xllamacpp.Server:
    parameters = xllamacpp.CommonParams()
    parameters.model.path = str(model)
    parameters.model_alias = {MODEL}
    parameters.n_ctx = 8192
    parameters.n_parallel = 2
    parameters.n_batch = batch_tokens
    parameters.cpuparams.n_threads = 1  # more would spin while they wait for each other on a busy machine
    parameters.hostnames = ["127.0.0.1"]
    parameters.port = free_port()
    parameters.endpoint_metrics = True
    return xllamacpp.Server(parameters)


@pytest.fixture
def backends(tmp_path: Path) -> Iterator[tuple[Backend, ...]]:
    model = tmp_path / "tiny.gguf"
    write_tiny_gguf(model)
    servers = [_server(model) for _ in range(2)]
    yield tuple(
        Backend(f"llama-{number}", int(server.listening_address.rpartition(":")[2]), "llamacpp")
        for number, server in enumerate(servers)
    )
    servers.clear()  # a server ends with its last reference


async def told_that_all_is_over(fleet: Fleet) -> None:
    """Wait until the service knows that nothing runs any more.

    A report from while a request ran counts a stranger at its instance once it has ended; of so small a model the
    prefix that is there is worth less than a place beside that one. The second report from now on was begun after the
    first had come.
    """
    ages_s: dict[str, float] = {}
    reports: Counter[str] = Counter()

    async def is_over() -> bool:
        rows = await fleet.stack.fleet(fleet.http)
        for row in rows:
            reports[row["id"]] += row["age_s"] < ages_s.get(row["id"], 0.0)
            ages_s[row["id"]] = row["age_s"]
        busy = any(row["running"] or row["waiting"] or row["foreign"] or row["in_flight"] for row in rows)
        return min(reports.values(), default=0) >= 2 and not busy

    await eventually(is_over, bool, 60.0)


@pytest.mark.long
async def test_a_repeated_prefix_lands_where_llama_cpp_has_it_cached(
    start_fleet: StartFleet, backends: tuple[Backend, ...]
) -> None:
    """Once the first request is over; the prompt is long, so that the little that it costs is worth something."""
    names = {backend.id for backend in backends}
    async with start_fleet(backends, model=MODEL) as fleet:
        for session in range(4):
            prompt = f"{session} " + "the end of the other one " * 160  # another beginning for each session
            before = len(await fleet.chosen())
            first = await fleet.ask(prompt, model=MODEL)
            assert first.usage.completion_tokens > 0
            await told_that_all_is_over(fleet)
            again = await fleet.ask(prompt + " and so on", model=MODEL)
            chosen = (await fleet.chosen())[before:]
            assert len(set(chosen)) == 1
            assert set(chosen) <= names
            assert again.usage.prompt_tokens_details.cached_tokens > 1500


async def test_a_slot_that_computes_its_prompt_is_told_from_one_that_answers(tmp_path: Path) -> None:
    """While a long prompt is computed in small batches, the server counts it as running, and its slots say the rest."""
    model = tmp_path / "tiny.gguf"
    write_tiny_gguf(model)
    server = _server(model, batch_tokens=16)
    seen: list[Load] = []

    async def watch(session: aiohttp.ClientSession, url: str) -> None:
        while True:
            pages = {}
            for name in ("metrics", "slots"):
                async with session.get(url + PATHS[name]) as answer:
                    pages[name] = await answer.read()
            seen.append(read(pages).load)

    async with aiohttp.ClientSession() as session:
        watching = asyncio.create_task(watch(session, server.listening_address))
        body = {
            "model": MODEL,
            "prompt": "of another one " * 250,
            "max_tokens": 400,
            "ignore_eos": True,
        }
        before: int | None = None
        async with session.post(server.listening_address + "/v1/completions", json=body | {"stream": True}) as answer:
            async for line in answer.content:
                if before is None and line.startswith(b"data: "):
                    before = len(seen)
        watching.cancel()
    assert before
    assert {load.prefilling for load in seen[:before] if load.running} >= {1}
    assert {load.prefilling for load in seen[before + 1 :]} == {0}
    del server  # it ends with its last reference
