"""A real engine: two llama.cpp servers with a random model, found, routed to, and their prefix cache used."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import xllamacpp

from extproc.demo.stack import Backend
from tests.e2e.conftest import StartFleet
from tests.e2e.tiny_gguf import write_tiny_gguf
from tests.redis_server import free_port

MODEL = "tiny"


def _server(model: Path) -> xllamacpp.Server:
    parameters = xllamacpp.CommonParams()
    parameters.model.path = str(model)
    parameters.model_alias = {MODEL}
    parameters.n_ctx = 8192
    parameters.n_parallel = 2
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


async def test_a_repeated_prefix_lands_where_llama_cpp_has_it_cached(
    start_fleet: StartFleet, backends: tuple[Backend, ...]
) -> None:
    names = {backend.id for backend in backends}
    async with start_fleet(backends, model=MODEL) as fleet:
        for session in range(4):
            prompt = f"{session} " + "the end of the other one " * 60  # another beginning for each session
            before = len(await fleet.chosen())
            first = await fleet.ask(prompt, model=MODEL)
            assert first.usage.completion_tokens > 0
            again = await fleet.ask(prompt + " and so on", model=MODEL)
            chosen = (await fleet.chosen())[before:]
            assert len(set(chosen)) == 1
            assert set(chosen) <= names
            assert again.usage.prompt_tokens_details.cached_tokens > 500
