"""A running fleet for the end-to-end tests: real Redis, engines, agent, service and Envoy."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import pytest
import pytest_asyncio
from openai import AsyncOpenAI

from extproc.adapters.http_client import Answer, HttpClient
from extproc.adapters.registry import Registry
from extproc.core.pairs.hand_over import HandOver
from extproc.demo.stack import MODEL, Backend, EngineSpec, Stack, running_stack, start_engines
from tests.processes import Processes
from tests.redis_server import RedisServer

PATIENT_S = 30.0  # that Envoy waits for a decision: by default it goes on without one where a machine is busy
TWO_KINDS = (EngineSpec("fast", "h100_sxm"), EngineSpec("slow", "l40s"))
EQUALS = (EngineSpec("a", "h100_sxm"), EngineSpec("b", "h100_sxm"))


@dataclass(frozen=True, slots=True)
class Fleet:
    """A running stack and what a test needs to drive it."""

    stack: Stack
    redis: RedisServer
    processes: Processes
    registry: Registry
    http: HttpClient
    openai: AsyncOpenAI

    async def chosen(self) -> list[str | None]:
        """Instance of each of the latest decisions, oldest first."""
        return [decision["instance"] for decision in await self.stack.decisions(self.http)]

    async def row(self, instance_id: str) -> dict[str, Any]:
        """The service's view of one instance; {} if it does not know it."""
        rows = {row["id"]: row for row in await self.stack.fleet(self.http)}
        return rows.get(instance_id, {})

    async def metrics(self) -> str:
        """The service's metrics page."""
        answer = await self.http.get(f"{self.stack.pages_url}/metrics")
        assert isinstance(answer, Answer)
        return answer.body.decode()

    async def ask(self, content: str = "hello", **changes: Any) -> Any:
        """One chat completion by the unchanged client library."""
        messages = [{"role": "user", "content": content}]
        return await self.openai.chat.completions.create(
            **({"model": MODEL, "messages": messages, "max_tokens": 4} | changes)
        )


class StartFleet(Protocol):
    def __call__(
        self,
        specs: Sequence[EngineSpec | Backend],
        kind: str = "valkey",
        model: str = MODEL,
        hand_over: HandOver = HandOver.NONE,
        serve_flags: Sequence[str] = (),
    ) -> AbstractAsyncContextManager[Fleet]: ...


@asynccontextmanager
async def running_fleet(
    folder: Path,
    specs: Sequence[EngineSpec | Backend],
    kind: str = "valkey",
    model: str = MODEL,
    hand_over: HandOver = HandOver.NONE,
    serve_flags: Sequence[str] = (),
) -> AsyncIterator[Fleet]:
    """A stack of its own in `folder`; engines that run already are not started."""
    with RedisServer(kind, folder) as server:
        async with Processes(folder) as processes:
            running = tuple(spec for spec in specs if isinstance(spec, Backend))
            started = await start_engines(processes, [spec for spec in specs if isinstance(spec, EngineSpec)])
            async with (
                running_stack(
                    processes,
                    folder,
                    running + started,
                    server.url,
                    model=model,
                    hand_over=hand_over,
                    serve_flags=serve_flags,
                    compared=False,
                    message_timeout_s=PATIENT_S,
                ) as stack,
                Registry(server.url) as registry,
                HttpClient(timeout_s=30.0) as http,
                AsyncOpenAI(base_url=f"{stack.routed_url}/v1", api_key="none", max_retries=0) as openai,
            ):
                yield Fleet(stack, server, processes, registry, http, openai)


@pytest.fixture
def start_fleet(tmp_path: Path) -> StartFleet:
    """For tests that hurt their fleet."""
    return partial(running_fleet, tmp_path)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def equals(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Fleet]:
    """Two equal engines, for all tests of a file that leave them as they were."""
    async with running_fleet(tmp_path_factory.mktemp("equals"), EQUALS) as fleet:
        yield fleet
