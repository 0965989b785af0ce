"""Two `extproc serve` processes at one Redis: a request that one routed counts at the other."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc.aio
import orjson

from extproc.adapters.http_client import Answer, HttpClient
from extproc.adapters.registry import Registry
from extproc.demo.processes import Child, wait_for_line
from tests.core.builders import instance
from tests.processes import Processes
from tests.redis_server import RedisServer
from tests.server.test_service import body, headers, process

LONG_S = 30.0  # never reached by a machine that works


async def serve(processes: Processes, name: str, url: str) -> tuple[Child, int, str]:
    """A router process, the port where Envoy asks it, and where its pages are."""
    anywhere = "127.0.0.1:0"
    arguments = ("--listen", anywhere, "--metrics-listen", anywhere, "--drain-s", "0", "--redis-url", url)
    child = await processes.start_extproc(name, "serve", *arguments)
    found = await wait_for_line(child, r"ext_proc on port (\d+), pages on port (\d+)", LONG_S)
    return child, int(found[1]), f"http://127.0.0.1:{found[2]}"


async def page(http: HttpClient, url: str) -> bytes:
    answer = await http.get(url)
    assert isinstance(answer, Answer)
    return answer.body


async def row(http: HttpClient, pages: str) -> dict[str, Any]:
    """What a router knows of the only instance."""
    return next(iter(orjson.loads(await page(http, f"{pages}/fleet"))), {})


async def test_a_request_of_one_process_counts_at_the_other_until_it_ends_or_its_router_dies(tmp_path: Path) -> None:
    """A stream that ends gives it back, and so does the lease of a router that was killed."""
    with RedisServer("valkey", tmp_path) as server:
        async with Processes(tmp_path) as processes, HttpClient() as http, Registry(server.url) as registry:
            await registry.publish(instance("a"), ttl_s=1000.0)
            first, port, _ = await serve(processes, "first", server.url)
            _, _, pages = await serve(processes, "second", server.url)

            async def until(holds: Callable[[dict[str, Any]], bool]) -> None:
                async with asyncio.timeout(LONG_S):
                    while not holds(await row(http, pages)):  # noqa: ASYNC110
                        await asyncio.sleep(0.02)

            async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
                for ending in ("cancelled", "killed"):
                    call = process(channel)
                    for message in (headers(), body()):
                        await call.write(message)
                        assert await call.read()
                    await until(lambda seen: (seen.get("peers"), seen.get("in_flight")) == (1, 0))
                    metrics = await page(http, f"{pages}/metrics")
                    assert b"extproc_peers 1.0" in metrics
                    assert b"extproc_peer_requests 1.0" in metrics
                    if ending == "cancelled":
                        call.cancel()
                    else:
                        first.process.kill()
                    await until(lambda seen: seen["peers"] == 0)
                metrics = await page(http, f"{pages}/metrics")
                assert b"extproc_peers 0.0" in metrics
                assert b"extproc_peers_expired_total 1.0" in metrics
