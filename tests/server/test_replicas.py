"""Two `extproc serve` processes at one Redis: a request that one routed counts at the other."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc.aio
import orjson
from envoy.service.ext_proc.v3 import external_processor_pb2 as ext_proc

from extproc.adapters.http_client import Answer, HttpClient
from extproc.adapters.registry import Registry
from extproc.demo.processes import Child, wait_for_line
from tests.core.builders import instance
from tests.processes import Processes
from tests.redis_server import RedisServer
from tests.server.test_service import body, headers, process

LONG_S = 30.0  # never reached by a machine that works


async def serve(processes: Processes, name: str, url: str, *flags: str) -> tuple[Child, int, str]:
    """A router process, the port where Envoy asks it, and where its pages are."""
    anywhere = "127.0.0.1:0"
    arguments = ("--listen", anywhere, "--metrics-listen", anywhere, "--drain-s", "0", "--redis-url", url, *flags)
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


async def test_a_request_that_one_process_holds_is_let_go_when_that_of_another_ends(tmp_path: Path) -> None:
    """The one place is taken elsewhere: seen by the holder, and so is that it is free again."""
    flags = ("--admission", "--max-in-flight", "1", "--class-header", "x-class")
    asked = ext_proc.ProcessingRequest.FromString(headers())
    asked.request_headers.headers.headers.add(key="x-class", raw_value=b"batch")
    with RedisServer("valkey", tmp_path) as server:
        async with Processes(tmp_path) as processes, HttpClient() as http, Registry(server.url) as registry:
            await registry.publish(instance("a"), ttl_s=1000.0)
            _, port, _ = await serve(processes, "first", server.url, *flags)
            _, other_port, pages = await serve(processes, "second", server.url, *flags)
            async with (
                grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel,
                grpc.aio.insecure_channel(f"127.0.0.1:{other_port}") as other_channel,
                asyncio.timeout(LONG_S),
            ):
                first = process(channel)
                for message in (headers(), body()):
                    await first.write(message)
                    await first.read()
                while (await row(http, pages)).get("peers") != 1:  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
                second = process(other_channel)
                for message in (asked.SerializeToString(), body()):
                    await second.write(message)
                    answer = ext_proc.ProcessingResponse.FromString(await second.read())
                assert answer.HasField("override_message_timeout")
                assert orjson.loads(await page(http, f"{pages}/held"))["by_class"]["batch"] == 1
                first.cancel()
                answer = ext_proc.ProcessingResponse.FromString(await second.read())
                assert answer.request_body.response.clear_route_cache
                second.cancel()
