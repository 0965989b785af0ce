"""The simulated engine's HTTP server: vLLM's endpoints over one scheduler that runs in real time."""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from typing import TYPE_CHECKING

import orjson
from aiohttp import HttpVersion11, web

from extproc.core.speeds.profile import profile_for
from extproc.core.values.instance import Lifecycle
from extproc.errors import ConfigError
from extproc.sim.engine import openai_answers, openai_wire, tokenizer
from extproc.sim.engine.babble import Babbler
from extproc.sim.engine.kv_events import TokenChain, publishing
from extproc.sim.engine.loop import EngineLoop
from extproc.sim.engine.metrics import EngineMetrics
from extproc.sim.engine.openai_wire import Ask, RefusedError
from extproc.sim.physics.adapters import BASE
from extproc.sim.physics.blocks import BlockPool, hash_chain
from extproc.sim.physics.request import EngineRequest
from extproc.sim.physics.scheduler import Scheduler

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from extproc.sim.engine.config import EngineConfig

_VERSION = "0.32.0+extproc"
_MAX_BODY_BYTES = 64 << 20
_BACKLOG = 2048  # as uvicorn has it, so that a burst of connections is not refused


class _Answer:
    """One request in work: what it will say, and how the engine counts it."""

    def __init__(self, ask: Ask, answer_id: str, text: bytes, finish_reason: str, request: EngineRequest) -> None:
        self.ask = ask
        self.id = answer_id
        self.created = int(time.time())
        self.text = text
        self.finish_reason = finish_reason
        self.request = request
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def usage(self) -> dict[str, object]:
        """Token counts, once the request is in the batch."""
        request = self.request
        return openai_answers.usage(request.prompt_tokens, request.output_tokens, request.cached_tokens or 0)

    def finish(self) -> None:
        """Wake the handler, if it still waits."""
        if not self.done.done():
            self.done.set_result(None)


class EngineServer:
    """State and handlers of one engine. `lifecycle` says what it is doing; it takes requests when ready."""

    def __init__(self, config: EngineConfig) -> None:
        self.config = config
        self.lifecycle = Lifecycle.LOADING
        profile = profile_for(config.models[0], config.hardware, config.tensor_parallel)
        self.scheduler = Scheduler(
            BlockPool(config.usable_blocks, config.block_size_tokens),
            profile,
            max_num_seqs=config.max_num_seqs,
            max_num_batched_tokens=config.max_num_batched_tokens,
            max_loras=config.max_loras,
            lora_load_s=config.lora_load_s,
        )
        kv_tokens = config.total_blocks * config.block_size_tokens
        cache_config = {
            "block_size": str(config.block_size_tokens),
            "num_gpu_blocks": str(config.total_blocks),
            "kv_cache_size_tokens": str(kv_tokens),
            "kv_cache_max_concurrency": str(kv_tokens / config.context_tokens),
            "cache_dtype": "auto",
            "enable_prefix_caching": "True",
        }
        self.metrics = EngineMetrics(
            self.scheduler, config.models[0], config.context_tokens, cache_config, tells_adapters=bool(config.adapters)
        )
        self.loop = EngineLoop(self.scheduler, self.metrics, config.speed)
        self._babbler = Babbler(config.seed)
        self._answers: set[_Answer] = set()
        self._created = int(time.time())

    def application(self) -> web.Application:
        """The aiohttp application; every refusal becomes an OpenAI error object."""
        app = web.Application(middlewares=[_refusals], client_max_size=_MAX_BODY_BYTES)
        app.router.add_post("/v1/chat/completions", self._chat)
        app.router.add_post("/v1/completions", self._completions)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/health", self._health)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/version", self._version)
        app.router.add_post("/tokenize", self._tokenize)
        app.router.add_post("/reset_prefix_cache", self._reset_prefix_cache)
        app.on_shutdown.append(self._drain)
        return app

    async def _drain(self, app: web.Application) -> None:
        self.lifecycle = Lifecycle.DRAINING

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        return await self._generate(request, chat=True)

    async def _completions(self, request: web.Request) -> web.StreamResponse:
        return await self._generate(request, chat=False)

    async def _generate(self, request: web.Request, *, chat: bool) -> web.StreamResponse:
        if self.lifecycle is not Lifecycle.READY:
            raise openai_wire.unavailable(f"The engine is {self.lifecycle}.")
        ask = openai_wire.parse(await request.read(), chat=chat)
        if ask.model and ask.model not in (*self.config.models, *self.config.adapters):
            raise openai_wire.unknown_model(ask.model)
        openai_wire.check_length(ask, self.config.context_tokens)
        answer = self._begin(ask, request.headers.get("X-Request-Id") or uuid.uuid4().hex)
        self._answers.add(answer)
        try:
            return await (self._stream(request, answer) if ask.stream else self._wait(answer))
        finally:
            self._answers.discard(answer)
            self.loop.abort(answer.request)

    def cut_off(self) -> None:
        """End all running requests now; their connections close."""
        for answer in self._answers:
            answer.done.cancel()

    def _begin(self, ask: Ask, request_id: str) -> _Answer:
        limit = self.config.context_tokens - ask.prompt_tokens
        output, finish_reason = ask.max_tokens or limit, "length"
        if ask.max_tokens is None and not ask.ignore_eos:
            drawn = self._babbler.length(self.config.mean_output_tokens, limit)
            output = min(limit, max(drawn, ask.min_tokens))
            finish_reason = "stop" if output < limit else "length"
        text = self._babbler.answer(output)
        # The answer's blocks are cached like the prompt's: the next turn of the conversation finds both.
        tokens = ask.tokens + text
        adapter = ask.model if ask.model in self.config.adapters else BASE
        # Blocks that an adapter computed are of no use to others.
        salt = ask.salt + b"\0" + adapter.encode() if adapter else ask.salt
        hashes = hash_chain(tokens, self.config.block_size_tokens, salt)
        if self.scheduler.pool.log is not None:
            hashes = TokenChain(hashes, tokens, ask.salt, adapter)
        answer_id = f"{'chatcmpl' if ask.chat else 'cmpl'}-{request_id}"
        engine_request = EngineRequest(answer_id, ask.prompt_tokens, output, hashes, adapter)
        return _Answer(ask, answer_id, text, finish_reason, engine_request)

    async def _wait(self, answer: _Answer) -> web.StreamResponse:
        def on_tokens(count: int, finished: bool) -> None:
            if finished:
                answer.finish()

        self.loop.submit(answer.request, answer.finish_reason, on_tokens)
        await answer.done
        return _json(
            openai_answers.complete(
                answer.ask, answer.id, answer.created, answer.text, answer.finish_reason, answer.usage()
            )
        )

    async def _stream(self, request: web.Request, answer: _Answer) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        if request.version >= HttpVersion11:
            response.enable_chunked_encoding()
        await response.prepare(request)  # the headers leave here, before the first token
        transport = request.transport
        frames = openai_answers.StreamFrames(answer.ask, answer.id, answer.created, answer.text, answer.finish_reason)

        def on_tokens(count: int, finished: bool) -> None:
            data = frames.tokens(count)
            if finished:
                if answer.ask.include_usage:
                    data += frames.usage(answer.usage())
                data += openai_answers.SSE_DONE
                answer.finish()
            # Straight to the socket: waking a task and aiohttp's writer for every token would cost twice as much.
            if transport is not None and not transport.is_closing():
                transport.write(b"%x\r\n%b\r\n" % (len(data), data) if response.chunked else data)

        self.loop.submit(answer.request, answer.finish_reason, on_tokens)
        await answer.done
        await response.write_eof()
        return response

    async def _models(self, request: web.Request) -> web.Response:
        names = self.config.models if self.lifecycle is not Lifecycle.LOADING else ()
        adapters = self.config.adapters if names else ()
        return _json(openai_answers.models(names, self._created, self.config.context_tokens, adapters))

    async def _health(self, request: web.Request) -> web.Response:
        return web.Response(status=200 if self.lifecycle is Lifecycle.READY else 503, text=self.lifecycle)

    async def _metrics(self, request: web.Request) -> web.Response:
        headers = {"Content-Type": "text/plain; version=0.0.4; charset=utf-8"}
        return web.Response(body=self.metrics.page(), headers=headers)

    async def _version(self, request: web.Request) -> web.Response:
        return _json(orjson.dumps({"version": _VERSION}))

    async def _tokenize(self, request: web.Request) -> web.Response:
        body = await request.read()
        tokens = openai_wire.parse(body, chat=b'"messages"' in body).tokens
        return _json(
            orjson.dumps(
                {
                    "count": tokenizer.count(tokens),
                    "max_model_len": self.config.context_tokens,
                    "tokens": tokenizer.to_ids(tokens),
                    "token_strs": None,
                }
            )
        )

    async def _reset_prefix_cache(self, request: web.Request) -> web.Response:
        self.scheduler.pool.reset_cache()
        return web.Response()  # vLLM does not tell either whether running requests prevented it


