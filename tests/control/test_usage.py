"""Token usage as a real Envoy reads it from answers: every API's names, whole or streamed, cut anywhere."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import pytest
from aiohttp import web

from extproc.control.bootstrap import bootstrap
from extproc.control.settings import EnvoySettings, Shape, Upstream
from extproc.core.values.outcome import Outcome
from extproc.demo.ports import free_port
from tests.control.parts import HOST, naming_service
from tests.control.test_envoy_behaviour import CHAT, PATH, _healthy
from tests.envoy_process import EnvoyProcess

Counts = tuple[int | None, int | None, int | None]
"""Prompt, completion and cached tokens."""

OPENAI = {"prompt_tokens": 100, "completion_tokens": 7, "prompt_tokens_details": {"cached_tokens": 64}}
ANTHROPIC = {"input_tokens": 20, "cache_read_input_tokens": 64, "cache_creation_input_tokens": 16, "output_tokens": 7}
RESPONSES = {"input_tokens": 100, "input_tokens_details": {"cached_tokens": 64}, "output_tokens": 7}
ALL: Counts = (100, 7, 64)
NONE: Counts = (None, None, None)


def events(*values: Any) -> bytes:
    """Server-sent events of JSON values; those that have a type are named by it."""
    names = (f"event: {value['type']}\n" if "type" in value else "" for value in values)
    return "".join(f"{name}data: {json.dumps(value)}\n\n" for name, value in zip(names, values, strict=True)).encode()


CHAT_STREAM = (
    events(
        {"choices": [{"delta": {"content": "a"}}], "usage": None},
        {"choices": [{"delta": {"content": "usage"}}], "usage": None},
        {"choices": [], "usage": OPENAI},
    )
    + b"data: [DONE]\n\n"
)
# vLLM's `continuous_usage_stats`: counts grow with every event.
GROWING = events(*({"choices": [{}], "usage": {"prompt_tokens": 100, "completion_tokens": n}} for n in range(1, 8)))
MESSAGES_STREAM = events(
    {"type": "message_start", "message": {"usage": ANTHROPIC | {"output_tokens": 1}}},
    {"type": "content_block_delta", "delta": {"text": "a"}},
    {"type": "message_delta", "usage": {"output_tokens": 7}},
    {"type": "message_stop"},
)
# vLLM tells all input tokens in both events, and nothing of its cache.
VLLM_MESSAGES_STREAM = events(
    {"type": "message_start", "message": {"usage": {"input_tokens": 0, "output_tokens": 0}}},
    {"type": "message_delta", "usage": {"input_tokens": 100, "output_tokens": 7}},
)
RESPONSES_STREAM = events(
    {"type": "response.created", "response": {"usage": None}},
    {"type": "response.output_text.delta", "delta": "a"},
    {"type": "response.completed", "response": {"output": [{"text": "word " * 40_000}], "usage": RESPONSES}},
)

WHOLE: dict[str, tuple[Any, Counts]] = {
    "chat": ({"choices": [], "usage": OPENAI}, ALL),
    "chat without details": ({"usage": {"prompt_tokens": 5, "completion_tokens": 6}}, (5, 6, None)),
    "details that are null": ({"usage": OPENAI | {"prompt_tokens_details": None}}, (100, 7, None)),
    "embeddings": ({"data": [], "usage": {"prompt_tokens": 5, "total_tokens": 5}}, (5, None, None)),
    "messages": ({"type": "message", "usage": ANTHROPIC}, ALL),
    "responses": ({"object": "response", "usage": RESPONSES}, ALL),
    "both names": ({"usage": OPENAI | {"input_tokens": 1, "output_tokens": 1}}, ALL),
    "no usage": ({"choices": [], "usage": None}, NONE),
    "usage of another kind": ({"usage": {"prompt_tokens": "many", "completion_tokens": None}}, NONE),
}
STREAMED: dict[str, tuple[bytes, Counts]] = {
    "chat": (CHAT_STREAM, ALL),
    "growing": (GROWING, (100, 7, None)),
    "messages": (MESSAGES_STREAM, ALL),
    "messages of vLLM": (VLLM_MESSAGES_STREAM, (100, 7, None)),
    "responses": (RESPONSES_STREAM, ALL),
    "no usage": (events({"choices": [{}], "usage": None}), NONE),
}


@dataclass
class Scripted:
    """An engine whose every answer is given, compressed only for those who ask for it, as aiohttp and uvicorn do."""

    body: bytes = b"{}"
    kind: str = "application/json"
    pieces_bytes: int = 1_000_000
    status: int = 200
    encodings: list[str] = field(default_factory=list)  # that it was asked for
    ignores: bool = False  # compresses unasked
    port: int = 0

    async def handle(self, request: web.Request) -> web.StreamResponse:
        await request.read()
        asked = request.headers.get("accept-encoding", "")
        self.encodings.append(asked)
        compress = self.ignores or "gzip" in asked
        body = gzip.compress(self.body) if compress else self.body
        headers = {"content-type": self.kind} | ({"content-encoding": "gzip"} if compress else {})
        response = web.StreamResponse(status=self.status, headers=headers)
        await response.prepare(request)
        for at in range(0, len(body), self.pieces_bytes):
            await response.write(body[at : at + self.pieces_bytes])
            await asyncio.sleep(0)
        await response.write_eof()
        return response


@asynccontextmanager
async def serving(engine: Scripted) -> AsyncIterator[Scripted]:
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", engine.handle)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, HOST, 0).start()
        engine.port = int(runner.addresses[0][1])
        yield engine
    finally:
        await runner.cleanup()


@dataclass(frozen=True)
class Setup:
    """A running Envoy before engines of which the first is named first."""

    port: int
    logged: asyncio.Queue[Any]

    async def ask(self, path: str = PATH, headers: dict[str, str] | None = None, **options: Any) -> httpx2.Response:
        """A request as this client sends it, `accept-encoding` included."""
        async with httpx2.AsyncClient(timeout=60.0, trust_env=False, **options) as client:
            return await client.post(f"http://{HOST}:{self.port}{path}", content=CHAT, headers=headers)

    async def outcome(self) -> Outcome:
        """What Envoy logs of the next request."""
        async with asyncio.timeout(60):
            while True:
                entry = await self.logged.get()
                if isinstance(entry, Outcome):
                    return entry


@asynccontextmanager
async def running(folder: Path, engines: Sequence[Scripted], **changes: Any) -> AsyncIterator[Setup]:
    logged: asyncio.Queue[Any] = asyncio.Queue()
    async with AsyncExitStack() as stack:
        for engine in engines:
            await stack.enter_async_context(serving(engine))
        cluster = "i0" if changes.get("shape") is Shape.INSTANCE else "pool"
        named = [f"{HOST}:{engine.port}" for engine in engines]
        worker = await stack.enter_async_context(naming_service(cluster, named, logged=logged))
        settings = EnvoySettings(
            upstreams=tuple(Upstream(f"i{number}", (HOST, each.port)) for number, each in enumerate(engines)),
            workers=((HOST, worker),),
            listen=(HOST, free_port()),
            admin=(HOST, free_port()),
            **{"message_timeout_s": 30.0} | changes,
        )
        envoy = EnvoyProcess(bootstrap(settings), folder)
        stack.callback(envoy.stop)
        await asyncio.to_thread(envoy.start)
        await _healthy(envoy)
        yield Setup(settings.listen[1], logged)


def counts(outcome: Outcome) -> Counts:
    return outcome.prompt_tokens, outcome.completion_tokens, outcome.cached_tokens


async def test_every_apis_usage_is_read_from_whole_answers(tmp_path: Path) -> None:
    """In one piece and in pieces; a client that takes gzip gets plain JSON, for its usage could not be read."""
    engine, read = Scripted(), {}
    async with running(tmp_path, [engine]) as setup:
        for name, (value, _) in WHOLE.items():
            for engine.pieces_bytes in (1_000_000, 7):
                engine.body = json.dumps(value).encode()
                assert (await setup.ask()).json() == value
                read[name, engine.pieces_bytes] = counts(await setup.outcome())
    assert read == {(name, size): expected for name, (_, expected) in WHOLE.items() for size in (1_000_000, 7)}
    assert set(engine.encodings) == {""}


@pytest.mark.parametrize("pieces_bytes", [1_000_000, 1_000, 1])
async def test_every_apis_usage_is_read_from_streams_cut_anywhere(pieces_bytes: int, tmp_path: Path) -> None:
    """The last event of a Responses stream is longer than Envoy's own limit of 8 KiB."""
    engine, read = Scripted(kind="text/event-stream", pieces_bytes=pieces_bytes), {}
    table = {name: case for name, case in STREAMED.items() if len(case[0]) / pieces_bytes < 50_000}
    async with running(tmp_path, [engine]) as setup:
        for name, (engine.body, _) in table.items():
            assert (await setup.ask()).content == engine.body
            read[name] = counts(await setup.outcome())
    assert read == {name: expected for name, (_, expected) in table.items()}


