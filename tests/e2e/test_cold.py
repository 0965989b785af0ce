"""Through a real Envoy: a model that is loaded nowhere is refused, redirected or waited for, and somebody is told."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import orjson
import pytest

from extproc.adapters.http_client import Answer, HttpClient
from extproc.adapters.webhook import SIGNATURE_HEADER
from extproc.cli import main
from extproc.demo.ports import HOST
from extproc.demo.processes import Processes, wait_for_line
from extproc.demo.stack import MODEL, EngineSpec, Stack, running_stack, start_engines
from tests.control.parts import raw
from tests.e2e.eventually import eventually
from tests.redis_server import RedisServer
from tests.server.test_intents_keeper import listening

POLICY = f"""
models: {{big: {{}}}}
fallbacks: {{moved: [{MODEL}], big: [{MODEL}]}}
cold:
  default: {{start_s: 40}}
  models:
    big: {{way: refuse}}
    soon: {{way: hold, start_s: 5}}
    vain: {{way: hold, start_s: 0.5}}
  hold_s: 25
"""
LONG_S = 60.0


async def ask(stack: Stack, model: str) -> tuple[int, dict[str, str], bytes]:
    """A completion's status, headers and body."""
    port = int(stack.routed_url.rpartition(":")[2])
    body = orjson.dumps({"model": model, "messages": [{"role": "user", "content": "x"}], "max_tokens": 2})
    status, head, answer = await raw(port, "POST", "/v1/chat/completions", "", body)
    lines = [line.partition(":") for line in head.decode().split("\r\n")[1:]]
    return status, {name.lower(): value.strip() for name, _, value in lines}, answer


async def intents(url: str, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """What the operator is shown, by model."""
    capsys.readouterr()
    assert await asyncio.to_thread(main, ["fleet", "--redis-url", url, "--intents", "--json"]) == 0
    return {each["model"]: each for each in json.loads(capsys.readouterr().out)}


async def start_engine(processes: Processes, url: str, model: str) -> None:
    """An engine and its agent join the fleet; Envoy knows it before it is ready, as it does of any that loads."""
    flags = ("--id", model, "--model", model, "--hardware", "h100_sxm", "--load-delay-s", "3")
    child = await processes.start_extproc(model, "engine", *flags)
    found = await wait_for_line(child, r"listening on [\d.]+:(\d+)", LONG_S)
    backend = ("--backend", f"http://{HOST}:{found[1]}", "--id", model, "--model", model)
    await processes.start_extproc(f"agent-{model}", "agent", *backend, "--redis-url", url)


@pytest.mark.long
async def test_a_cold_model_is_refused_redirected_or_waited_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One stack for all: what is refused is told by Redis and the webhook, who waits is served by who joins."""
    (tmp_path / "extproc.yaml").write_text(POLICY)
    (tmp_path / "secret").write_text("s")
    with RedisServer("valkey", tmp_path) as server:
        async with listening() as endpoint, Processes(tmp_path) as processes, HttpClient() as http:
            flags = ("--config", str(tmp_path / "extproc.yaml"), "--intent-webhook", endpoint.url)
            flags += ("--intent-webhook-secret-file", str(tmp_path / "secret"))
            engines = await start_engines(processes, [EngineSpec("warm", "h100_sxm")])
            async with running_stack(
                processes, tmp_path, engines, server.url, serve_flags=flags, compared=False
            ) as stack:
                status, headers, body = await ask(stack, "big")
                assert status == 503
                assert 40 <= int(headers["retry-after"]) <= 50
                assert json.loads(body)["error"]["code"] == "model_cold"
                assert (await ask(stack, "nonsense"))[0] == 404

                await eventually(lambda: _told(endpoint.seen), lambda told: "big" in told, LONG_S)
                assert all(SIGNATURE_HEADER in headers for headers, _ in endpoint.seen)
                shown = await intents(server.url, capsys)
                assert set(shown) == {"big"}
                assert shown["big"]["requests"] == 1

                assert (await ask(stack, "moved"))[0] == 200
                assert (await stack.decisions(http))[-1]["instance"] == "warm"

                held = asyncio.create_task(ask(stack, "soon"))
                shown = await eventually(
                    lambda: intents(server.url, capsys), lambda seen: seen.get("soon", {}).get("waiting") == 1, LONG_S
                )
                assert shown["moved"]["requests"] == 1
                assert not held.done()
                await start_engine(processes, server.url, "soon")
                assert (await held)[0] == 200
                assert (await stack.decisions(http))[-1]["instance"] == "soon"
                await eventually(lambda: intents(server.url, capsys), lambda seen: "soon" not in seen, LONG_S)
                start = 'extproc_cold_start_seconds{model="soon"}'
                await eventually(lambda: _page(http, stack), lambda page: start in page, LONG_S)


async def _told(seen: list[tuple[dict[str, str], bytes]]) -> set[str]:
    return {json.loads(body)["model"] for _, body in seen}


async def _page(http: HttpClient, stack: Stack) -> str:
    answer = await http.get(f"{stack.pages_url}/metrics")
    assert isinstance(answer, Answer)
    return answer.body.decode()
