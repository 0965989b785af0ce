"""What a real Envoy logs of attempts: which endpoint broke, which was full, and what that asked for."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from extproc.adapters.http_client import Answer, HttpClient
from extproc.control.bootstrap import bootstrap
from extproc.control.settings import EnvoySettings, Upstream
from extproc.core.health.verdict import Attempt, Verdict, verdict
from extproc.core.values.outcome import Outcome
from extproc.demo.ports import free_port
from tests.control.parts import HOST, ScriptedEngine, naming_service, running_engine
from tests.control.test_envoy_behaviour import CHAT, PATH, _healthy
from tests.envoy_process import EnvoyProcess


async def test_each_failed_attempt_is_told_apart_although_the_request_succeeds(tmp_path: Path) -> None:
    """The first choice refuses the connection, the second is full and asks for 7 s, the third answers."""
    logged: asyncio.Queue[Any] = asyncio.Queue()
    async with AsyncExitStack() as stack:
        full = await stack.enter_async_context(
            running_engine(ScriptedEngine("full", 503, headers={"retry-after": "7"}))
        )
        well = await stack.enter_async_context(running_engine(ScriptedEngine("well")))
        ports = (free_port(), full.port, well.port)
        endpoints = [f"{HOST}:{port}" for port in ports]
        worker = await stack.enter_async_context(naming_service("pool", endpoints, logged=logged))
        settings = EnvoySettings(
            upstreams=tuple(Upstream(f"i{port}", (HOST, port)) for port in ports),
            workers=((HOST, worker),),
            listen=(HOST, free_port()),
            admin=(HOST, free_port()),
            message_timeout_s=30.0,
        )
        envoy = EnvoyProcess(bootstrap(settings), tmp_path)
        stack.callback(envoy.stop)
        await asyncio.to_thread(envoy.start)
        await _healthy(envoy)
        async with HttpClient(timeout_s=60.0) as client:
            answer = await client.post_json(f"http://{HOST}:{settings.listen[1]}{PATH}", CHAT)
        assert isinstance(answer, Answer)
        assert answer.status == 200
        async with asyncio.timeout(60):
            entries = [await logged.get() for _ in range(3)]
    attempts = [entry for entry in entries if isinstance(entry, Attempt)]
    told = {attempt.address: (verdict(attempt.status, attempt.flags), attempt.retry_after_s) for attempt in attempts}
    assert told == {endpoints[0]: (Verdict.BROKEN, None), endpoints[1]: (Verdict.FULL, 7.0)}
    (outcome,) = [entry for entry in entries if isinstance(entry, Outcome)]
    assert (outcome.status, outcome.attempts, outcome.address) == (200, 3, endpoints[2])
    assert all(0.0 <= attempt.duration_s <= outcome.duration_s for attempt in attempts)