@pytest.mark.parametrize("kind", ["application/json; charset=utf-8", "text/event-stream; charset=utf-8"])
async def test_what_is_compressed_unasked_passes_unharmed_and_uncounted(kind: str, tmp_path: Path) -> None:
    """Unknown stays unknown."""
    engine = Scripted(body=json.dumps(WHOLE["chat"][0]).encode(), kind=kind, ignores=True)
    async with running(tmp_path, [engine]) as setup:
        answer = await setup.ask()
        assert (answer.content, answer.headers["content-encoding"]) == (engine.body, "gzip")
        outcome = await setup.outcome()
    assert counts(outcome) == NONE
    assert outcome.features is not None


@pytest.mark.parametrize("stream", [False, True])
async def test_the_switches_leave_answers_and_encodings_alone(stream: bool, tmp_path: Path) -> None:
    body = CHAT_STREAM if stream else b'{"usage": {"prompt_tokens": 5}}'
    engine = Scripted(body, "text/event-stream" if stream else "application/json")
    async with running(tmp_path, [engine], json_usage=False, sse_usage=False) as setup:
        answer = await setup.ask(headers={"accept-encoding": "gzip"})
        assert (answer.content, answer.headers["content-encoding"]) == (body, "gzip")
        assert counts(await setup.outcome()) == NONE
    assert engine.encodings == ["gzip"]


