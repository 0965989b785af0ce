"""What becomes of requests while the service is down, stopped, slow or talking nonsense: open, closed, or in part."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from extproc.control.bootstrap import bootstrap
from extproc.control.scope import Scope, parse_scope
from extproc.control.settings import EnvoySettings, RequestBodies, Shape, Upstream
from extproc.demo.ports import free_port
from extproc.errors import ConfigError
from extproc.stream.messages import RouteTo
from tests.control.http2_client import ask2
from tests.control.misbehaving import WRONG, ends, silent
from tests.control.parts import FEATURES, HOST, Process, ScriptedEngine, naming, raw, running_engine, running_service
from tests.control.test_envoy_behaviour import CHAT, PATH, _healthy
from tests.envoy_process import EnvoyProcess

MESSAGES = "/v1/messages"
TIMEOUT_S = 0.5
# A reply that Envoy cannot use makes it answer by itself; a decision for a cluster that is gone has nowhere to go.
LARGE = "a reply of 64 MiB"
UNUSABLE = {"a header of 1 MiB", LARGE, "another body", "a header with a line break"}
NOWHERE = {"an empty cluster", "a cluster that is none"}
OWN_WORDS = {"an answer of status 0": 200, "an answer of status 99": 200, "an answer of status 999": 999}


@dataclass
class Setup:
    """Two engines of the pool, one in a pool that nobody may reach, and the service as it behaves now."""

    port: int
    pool: list[ScriptedEngine]
    secret: ScriptedEngine
    process: Process

    def reached(self) -> list[bytes]:
        """Bodies that reached the pool since last asked."""
        bodies = [body for engine in self.pool for *_, body in engine.seen]
        for engine in self.pool:
            engine.seen.clear()
        return bodies


@asynccontextmanager
async def beside(folder: Path, process: Process | None, **changes: Any) -> AsyncIterator[Setup]:
    """An Envoy beside a service that behaves like `process`; None: nobody listens."""
    async with AsyncExitStack() as stack:
        first, second, secret = [
            await stack.enter_async_context(running_engine(ScriptedEngine(name))) for name in ("a", "b", "s")
        ]
        setup = Setup(0, [first, second], secret, process or ends)

        async def now(stream: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
            async for reply in setup.process(stream, context):
                yield reply

        worker = free_port() if process is None else await stack.enter_async_context(running_service(now))
        named = [("a", first, "pool"), ("b", second, "pool"), ("s", secret, "secret")]
        settings = EnvoySettings(
            upstreams=tuple(Upstream(name, (HOST, engine.port), cluster) for name, engine, cluster in named),
            listen=(HOST, free_port()),
            admin=(HOST, free_port()),
            **{"message_timeout_s": TIMEOUT_S, "workers": ((HOST, worker),)} | changes,
        )
        envoy, setup.port = EnvoyProcess(bootstrap(settings), folder), settings.listen[1]
        stack.callback(envoy.stop)
        await asyncio.to_thread(envoy.start)
        if process is not None:
            await _healthy(envoy)
        yield setup


@pytest.mark.parametrize("shape", Shape)
async def test_whatever_the_service_says_a_post_reaches_an_instance_whole(shape: Shape, tmp_path: Path) -> None:
    """Within the message timeout, by Envoy's own balancing; nothing but a reply that forbids it is in the way."""
    async with beside(tmp_path, silent, shape=shape) as setup:
        wrong, slowest_s = {}, 0.0
        for name, setup.process in WRONG.items():
            began_s = time.monotonic()
            status, _, answer = await raw(setup.port, "POST", PATH, body=CHAT)
            slowest_s = max(slowest_s, time.monotonic() - began_s)
            reached = setup.reached()
            if (status, answer, reached) != (200, CHAT, [CHAT]):
                wrong[name] = (status, reached)
        wrong.setdefault(LARGE, (503, []))  # on a busy machine it is not there within the timeout: as if it were silent
        refused = dict.fromkeys(UNUSABLE | NOWHERE, (503, []))
        assert wrong == refused | {name: (status, []) for name, status in OWN_WORDS.items()}
        assert slowest_s < 20 * TIMEOUT_S


@pytest.mark.parametrize("mode", RequestBodies)
async def test_a_service_that_is_down_is_gone_around_in_each_body_mode(mode: RequestBodies, tmp_path: Path) -> None:
    """In full duplex Envoy cannot go on once it has asked, so it must not ask whom the health check found dead."""
    async with beside(tmp_path, None, body_mode=mode) as setup:
        for _ in range(100):  # until the first health check has failed
            status, _, answer = await raw(setup.port, "POST", PATH, body=CHAT)
            if status == 200:
                break
            await asyncio.sleep(0.1)
        assert (status, answer, setup.reached()) == (200, CHAT, [CHAT])
        for _ in range(10):
            assert (await raw(setup.port, "POST", PATH, body=CHAT))[0] == 200


async def test_closed_each_of_these_is_503_in_the_shape_of_the_api(tmp_path: Path) -> None:
    async with beside(tmp_path, silent, fail_closed=True, message_timeout_s=0.1) as setup:
        for name, setup.process in WRONG.items():
            if name in OWN_WORDS:
                continue
            for path in (PATH, MESSAGES):
                status, head, answer = await raw(setup.port, "POST", path, body=CHAT)
                assert status == 503, name
                assert b"content-type: application/json\r\n" in head, name
                error = json.loads(answer)
                if path == MESSAGES:
                    assert (error["type"], error["error"]["type"]) == ("error", "overloaded_error"), name
                else:
                    code = "gateway_error" if name in NOWHERE else "router_unavailable"
                    assert (error["error"]["type"], error["error"]["code"]) == ("server_error", code), name
        assert not setup.reached()