@web.middleware
async def _refusals(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    try:
        return await handler(request)
    except RefusedError as refused:
        return _json(refused.body(), refused.status)


def _json(body: bytes, status: int = 200) -> web.Response:
    return web.Response(body=body, status=status, content_type="application/json")


@contextlib.asynccontextmanager
async def open_engine(config: EngineConfig) -> AsyncIterator[tuple[EngineServer, int]]:
    """Listen and serve inside the context: gives the server and its port. The start delay is the caller's.

    On exit nothing new is accepted and running requests have `grace_s` to end. Raises ConfigError if the port is
    taken, and what the engine's own task raised if that ended it.
    """
    server = EngineServer(config)
    async with publishing(config.kv_events, server.scheduler.pool), _serving(server) as port:
        yield server, port


@contextlib.asynccontextmanager
async def _serving(server: EngineServer) -> AsyncIterator[int]:
    config = server.config
    runner = web.AppRunner(
        server.application(),
        handler_cancellation=True,
        access_log=None,
        shutdown_timeout=max(config.grace_s, 0.01),  # aiohttp takes 0 for "wait for ever"
    )
    await runner.setup()
    site = web.TCPSite(runner, config.host, config.port, backlog=_BACKLOG)
    try:
        await site.start()
    except OSError as error:
        await runner.cleanup()
        raise ConfigError(
            f"cannot listen on {config.host}:{config.port} ({error.strerror}): choose another --port or --host"
        ) from error
    tasks = [asyncio.create_task(_run(server)), asyncio.create_task(_load(server))]
    try:
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()
        for task in tasks:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
    for result in results:
        if isinstance(result, Exception):
            raise result


async def _run(server: EngineServer) -> None:
    try:
        await server.loop.run()
    except Exception:
        server.lifecycle = Lifecycle.UNHEALTHY
        server.cut_off()
        raise


async def _load(server: EngineServer) -> None:
    await asyncio.sleep(server.config.load_delay_s)
    if server.lifecycle is Lifecycle.LOADING:
        server.lifecycle = Lifecycle.READY