@pytest.mark.parametrize("shape", Shape)
async def test_over_http_2_an_entry_tells_all_of_a_request(shape: Shape, tmp_path: Path) -> None:
    engine = Scripted(CHAT_STREAM, "text/event-stream")
    async with running(tmp_path, [engine], shape=shape) as setup:
        answer = await setup.ask(http2=True, http1=False)
        assert (answer.http_version, answer.content) == ("HTTP/2", CHAT_STREAM)
        outcome = await setup.outcome()
    assert counts(outcome) == ALL
    assert (outcome.address, outcome.status, outcome.attempts) == (f"{HOST}:{engine.port}", 200, 1)
    assert outcome.flags == ()
    assert outcome.features is not None
    assert outcome.features.instance_key == "i"
    assert outcome.ttft_s is not None
    assert outcome.routing_s is not None
    assert 0.0 < outcome.routing_s <= outcome.ttft_s <= outcome.duration_s


async def test_after_a_retry_usage_and_address_are_those_of_the_answer_that_the_client_got(tmp_path: Path) -> None:
    """A refusal's own counts are not the answer's."""
    full = Scripted(json.dumps({"usage": {"prompt_tokens": 1, "completion_tokens": 1}}).encode(), status=503)
    well = Scripted(json.dumps({"usage": OPENAI | {"prompt_tokens_details": None}}).encode())
    async with running(tmp_path, [full, well]) as setup:
        assert (await setup.ask()).status_code == 200
        outcome = await setup.outcome()
    assert counts(outcome) == (100, 7, None)
    assert (outcome.attempts, outcome.address) == (2, f"{HOST}:{well.port}")


async def test_a_client_that_hangs_up_is_told_by_a_flag(tmp_path: Path) -> None:
    """An answer of 100,000 events of a byte each is cut off after its first."""
    engine = Scripted(b"data: {}\n\n" * 100_000, "text/event-stream", pieces_bytes=10)
    async with running(tmp_path, [engine]) as setup:
        async with (
            httpx2.AsyncClient(timeout=60.0, trust_env=False) as client,
            client.stream("POST", f"http://{HOST}:{setup.port}{PATH}", content=CHAT) as answer,
        ):
            await anext(answer.aiter_raw())
        outcome = await setup.outcome()
    assert "downstream_connection_termination" in outcome.flags
    assert counts(outcome) == NONE
