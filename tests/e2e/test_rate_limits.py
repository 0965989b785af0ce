"""Limits through a real Envoy: what clients get when they are beyond one, and what they are told when they are not."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import pytest

from extproc.adapters import redis_settings
from extproc.adapters.http_client import Answer, HttpClient
from extproc.adapters.registry import Registry
from extproc.config_file import limits
from extproc.control.bootstrap import bootstrap
from extproc.control.settings import EnvoySettings, RequestBodies, Shape, Upstream
from extproc.demo.ports import free_port
from extproc.demo.processes import wait_for_line
from tests.core.builders import MODEL, instance
from tests.e2e.eventually import eventually
from tests.e2e.matrix.clients import HOST, Ask, Got, Http, send
from tests.e2e.matrix.engines import USAGE, Engine
from tests.envoy_process import EnvoyProcess
from tests.processes import Processes
from tests.redis_server import RedisServer

# Nothing comes back while a test runs. Redis may take far longer to answer than the operator could allow: what counts
# here is what it says, and a busy machine is not one without Redis.
PATIENT_S = 5.0
POLICY = f"""
limits:
  on_loss: allow
  budget_ms: {1000 * PATIENT_S}
  tenants: {{acme: [acme-1, acme-2]}}
  rules:
    - {{tenants: [acme], requests_per_minute: 0.001, request_burst: 2}}
    - {{tenants: [wordy], tokens_per_minute: 0.001, token_burst: 5000}}
    - {{tenants: [patient], concurrent: 1}}
    - {{tenants: ["both"], requests_per_minute: 60, tokens_per_minute: 60000}}
"""
USED = USAGE["prompt_tokens"] + USAGE["completion_tokens"]
RATE_HEADERS = [f"x-ratelimit-{what}-{of}" for of in ("requests", "tokens") for what in ("limit", "remaining", "reset")]


@dataclass(frozen=True)
class Limited:
    """What runs, and how to ask it."""

    port: int
    pages_port: int
    redis: RedisServer
    engine: Engine
    http: HttpClient

    async def ask(self, tenant: str, script: str = "json", path: str = "/v1/chat/completions", **body: Any) -> Got:
        """The answer to a small chat of a tenant, which its engine gives by a script."""
        content = {"model": MODEL, "max_tokens": 100, "messages": [{"role": "user", "content": "hello"}]} | body
        headers = [("x-tenant", tenant), ("x-script", script), ("content-type", "application/json")]
        return await send(Http.HTTP1, self.port, Ask(path=path, headers=headers, pieces=[orjson.dumps(content)]))

    async def metric(self, name: str, label: str = "") -> float:
        """One sample of the service's metrics."""
        answer = await self.http.get(f"http://{HOST}:{self.pages_port}/metrics")
        assert isinstance(answer, Answer)
        found = re.search(rf"^{name}{re.escape(label)} (\S+)$", answer.body.decode(), re.MULTILINE)
        return float(found[1]) if found else 0.0


def waits_for_redis() -> None:
    """In the service's process: Redis has the time that a busy machine takes, which no operator may give it."""
    limits._MOST_BUDGET_MS = round(1000 * PATIENT_S)
    defaults = redis_settings.parse.__kwdefaults__
    assert defaults is not None
    defaults["timeout_s"] = PATIENT_S


@asynccontextmanager
async def running(
    folder: Path, policy: str = POLICY, shape: Shape = Shape.POOL, mode: RequestBodies = RequestBodies.BUFFERED
) -> AsyncIterator[Limited]:
    """Redis, one engine, `extproc serve` and Envoy."""
    (folder / "extproc.yaml").write_text(policy)
    port, pages_port = free_port(), free_port()
    async with AsyncExitStack() as stack:
        redis = stack.enter_context(RedisServer("valkey", folder))
        engine = Engine("a")
        await engine.start()
        stack.push_async_callback(engine.stop)
        registry = await stack.enter_async_context(Registry(redis.url))
        cluster = "pool" if shape is Shape.POOL else "a"
        await registry.publish(instance("a", address=engine.address, cluster=cluster), ttl_s=600.0)
        processes = await stack.enter_async_context(Processes(folder))
        service = await processes.start_extproc(
            "serve", "serve", "--listen", f"{HOST}:{port}", "--metrics-listen", f"{HOST}:{pages_port}",
            "--redis-url", redis.url, "--tenant-header", "x-tenant", "--config", str(folder / "extproc.yaml"),
            "--stale-after-s", "600", "--drain-s", "1", before=waits_for_redis,
        )  # fmt: skip
        await wait_for_line(service, r"serving ext_proc on port", 60.0)
        settings = EnvoySettings(
            upstreams=(Upstream("a", (HOST, engine.port)),),
            workers=((HOST, port),),
            listen=(HOST, free_port()),
            admin=(HOST, free_port()),
            shape=shape,
            body_mode=mode,
            message_timeout_s=30.0,
        )
        envoy = EnvoyProcess(bootstrap(settings), folder)
        stack.callback(envoy.stop)
        await asyncio.to_thread(envoy.start)

        async def healthy() -> int:
            name = "cluster.extproc.membership_healthy"
            return (await asyncio.to_thread(envoy.stats, name)).get(name, 0)

        await eventually(healthy, bool, 60.0)
        http = await stack.enter_async_context(HttpClient(timeout_s=30.0))
        yield Limited(settings.listen[1], pages_port, redis, engine, http)