FORGED: tuple[tuple[tuple[str, str], ...], ...] = (
    (("x-upstream-cluster", "secret"),),
    (("x-upstream-cluster", "nowhere"), ("x-upstream-cluster", "secret")),
    (("x-upstream-cluster", "secret,pool"), ("x-extproc-instance", "s")),
    (("x-gateway-destination-endpoint", "{secret}"),),
    (("x-extproc-alternatives", "{secret}"), ("envoy.lb", "{secret}")),
)
STATES: dict[str, Process | None] = {
    "down": None,
    "silent": silent,
    "nonsense": ends,
    "well": naming(lambda: RouteTo("pool", (), FEATURES)),
}


CELLS = [(state, closed, Shape.POOL) for state in STATES for closed in (False, True)]


@pytest.mark.parametrize(
    ("state", "fail_closed", "shape"), [*CELLS, ("down", False, "instance"), ("well", True, "instance")]
)
async def test_a_forged_header_chooses_nothing_in_any_state(
    state: str, fail_closed: bool, shape: Shape, tmp_path: Path
) -> None:
    """Every header, method and version of HTTP; a refusal is all that may come of it beside the pool."""
    changes = {"message_timeout_s": 10.0 if state == "well" else 0.05}
    async with beside(tmp_path, STATES[state], fail_closed=fail_closed, shape=shape, **changes) as setup:
        refused = fail_closed and state != "well"
        for forged in FORGED:
            pairs = [(name, value.format(secret=f"{HOST}:{setup.secret.port}")) for name, value in forged]
            lines = "".join(f"{name.title()}: {value}\r\n" for name, value in pairs)
            for method, path, body in (("POST", PATH, CHAT), ("GET", "/v1/models", b""), ("POST", "/other", CHAT)):
                expected = 503 if refused and path == PATH else 200
                old = (await raw(setup.port, method, path, lines, body, version="1.0"))[0]
                now = (await raw(setup.port, method, path, lines, body))[0]
                new = (await ask2(setup.port, method, path, pairs, body))[0]
                assert (old, now, new) == (expected, expected, expected), (forged, method, path)
        assert not setup.secret.seen
        assert len(setup.reached()) == len(FORGED) * 3 * (2 if refused else 3)


async def test_a_service_that_is_stopped_costs_no_more_than_the_timeout(tmp_path: Path) -> None:
    """Its kernel goes on to take connections: nobody reads from them."""
    with socket.create_server((HOST, 0)) as stopped:
        async with beside(tmp_path, None, workers=(stopped.getsockname(),)) as setup:
            for _ in range(10):
                assert (await raw(setup.port, "POST", PATH, body=CHAT))[0] == 200


SCOPES = (Scope("closed.example"), Scope("*.corp.example", "/batch"), Scope(path="/strict/"))
HOSTS = {
    ("x", PATH): 200,
    ("x", "/strict" + PATH): 503,
    ("x", "/strictly" + PATH): 200,
    ("x", "/strict/v1/models"): 200,
    ("x", "//strict" + PATH): 503,
    ("x", "/%73trict" + PATH): 503,
    ("x", "/loose/../strict/./v1//chat/completions"): 503,
    ("x", "/strict%2Fv1%2fchat/completions"): 503,
    ("x", "/strict/v1/chat/completion%73"): 503,
    ("closed.example", PATH): 503,
    ("CLOSED.example:8080", PATH + "?a=b"): 503,
    ("sub.closed.example", PATH): 200,
    ("a.corp.example", PATH): 200,
    ("a.corp.example", "/batch" + PATH): 503,
    ("a.b.corp.example", "/batch" + PATH): 503,
    ("a.corp.example", "/strict" + PATH): 503,
    ("corp.example", "/batch" + PATH): 200,
}


async def test_parts_of_the_traffic_are_closed_and_the_rest_is_open(tmp_path: Path) -> None:
    """By domain, by the beginning of the path, or by both."""
    async with beside(tmp_path, None, fail_closed_at=SCOPES) as setup:
        seen = {}
        for host, path in HOSTS:
            head = f"POST {path} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\ncontent-length: {len(CHAT)}\r\n\r\n"
            reader, writer = await asyncio.open_connection(HOST, setup.port)
            writer.write(head.encode() + CHAT)
            async with asyncio.timeout(30):
                seen[host, path] = int((await reader.read()).split(b" ", 2)[1])
            writer.close()
        assert seen == HOSTS


async def test_a_decision_is_followed_where_the_rest_would_be_closed(tmp_path: Path) -> None:
    async with beside(tmp_path, STATES["well"], fail_closed_at=SCOPES, message_timeout_s=10.0) as setup:
        assert (await raw(setup.port, "POST", "/strict" + PATH, body=CHAT))[0] == 200
        assert setup.reached() == [CHAT]


@pytest.mark.parametrize("text", ["a b", "*", "*.", "-a", "a..b/../\n", "x/é", "a,b", "http://a"])
def test_what_is_no_part_of_the_traffic_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_scope(text)
