"""The simulated engine as a server: its metrics, aborts, pressure, and life from loading to the signal that ends it."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
from typing import Any

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from extproc.core.values.instance import Lifecycle
from extproc.errors import ConfigError
from extproc.sim.engine.config import EngineConfig
from extproc.sim.engine.server import open_engine
from tests.sim.engines import MODEL, NEVER, QUESTION, listening, process, running, until


async def test_the_metrics_page_has_what_vllm_shows_of_load_and_cache() -> None:
    async with running(kv_blocks=1001) as engine:
        for _ in range(2):
            await engine.openai.chat.completions.create(model=MODEL, messages=QUESTION, max_tokens=5)
        _, page = await engine.get("/metrics")
    families = {family.name: family for family in text_string_to_metric_families(page)}
    values = {s.name: s.value for family in families.values() for s in family.samples}
    assert values["vllm:num_requests_running"] == values["vllm:num_requests_waiting"] == 0
    assert values["vllm:kv_cache_usage_perc"] == 0
    assert values["vllm:generation_tokens_total"] == 10
    assert values["vllm:prompt_tokens_total"] == values["vllm:prefix_cache_queries_total"] > 200
    assert 0 < values["vllm:prefix_cache_hits_total"] < values["vllm:prefix_cache_queries_total"]
    assert values["vllm:num_preemptions_total"] == 0
    for name, count in (
        ("vllm:time_to_first_token_seconds", 2),
        ("vllm:inter_token_latency_seconds", 8),
        ("vllm:e2e_request_latency_seconds", 2),
        ("vllm:request_queue_time_seconds", 2),
    ):
        assert families[name].type == "histogram"
        assert values[f"{name}_count"] == count
        assert values[f"{name}_sum"] >= 0
    (config,) = families["vllm:cache_config_info"].samples
    assert (config.labels["block_size"], config.labels["num_gpu_blocks"]) == ("16", "1001")
    states = families["vllm:engine_sleep_state"].samples
    assert {s.labels["sleep_state"]: s.value for s in states}["awake"] == 1
    finished = {s.labels["finished_reason"]: s.value for s in families["vllm:request_success"].samples}
    assert (finished["length"], finished["abort"]) == (2, 0)
    assert families["vllm:num_requests_running"].samples[0].labels == {"engine": "0", "model_name": MODEL}


async def test_the_headers_of_a_stream_come_before_its_first_token() -> None:
    body = {"model": MODEL, "messages": QUESTION, "stream": True}
    async with (
        running(speed=NEVER) as engine,
        engine.http.post(f"{engine.url}/v1/chat/completions", json=body) as response,
    ):
        assert response.status == 200


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_goes_away_aborts_its_request_and_the_blocks_come_back(stream: bool) -> None:
    body = {"model": MODEL, "messages": QUESTION, "max_tokens": 9, "stream": stream}
    async with running(speed=NEVER) as engine:
        scheduler = engine.server.scheduler
        client = asyncio.create_task(engine.post("/v1/chat/completions", body))
        await until(lambda: scheduler.running == 1)
        assert (await engine.metrics())["vllm:kv_cache_usage_perc"] > 0
        client.cancel()
        await until(lambda: scheduler.running == 0)
        assert scheduler.pool.used_blocks == 0
        assert (await engine.metrics())["vllm:request_success_total/abort"] == 1


async def test_many_streams_in_little_memory_wait_and_are_preempted_but_all_complete() -> None:
    async with running(kv_blocks=41, max_num_seqs=16, speed=200.0) as engine:

        async def one(number: int) -> int:
            stream = await engine.openai.chat.completions.create(
                model=MODEL,
                messages=[{"role": "user", "content": f"{number} " * 40}],
                max_tokens=60 + number,
                stream=True,
            )
            return sum([bool(chunk.choices[0].delta.content) async for chunk in stream])

        assert await asyncio.gather(*map(one, range(30))) == [60 + number for number in range(30)]
        assert engine.server.scheduler.preemptions > 0
        assert engine.server.scheduler.pool.used_blocks == 0


async def test_an_engine_whose_scheduler_fails_drops_its_requests_and_says_that_it_is_ill() -> None:
    def fail() -> None:
        raise ZeroDivisionError

    async def break_down() -> None:
        async with running() as engine:
            engine.server.scheduler.apply = fail  # type: ignore[method-assign, assignment]
            with pytest.raises(aiohttp.ClientError):
                await engine.post("/v1/chat/completions", {"model": MODEL, "messages": QUESTION})
            assert await engine.get("/health") == (503, "Unhealthy")

    with pytest.raises(ZeroDivisionError):
        await break_down()


async def test_while_the_model_loads_the_port_answers_but_nothing_is_served() -> None:
    async with running(load_delay_s=3600.0) as engine:
        assert await engine.get("/health") == (503, "Loading")
        assert json.loads((await engine.get("/v1/models"))[1])["data"] == []
        status, answer = await engine.post("/v1/chat/completions", {"model": MODEL, "messages": QUESTION})
        assert (status, answer["error"]["type"]) == (503, "ServiceUnavailableError")


async def test_a_loaded_engine_is_healthy_and_lists_its_models() -> None:
    async with running(load_delay_s=0.01, models=("one", "two"), max_model_len_tokens=4096) as engine:
        await until(lambda: engine.server.lifecycle is Lifecycle.READY)
        assert await engine.get("/health") == (200, "Ready")
        cards = [card async for card in engine.openai.models.list()]
        assert [card.id for card in cards] == ["one", "two"]
        assert json.loads((await engine.get("/v1/models"))[1])["data"][1]["max_model_len"] == 4096
        assert json.loads((await engine.get("/version"))[1])["version"].startswith("0.32")


@pytest.mark.parametrize(
    "settings",
    [
        {"models": ()},
        {"speed": 0.0},
        {"block_size_tokens": 0},
        {"max_num_seqs": 9000},
        {"kv_blocks": 1},
        {"kv_blocks": 10, "max_model_len_tokens": 1000},
    ],
)
def test_settings_that_contradict_each_other_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        EngineConfig(**{"models": (MODEL,), **settings})


async def test_a_taken_port_is_told_in_one_line() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(ConfigError, match="choose another --port"):
            async with open_engine(EngineConfig(models=(MODEL,), port=taken.getsockname()[1])):
                pass


async def test_on_sigterm_a_running_stream_ends_properly_and_the_exit_status_is_0() -> None:
    body = {"model": MODEL, "messages": QUESTION, "max_tokens": 100, "stream": True}
    async with process("--id", "e1") as child, aiohttp.ClientSession() as http:
        name, url = await listening(child)
        assert name == "e1"
        async with http.post(f"{url}/v1/chat/completions", json=body) as response:
            await response.content.readline()
            child.send_signal(signal.SIGTERM)
            rest = await response.text()
        assert rest.endswith("data: [DONE]\n\n")
        assert rest.count("\ndata: {") == 100
        assert await child.wait() == 0
        with pytest.raises(aiohttp.ClientConnectorError):
            await http.get(f"{url}/health")


async def test_ctrl_c_ends_a_busy_engine_at_once_and_quietly() -> None:
    body = {"model": MODEL, "messages": QUESTION, "stream": True}
    async with process("--speed", str(NEVER)) as child, aiohttp.ClientSession() as http:
        _, url = await listening(child)
        async with http.post(f"{url}/v1/chat/completions", json=body) as response:
            child.send_signal(signal.SIGINT)
            with pytest.raises(aiohttp.ClientError):
                await response.read()
        _, errors = await child.communicate()
    assert (child.returncode, errors) == (0, b"")


async def test_before_its_start_delay_is_over_a_process_does_not_listen() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    async with process("--start-delay-s", "3600", "--port", str(port)) as child:
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", port)
        assert child.returncode is None
    async with process("--start-delay-s", "0.01", "--port", str(port)) as child:
        assert (await listening(child))[1] == f"http://127.0.0.1:{port}"
