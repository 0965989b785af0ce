"""The whole fleet with nothing written down: engines, agents, the router, and an Envoy that learns of them by xDS."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import pytest
from openai import AsyncOpenAI, AsyncStream, OpenAIError
from openai.types.chat import ChatCompletionChunk

from extproc.adapters.http_client import Answer, HttpClient
from extproc.adapters.registry import Registry
from extproc.control.bootstrap import bootstrap
from extproc.control.engine_clusters import own_name
from extproc.control.settings import EnvoySettings, Shape, XdsSource
from extproc.core.values.instance import Lifecycle
from extproc.demo.ports import HOST, free_port
from extproc.demo.processes import Child, wait_for_line
from extproc.demo.stack import MODEL, Backend, EngineSpec, start_engines
from tests.e2e.eventually import eventually
from tests.envoy_process import EnvoyProcess
from tests.processes import Processes
from tests.redis_server import RedisServer

READY_S = 60.0
LONG_TOKENS = 1000  # at about 7 ms each
FOR_EVER_TOKENS = 30_000


@dataclass
class Mesh:
    """Router, control plane and Envoy, without any engine at first."""

    shape: Shape
    processes: Processes
    redis_url: str
    envoy: EnvoyProcess
    openai: AsyncOpenAI
    pages_url: str
    http: HttpClient

    async def start(self, spec: EngineSpec) -> tuple[Backend, Child]:
        """An engine and its agent."""
        (backend,) = await start_engines(self.processes, [spec])
        cluster = spec.id if self.shape is Shape.INSTANCE else "pool"
        told = ("--id", spec.id, "--hardware", spec.hardware, "--cluster", cluster, "--period-s", "0.2")
        agent = await self.processes.start_extproc(
            f"agent-{spec.id}",
            "agent",
            "--backend",
            f"http://{HOST}:{backend.port}",
            *told,
            "--redis-url",
            self.redis_url,
        )
        return backend, agent

    async def ask(self, content: str = "hello") -> str | None:
        """The instance that was chosen for a small answer; None if that failed or nobody was chosen."""
        before = len(await self.decisions())
        try:
            await self.openai.chat.completions.create(
                model=MODEL, messages=[{"role": "user", "content": content}], max_tokens=2
            )
        except OpenAIError:
            return None
        decisions = await self.decisions()
        return decisions[-1]["instance"] if len(decisions) > before else None

    async def decisions(self) -> list[dict[str, Any]]:
        """The service's latest decisions, oldest first."""
        answer = await self.http.get(f"{self.pages_url}/decisions")
        assert isinstance(answer, Answer)
        return list(orjson.loads(answer.body))

    async def count(self, what: str, backend: Backend, cluster: str = "") -> int | None:
        """Of Envoy's requests to an instance, `rq_total` or `rq_active`; None if Envoy does not know the instance.

        In one cluster, or in all: retries of the shape `instance` go to the pool, which has the instance as well.
        """
        page = await asyncio.to_thread(self.envoy.page, "/clusters")
        place = f"::{HOST}:{backend.port}::{what}::"
        mine = [line for line in page.splitlines() if place in line and line.startswith(cluster)]
        if not mine:
            return None
        return sum(int(line.rpartition("::")[2]) for line in mine)

    async def begin_story(self, tokens: int) -> AsyncStream[ChatCompletionChunk]:
        """A long answer, of which the first token is there."""
        stream = await self.openai.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": "a long story"}],
            max_tokens=tokens,
            stream=True,
            stream_options={"include_usage": True},
        )
        await anext(stream)
        return stream


@asynccontextmanager
async def mesh(folder: Path, shape: Shape, *serve_flags: str) -> AsyncIterator[Mesh]:
    async with AsyncExitStack() as stack:
        redis = stack.enter_context(RedisServer("valkey", folder))
        processes = await stack.enter_async_context(Processes(folder))
        anywhere = ("--listen", f"{HOST}:0", "--metrics-listen", f"{HOST}:0", "--redis-url", redis.url)
        serve = await processes.start_extproc("serve", "serve", *anywhere, "--drain-s", "1", *serve_flags)
        xds = await processes.start_extproc("xds", "xds", *anywhere, "--shape", shape, "--settle-s", "0")
        router = await wait_for_line(serve, r"ext_proc on port (\d+), pages on port (\d+)", READY_S)
        plane = await wait_for_line(xds, r"xDS on port (\d+)", READY_S)
        settings = EnvoySettings(
            xds=XdsSource(servers=((HOST, int(plane[1])),)),
            workers=((HOST, int(router[1])),),
            listen=(HOST, free_port()),
            admin=(HOST, free_port()),
            message_timeout_s=30.0,
            shape=shape,
        )
        envoy = EnvoyProcess(bootstrap(settings), folder)
        stack.callback(envoy.stop)
        url = f"http://{HOST}:{settings.listen[1]}"
        yield Mesh(
            shape,
            processes,
            redis.url,
            envoy,
            await stack.enter_async_context(AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)),
            f"http://{HOST}:{router[2]}",
            await stack.enter_async_context(HttpClient(timeout_s=30.0)),
        )


