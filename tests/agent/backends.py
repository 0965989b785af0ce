"""A scripted HTTP backend with vLLM's pages, on a real port."""

from __future__ import annotations

import asyncio
from typing import Self

from aiohttp import web

from extproc.demo.ports import free_port


class ScriptedBackend:
    """Answers as its attributes say; set them while it runs. `up` and `down` bind and free the port."""

    def __init__(self) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.health = 200
        self.models = ["tiny"]
        self.running: int | None = 0
        self.waiting = 0
        self.asleep: bool | None = None  # None: it does not tell
        self.started: float | None = 1000.0  # None: it does not tell
        self.work_done: int | None = None
        self.stalled: set[str] = set()  # paths that get no answer
        self.broken: set[str] = set()  # paths that answer rubbish
        self.probes = 0
        self._runner: web.AppRunner | None = None

    async def up(self) -> None:
        """Listen."""
        app = web.Application()
        app.router.add_get("/{path:.*}", self._answer)
        self._runner = web.AppRunner(app, shutdown_timeout=0.01)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self.port, reuse_address=True).start()

    async def down(self) -> None:
        """Close the port and all connections."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def __aenter__(self) -> Self:
        await self.up()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.down()

    async def _answer(self, request: web.Request) -> web.Response:
        path = request.path
        self.probes += path == "/health"
        if path in self.stalled:
            await asyncio.sleep(3600)
        if path in self.broken:
            return web.Response(text="vllm:num_requests_running rubbish\n")
        match path:
            case "/health":
                return web.Response(status=self.health)
            case "/v1/models":
                return web.json_response({"data": [{"id": name, "max_model_len": 4096} for name in self.models]})
            case "/version":
                return web.json_response({"version": "0.32.0"})
            case "/metrics":
                return web.Response(text=self._metrics())
        return web.Response(status=404)

    def _metrics(self) -> str:
        page = "" if self.started is None else f"process_start_time_seconds {self.started}\n"
        if self.asleep is not None:
            page += f'vllm:engine_sleep_state{{engine="0",sleep_state="awake"}} {int(not self.asleep)}\n'
        if self.work_done is not None:
            page += f'vllm:generation_tokens_total{{engine="0"}} {self.work_done}\n'
        if self.running is not None:
            page += f'vllm:num_requests_running{{engine="0"}} {self.running}\n'
            page += f'vllm:num_requests_waiting{{engine="0"}} {self.waiting}\n'
            page += 'vllm:kv_cache_usage_perc{engine="0"} 0.5\n'
        return page