@pytest.mark.parametrize(
    ("shape", "mode"), [(Shape.POOL, RequestBodies.BUFFERED), (Shape.INSTANCE, RequestBodies.FULL_DUPLEX)]
)
async def test_requests_beyond_a_rate_get_429_whichever_key_of_the_tenant_they_have(
    tmp_path: Path, shape: Shape, mode: RequestBodies
) -> None:
    """In OpenAI's shape or Anthropic's, with the headers of either; the engine sees nothing of them."""
    async with running(tmp_path, shape=shape, mode=mode) as limited:
        first = await limited.ask("acme-1")
        assert first.status == 200
        assert first.headers["x-ratelimit-limit-requests"] == "2"
        assert first.headers["x-ratelimit-remaining-requests"] == "1"
        assert (await limited.ask("acme-2")).headers["x-ratelimit-remaining-requests"] == "0"
        for tenant in ("acme-1", "acme-2", "acme"):
            refused = await limited.ask(tenant)
            assert refused.status == 429
            assert (refused.error["type"], refused.error["code"]) == ("requests", "rate_limit_exceeded")
            assert "requests per min (RPM): Limit 0.001, Used 2" in refused.error["message"]
            assert int(refused.headers["retry-after"]) == pytest.approx(60_000, abs=600)
            assert refused.headers["x-ratelimit-remaining-requests"] == "0"
            assert refused.headers["x-ratelimit-reset-requests"].startswith("33h")
        theirs = await limited.ask("acme", path="/v1/messages")
        assert theirs.status == 429
        assert orjson.loads(theirs.body)["error"]["type"] == "rate_limit_error"
        assert theirs.headers["anthropic-ratelimit-requests-remaining"] == "0"
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", theirs.headers["anthropic-ratelimit-requests-reset"])
        assert len(limited.engine.seen) == 2
        assert (await limited.ask("somebody else")).status == 200
        checks = "extproc_limit_checks_total"
        assert await limited.metric(checks, '{result="allowed"}') == 2
        assert await limited.metric(checks, '{result="refused_requests"}') == 4
        answered = '{action="answered",reason="limit_requests"}'
        assert await limited.metric("extproc_requests_total", answered) == 4


async def test_tokens_are_charged_as_estimated_and_settled_as_used(tmp_path: Path) -> None:
    """By the usage in the engine's answer; what an engine or the router refused costs nothing; beyond the rest 429."""
    async with running(tmp_path) as limited:
        tokens = "extproc_limit_tokens_total"

        async def settled() -> float:
            charged, returned, added = [
                await limited.metric(tokens, f'{{step="{step}"}}') for step in ("charged", "returned", "added")
            ]
            return charged - returned + added

        first = await limited.ask("wordy")
        estimate = await limited.metric(tokens, '{step="charged"}')
        assert first.status == 200
        assert int(first.headers["x-ratelimit-remaining-tokens"]) == 5000 - estimate
        await eventually(settled, lambda used: used == USED, 60.0)
        charged = await limited.metric(tokens, '{step="charged"}')
        assert (await limited.ask("wordy", "status 400")).status == 400
        assert (await limited.ask("wordy", model="nobody has it")).status == 404
        assert await limited.metric(tokens, '{step="charged"}') > charged
        await eventually(settled, lambda used: used == USED, 60.0)
        refused = await limited.ask("wordy", max_tokens=None, messages=[{"role": "user", "content": "word " * 9000}])
        assert refused.status == 429
        assert (refused.error["type"], refused.error["code"]) == ("tokens", "rate_limit_exceeded")
        assert "tokens per min (TPM)" in refused.error["message"]
        assert int(refused.headers["x-ratelimit-remaining-tokens"]) == 5000 - USED
        assert await settled() == USED