@pytest.mark.long
@pytest.mark.parametrize("shape", Shape)
async def test_engines_come_and_go_and_nobody_writes_them_down(shape: Shape, tmp_path: Path) -> None:
    """A faster engine takes over as soon as it is Ready; when it is taken away, its running answer is whole."""
    async with mesh(tmp_path, shape) as made, Registry(made.redis_url) as registry:
        await made.start(EngineSpec("slow", "l40s"))
        await asyncio.to_thread(made.envoy.start)
        await eventually(made.ask, lambda chosen: chosen == "slow")

        fast, agent = await made.start(EngineSpec("fast", "h100_sxm"))
        await eventually(made.ask, lambda chosen: chosen == "fast")

        async def reached() -> int | None:
            await made.ask()
            return await made.count("rq_total", fast, own_name("fast") if shape is Shape.INSTANCE else "pool")

        await eventually(reached, bool)  # Envoy may hear of it a moment later than the router, and ask another one then

        stream = await made.begin_story(LONG_TOKENS)
        assert (await made.decisions())[-1]["instance"] == "fast"
        await registry.order("fast", Lifecycle.DRAINING)
        await eventually(made.ask, lambda chosen: chosen == "slow")
        await made.processes.stop(agent)
        assert await made.count("rq_active", fast) == 1
        await registry.remove("fast")
        await eventually(lambda: made.count("rq_active", fast), lambda active: active is None)
        assert await made.ask() == "slow"
        chunks = [chunk async for chunk in stream]
        assert chunks[-1].usage is not None
        assert chunks[-1].usage.completion_tokens == LONG_TOKENS


@pytest.mark.parametrize("shape", Shape)
async def test_a_session_goes_on_at_an_instance_that_drains_until_nothing_else_runs_there(
    shape: Shape, tmp_path: Path
) -> None:
    """Envoy finds it though it balances nothing to it; whoever is new goes to the slower one."""
    session = "a prefix that is worth keeping " * 300  # about 2,300 tokens
    flags = ("--draining-continuation-tokens", "500")
    async with mesh(tmp_path, shape, *flags) as made, Registry(made.redis_url) as registry:
        fast, _ = await made.start(EngineSpec("fast", "h100_sxm"))
        await made.start(EngineSpec("slow", "l40s"))
        await asyncio.to_thread(made.envoy.start)
        await eventually(made.ask, lambda chosen: chosen == "fast")
        assert await made.ask(session) == "fast"
        stream = await made.begin_story(FOR_EVER_TOKENS)
        await registry.order("fast", Lifecycle.DRAINING)
        await eventually(made.ask, lambda chosen: chosen == "slow")

        async def health() -> str:
            page = await asyncio.to_thread(made.envoy.page, "/clusters")
            return next(
                line for line in page.splitlines() if line.startswith(f"pool::{HOST}:{fast.port}::health_flags")
            )

        await eventually(health, lambda line: not line.endswith("healthy"))
        asked = await made.count("rq_total", fast)
        assert await made.ask(f"{session} and another question") == "fast"
        assert await made.count("rq_total", fast) == (asked or 0) + 1
        assert await made.ask(f"another {session}") == "slow"
        told = (await made.decisions())[-1]["rejected"]
        assert [(each["reason"], each["continuation"]["why"]) for each in told] == [("not_ready", "prefix_too_short")]
        await stream.close()
        await eventually(lambda: made.ask(f"{session} and the last question"), lambda chosen: chosen == "slow")
        assert (await made.decisions())[-1]["rejected"][0]["continuation"]["why"] in ("idle", "prefix_too_short")
