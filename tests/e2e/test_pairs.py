"""Prefill and decode on two engines: through a real Envoy, with a sidecar that does what llm-d's does.

No KV block moves, as simulated engines cannot hand any over: the decode engine computes the prompt once more.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import aiohttp
import orjson
from aiohttp import web

from extproc.core.pairs.hand_over import HandOver
from extproc.demo.stack import Backend, EngineSpec, start_engines
from tests.e2e.conftest import Fleet, StartFleet
from tests.e2e.eventually import eventually
from tests.e2e.test_explain import told
from tests.processes import Processes

HOST = "127.0.0.1"
PARTNER = "x-prefiller-host-port"
PROMPT = "a prompt that one engine reads for another " * 200


@dataclass
class Sidecar:
    """Has the address in the header compute the prompt and one token, then its own engine all of it."""

    engine_port: int
    port: int = 0
    partners: list[str | None] = field(default_factory=list)  # of all requests that came

    async def handle(self, request: web.Request) -> web.StreamResponse:
        body, partner = await request.read(), request.headers.get(PARTNER)
        self.partners.append(partner)
        async with aiohttp.ClientSession() as client:
            if partner is not None:
                ask = orjson.loads(body) | {"max_tokens": 1, "stream": False}
                ask.pop("stream_options", None)
                async with client.post(f"http://{partner}{request.path}", json=ask) as done:
                    assert done.status == 200
                    await done.read()
            async with client.post(f"http://{HOST}:{self.engine_port}{request.path}", data=body) as answer:
                headers = {"content-type": answer.headers["content-type"]}
                response = web.StreamResponse(status=answer.status, headers=headers)
                await response.prepare(request)
                async for chunk in answer.content.iter_any():
                    await response.write(chunk)
        await response.write_eof()
        return response


@asynccontextmanager
async def running_sidecar(engine_port: int) -> AsyncIterator[Sidecar]:
    sidecar = Sidecar(engine_port)
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", sidecar.handle)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, HOST, 0).start()
        sidecar.port = int(runner.addresses[0][1])
        yield sidecar
    finally:
        await runner.cleanup()


async def in_flight(fleet: Fleet) -> dict[str, int]:
    found = re.findall(r'^extproc_in_flight\{instance="([^"]+)"\} (\d+)', await fleet.metrics(), re.MULTILINE)
    return {name.partition("@")[0]: int(count) for name, count in found if int(count)}


async def prompts_of(fleet: Fleet, backend: Backend) -> int:
    """Prompt tokens that an engine says it was asked for."""
    answer = await fleet.http.get(f"http://{HOST}:{backend.port}/metrics")
    found = re.search(r"^vllm:prompt_tokens_total\S* ([\d.e+]+)", answer.body.decode(), re.MULTILINE)  # type: ignore
    assert found is not None
    return int(float(found[1]))


async def test_the_partner_of_a_pair_is_named_to_the_sidecar_and_computes_the_prompt(
    start_fleet: StartFleet, tmp_path: Path
) -> None:
    """Two engines that take half a request each serve whole ones together; nothing stays booked at either."""
    folder = tmp_path / "engines"
    folder.mkdir()
    async with Processes(folder) as engines:
        specs = (EngineSpec("prefill", "h100_sxm"), EngineSpec("decode", "h100_sxm"))
        prefill, decode = await start_engines(engines, specs)
        async with running_sidecar(decode.port) as sidecar:
            domain = {"kv_domain": "pd", "fabric": "ib"}
            prefill = replace(prefill, facts={"role": "prefill", **domain})
            decode = replace(decode, facts={"role": "decode", **domain}, sidecar_port=sidecar.port)
            async with start_fleet((prefill, decode), hand_over=HandOver.LLM_D) as fleet:
                await _answers(fleet, sidecar, prefill, decode)
                await _is_explained(fleet)
                assert await eventually(lambda: in_flight(fleet), lambda open_requests: not open_requests) == {}


async def _answers(fleet: Fleet, sidecar: Sidecar, prefill: Backend, decode: Backend) -> None:
    sidecar.partners.clear()
    before = await prompts_of(fleet, prefill)
    answer = await fleet.ask(PROMPT, max_tokens=5)
    assert answer.usage.completion_tokens == 5
    stream = await fleet.ask(PROMPT, max_tokens=300, stream=True, stream_options={"include_usage": True})
    chunks = [await anext(stream)]  # the answer has begun: the prompt is over, the answer is not
    assert await in_flight(fleet) == {"decode": 1}
    chunks += [chunk async for chunk in stream]
    assert chunks[-1].usage.completion_tokens == 300
    forged = await fleet.ask("hello", extra_headers={PARTNER: "6.6.6.6:80"})
    assert forged.usage.completion_tokens == 4
    assert sidecar.partners == [f"{HOST}:{prefill.port}"] * 3
    assert await prompts_of(fleet, prefill) - before >= 2 * answer.usage.prompt_tokens
    decisions = (await fleet.stack.decisions(fleet.http))[-3:]
    assert [(each["instance"], each["partner"]) for each in decisions] == [("decode", "prefill")] * 3


async def _is_explained(fleet: Fleet) -> None:
    """By `extproc explain`, of the latest request and of one that was never sent."""
    status, text = await told(fleet, "last")
    assert status == 0
    assert "goes to decode at" in text
    assert "prefill computes its prompt" in text
    found = await eventually(lambda: _told_json(fleet), lambda found: found["outcome"] is not None)
    assert (found["chosen"], found["partner"], found["rejected"]) == ("decode", "prefill", [])


async def _told_json(fleet: Fleet) -> dict[str, object]:
    status, output = await told(fleet, "last", "--json")
    assert status == 0
    found: dict[str, object] = json.loads(output)
    return found