async def test_a_client_that_hangs_up_does_not_get_back_what_it_may_have_read(tmp_path: Path) -> None:
    """Anthropic's first event tells its prompt's tokens, and an answer of one: the estimate of the answer stands."""
    async with running(tmp_path) as limited:
        tokens = "extproc_limit_tokens_total"
        asked = asyncio.create_task(limited.ask("wordy", "hold anthropic", path="/v1/messages", stream=True))

        async def held() -> int:
            return limited.engine.held

        await eventually(held, lambda number: number == 1, 60.0)
        charged = await limited.metric(tokens, '{step="charged"}')
        asked.cancel()
        await asyncio.wait([asked])

        async def mended() -> float:
            returned, added = [await limited.metric(tokens, f'{{step="{step}"}}') for step in ("returned", "added")]
            return added - returned

        await eventually(mended, bool, 60.0)
        expected_output_tokens = charged + await mended() - USAGE["prompt_tokens"]
        assert 20 < expected_output_tokens <= 100


async def test_a_place_is_taken_for_as_long_as_a_request_runs(tmp_path: Path) -> None:
    """A client that hangs up leaves its place to the next."""
    async with running(tmp_path) as limited:
        running_one = asyncio.create_task(limited.ask("patient", "hold"))

        async def held() -> int:
            return limited.engine.held

        await eventually(held, lambda number: number == 1, 60.0)
        refused = await limited.ask("patient")
        assert (refused.status, refused.headers["retry-after"]) == (429, "1")
        assert "at once: Limit 1, Used 1" in refused.error["message"]
        running_one.cancel()
        await asyncio.wait([running_one])

        async def status() -> int:
            return (await limited.ask("patient")).status

        await eventually(status, lambda number: number == 200, 60.0)


async def test_an_answer_has_our_headers_in_the_place_of_the_engines(tmp_path: Path) -> None:
    """Of all limits that hold for it; one that none holds for keeps what the engine says."""
    async with running(tmp_path) as limited:
        ours = await limited.ask("both", "limits")
        assert [ours.headers[name] for name in RATE_HEADERS[:3]] == ["60", "59", "1s"]
        assert ours.headers["x-ratelimit-limit-tokens"] == "60000"
        theirs = await limited.ask("both", "limits", path="/v1/messages")
        assert theirs.headers["anthropic-ratelimit-requests-limit"] == "60"
        assert theirs.headers["anthropic-ratelimit-tokens-limit"] == "60000"
        assert "x-ratelimit-limit-tokens" not in theirs.headers
        theirs = await limited.ask("somebody else", "limits")
        assert theirs.headers["x-ratelimit-limit-requests"] == "the engine's own"
        assert "x-ratelimit-limit-tokens" not in theirs.headers


@pytest.mark.long
@pytest.mark.parametrize(("on_loss", "status"), [("allow", 200), ("refuse", 503)])
async def test_without_redis_it_is_the_operators_choice(tmp_path: Path, on_loss: str, status: int) -> None:
    """Whether it does not answer or is gone; no request waits for longer than the budget of the first ones."""
    async with running(tmp_path, POLICY.replace("on_loss: allow", f"on_loss: {on_loss}")) as limited:
        assert [(await limited.ask("acme")).status for _ in range(3)] == [200, 200, 429]
        limited.redis.freeze()
        got = await limited.ask("acme")
        assert got.status == status
        assert "x-ratelimit-limit-requests" not in got.headers
        if status == 503:
            assert (got.error["code"], got.headers["retry-after"]) == ("limits_unknown", "1")
        limited.redis.stop()
        assert (await limited.ask("acme")).status == status
        assert (await limited.ask("somebody else")).status == 200
        assert await limited.metric("extproc_limit_checks_total", '{result="unknown"}') == 2
        limited.redis.start()

        async def statuses() -> int:
            return (await limited.ask("acme")).status

        await eventually(statuses, lambda number: number == 429, 60.0)  # limits hold again, from the beginning
