"""Runs simulated engines for the tests, in process or as a process of their own."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import openai
from prometheus_client.parser import text_string_to_metric_families

from extproc.core.values.instance import Lifecycle
from extproc.sim.engine.config import EngineConfig
from extproc.sim.engine.server import EngineServer, open_engine

MODEL = "llama-3.1-8b"
NEVER = 1e-9  # as a speed: no step ends while a test runs
QUESTION: list[Any] = [{"role": "user", "content": "Tell me all that you know about paged attention, please. " * 8}]


class Engine:
    """A running engine and clients for it."""

    def __init__(self, server: EngineServer, port: int, http: aiohttp.ClientSession) -> None:
        self.server = server
        self.http = http
        self.url = f"http://127.0.0.1:{port}"
        self.openai = openai.AsyncOpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0)

    async def post(self, path: str, body: Any) -> tuple[int, Any]:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        async with self.http.post(self.url + path, data=data) as response:
            return response.status, json.loads(await response.read() or b"null")

    async def get(self, path: str) -> tuple[int, str]:
        async with self.http.get(self.url + path) as response:
            return response.status, await response.text()

    async def metrics(self) -> dict[str, float]:
        """Samples of the metrics page by name, with a further label's value after a slash."""
        _, page = await self.get("/metrics")
        samples = [sample for family in text_string_to_metric_families(page) for sample in family.samples]
        return {"/".join([s.name, *sorted(set(s.labels.values()) - {"0", MODEL})]): s.value for s in samples}


@asynccontextmanager
async def running(**settings: Any) -> AsyncIterator[Engine]:
    config = EngineConfig(**{"models": (MODEL,), "speed": 50.0, "grace_s": 0.1, **settings})
    async with open_engine(config) as (server, port), aiohttp.ClientSession() as http:
        engine = Engine(server, port, http)
        if not config.load_delay_s:
            await until(lambda: server.lifecycle is Lifecycle.READY)
        yield engine
        await engine.openai.close()


async def until(condition: Callable[[], bool]) -> None:
    """Wait for a condition as long as a very slow machine may need."""
    async with asyncio.timeout(60):
        while True:
            if condition():
                return
            await asyncio.sleep(0.005)


@asynccontextmanager
async def process(*flags: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """`extproc engine` as a process; ended here if the test did not."""
    command = (sys.executable, "-m", "extproc", "engine", *flags)
    pipe = asyncio.subprocess.PIPE
    child = await asyncio.create_subprocess_exec(*command, stdout=pipe, stderr=pipe)
    try:
        yield child
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()


async def listening(child: asyncio.subprocess.Process) -> tuple[str, str]:
    """Wait for the line that tells the port: gives the engine's name and its URL."""
    assert child.stdout is not None
    words = (await child.stdout.readline()).decode().split()
    assert (words[0], words[2:4]) == ("engine", ["listening", "on"])
    return words[1], f"http://{words[4]}"
