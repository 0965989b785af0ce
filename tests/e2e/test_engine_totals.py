"""Without token usage in Envoy, expected answers come to what the engine counts; with it, that changes nothing."""

from __future__ import annotations

import asyncio
from pathlib import Path

import orjson
import pytest

from extproc.adapters.engines.vllm import read
from extproc.adapters.http_client import Answer, HttpClient
from extproc.control.bootstrap import bootstrap
from extproc.control.settings import EnvoySettings, Upstream
from extproc.demo.ports import HOST, free_port
from extproc.demo.processes import wait_for_line
from extproc.demo.stack import MODEL, Backend
from tests.e2e.conftest import Fleet, StartFleet
from tests.e2e.eventually import eventually
from tests.envoy_process import EnvoyProcess
from tests.processes import Processes

REQUESTS = 200
MEAN_TOKENS = 40  # of the engine's answers; before any, about 240 are expected


async def _envoy(fleet: Fleet, folder: Path, *, usage: bool) -> tuple[EnvoyProcess, int]:
    """Another Envoy before the same service and engine."""
    worker = await wait_for_line(fleet.stack.service, r"ext_proc on port (\d+)", 30.0)
    settings = EnvoySettings(
        upstreams=tuple(Upstream(each.id, (HOST, each.port)) for each in fleet.stack.backends),
        workers=((HOST, int(worker[1])),),
        listen=(HOST, free_port()),
        admin=(HOST, free_port()),
        message_timeout_s=30.0,
        json_usage=usage,
        sse_usage=usage,
    )
    return EnvoyProcess(bootstrap(settings), folder), settings.listen[1]


async def _healthy(envoy: EnvoyProcess) -> dict[str, int]:
    """How many services are, in an Envoy's eyes."""
    return await asyncio.to_thread(envoy.stats, "cluster.extproc.membership_healthy")


async def _ask(http: HttpClient, port: int, stream: bool) -> None:
    body = {"model": MODEL, "messages": [{"role": "user", "content": "hello"}], "stream": stream}
    body |= {"stream_options": {"include_usage": True}} if stream else {}
    answer = await http.post_json(f"http://{HOST}:{port}/v1/chat/completions", orjson.dumps(body))
    assert isinstance(answer, Answer)
    assert answer.status == 200


async def _engine_mean(http: HttpClient, port: int) -> float:
    page = await http.get(f"http://{HOST}:{port}/metrics")
    assert isinstance(page, Answer)
    totals = read({"metrics": page.body}).totals
    assert totals is not None
    assert totals.requests
    assert totals.output_tokens
    return totals.output_tokens / totals.requests


@pytest.mark.parametrize("usage", [False, True])
async def test_expected_output_comes_to_the_engines_mean(
    usage: bool, start_fleet: StartFleet, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Half of the answers in one piece, half streamed, by the engine's own lengths."""
    async with Processes(tmp_path_factory.mktemp("engine")) as engines:
        arguments = ("--id", "a", "--model", MODEL, "--hardware", "h100_sxm", "--speed", "20")
        child = await engines.start_extproc("a", "engine", *arguments, "--mean-output-tokens", str(MEAN_TOKENS))
        port = int((await wait_for_line(child, r"listening on [\d.]+:(\d+)", 60.0))[1])
        async with start_fleet([Backend("a", port, hardware="h100_sxm")]) as fleet:
            envoy, routed = await _envoy(fleet, tmp_path_factory.mktemp("envoy"), usage=usage)
            await asyncio.to_thread(envoy.start)
            try:
                await eventually(lambda: _healthy(envoy), lambda stats: all(stats.values()))
                for number in range(REQUESTS):
                    await _ask(fleet.http, routed, stream=number % 2 == 0)
                mean_tokens = await _engine_mean(fleet.http, port)

                async def expected() -> float:
                    """After the engine's last report and the last outcome."""
                    await _ask(fleet.http, routed, stream=True)
                    decisions = await fleet.stack.decisions(fleet.http)
                    return float(decisions[-1]["expected_output_tokens"])

                await eventually(expected, lambda tokens: abs(tokens - mean_tokens) < 0.15 * mean_tokens)
                tokens = [line for line in (await fleet.metrics()).splitlines() if "extproc_tokens_total{" in line]
                counted = sum(float(line.rpartition(" ")[2]) for line in tokens if "completion" in line)
                assert (counted > REQUESTS) is usage
            finally:
                await asyncio.to_thread(envoy.stop)
