"""What the generated configuration does in a real Envoy, with the service down and with one that decides."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from socket import socket
from typing import Any

import pytest

from extproc.adapters.http_client import Answer, HttpClient
from extproc.control.bootstrap import bootstrap
from extproc.control.settings import EnvoySettings, Shape, Upstream
from extproc.core.pairs.hand_over import HEADERS, HandOver
from extproc.demo.ports import free_port
from tests.control.parts import HOST, ScriptedEngine, naming_service, raw, running_engine
from tests.envoy_process import EnvoyProcess

CHAT = b'{"model": "m", "messages": []}'
PATH = "/v1/chat/completions"

FORGED = (
    "x-upstream-cluster: secret\r\n",
    "X-Upstream-Cluster: secret\r\n",
    "X-UPSTREAM-CLUSTER: secret\r\nx-upstream-cluster: nowhere\r\n",
    "x-upstream-cluster: secret,pool\r\nx-extproc-instance: secret\r\n",
)


Headers = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Setup:
    """A running Envoy, the pool's engines, and one that only a decision may choose."""

    envoy: EnvoyProcess
    port: int
    pool: tuple[ScriptedEngine, ScriptedEngine]
    secret: ScriptedEngine

    async def post(self, body: bytes = CHAT, path: str = PATH) -> tuple[int, Any]:
        """Status and JSON of a POST."""
        async with HttpClient(timeout_s=60.0) as client:
            answer = await client.post_json(f"http://{HOST}:{self.port}{path}", body)
        assert isinstance(answer, Answer), answer
        return answer.status, answer.body


@asynccontextmanager
async def running(
    folder: Path, *, decides: bool = False, host: str = HOST, headers: Headers = (), **changes: Any
) -> AsyncIterator[Setup]:
    """Two engines in the pool `pool`, one in the pool `secret`.

    `decides`: a service is up and names the pool's second engine, then its first. `host`: how the upstreams are told.
    `headers`: more that the decision sets.
    """
    async with AsyncExitStack() as stack:
        engines = [await stack.enter_async_context(running_engine(ScriptedEngine(name))) for name in ("a", "b", "s")]
        first, second, secret = engines
        worker = free_port()
        if decides:
            named = [f"{HOST}:{engine.port}" for engine in (second, first)]
            worker = await stack.enter_async_context(naming_service("pool", named, headers))
        settings = EnvoySettings(
            upstreams=(
                Upstream("a", (host, first.port)),
                Upstream("b", (host, second.port)),
                Upstream("s", (host, secret.port), "secret"),
            ),
            workers=((HOST, worker),),
            listen=(HOST, free_port()),
            admin=(HOST, free_port()),
            **{"message_timeout_s": 30.0} | changes,
        )
        envoy = EnvoyProcess(bootstrap(settings), folder)
        stack.callback(envoy.stop)
        await asyncio.to_thread(envoy.start)
        if decides:
            await _healthy(envoy)
        yield Setup(envoy, settings.listen[1], (first, second), secret)


async def _healthy(envoy: EnvoyProcess) -> None:
    """Wait until Envoy's own check has found the service."""
    for _ in range(1200):
        if (await asyncio.to_thread(envoy.stats, "cluster.extproc.membership_healthy")).popitem()[1]:
            return
        await asyncio.sleep(0.05)
    raise AssertionError("the service is not healthy in Envoy's eyes")


@pytest.mark.parametrize("shape", Shape)
async def test_fail_open_balances_a_post_with_a_body_over_the_pool(shape: Shape, tmp_path: Path) -> None:
    async with running(tmp_path, shape=shape) as setup:
        for body in (CHAT, CHAT + b" " * 2_000_000):
            status, _, answer = await raw(setup.port, "POST", PATH, body=body)
            assert status == 200
            assert answer.endswith(body[-100:])
        assert [len(engine.seen) for engine in setup.pool] != [0, 0]
        assert not setup.secret.seen


@pytest.mark.parametrize("shape", Shape)
@pytest.mark.parametrize("decides", [False, True])
async def test_a_forged_header_never_chooses_an_upstream(shape: Shape, decides: bool, tmp_path: Path) -> None:
    async with running(tmp_path, shape=shape, decides=decides) as setup:
        forged = [*FORGED, f"x-gateway-destination-endpoint: {HOST}:{setup.secret.port}\r\n"]
        for headers in forged:
            assert (await raw(setup.port, "POST", PATH, headers, CHAT))[0] == 200
            assert (await raw(setup.port, "GET", "/v1/models", headers))[0] == 200
        assert not setup.secret.seen
        seen = [headers for engine in setup.pool for _, _, headers, _ in engine.seen]
        assert len(seen) == 2 * len(forged)
        kept = {name for headers in seen for name in headers}
        assert not {"x-gateway-destination-endpoint", "x-extproc-instance"} & kept
        assert {headers["x-upstream-cluster"] for headers in seen if "x-upstream-cluster" in headers} <= {"pool"}


async def test_fail_closed_refuses_completions_and_nothing_else(tmp_path: Path) -> None:
    async with running(tmp_path, fail_closed=True) as setup:
        for headers in ("", FORGED[0], "expect: 100-continue\r\n"):
            status, head, answer = await raw(setup.port, "POST", PATH, headers, CHAT)
            if status == 100:  # Envoy's own, the answer follows
                head, _, answer = answer.partition(b"\r\n\r\n")
                status = int(head.split(b" ", 2)[1])
            assert status == 503
            assert b"content-type: application/json\r\n" in head
            error = json.loads(answer)["error"]
            assert (error["type"], error["code"], error["param"]) == ("server_error", "router_unavailable", None)
        assert (await setup.post(b""))[0] == 503
        assert not any(engine.seen for engine in (*setup.pool, setup.secret))
        assert (await raw(setup.port, "GET", "/v1/models"))[0] == 200


@pytest.mark.parametrize(("host", "fail_closed"), [(HOST, False), (HOST, True), ("localhost", False)])
async def test_a_decision_goes_to_the_first_named_endpoint(host: str, fail_closed: bool, tmp_path: Path) -> None:
    async with running(tmp_path, decides=True, host=host, fail_closed=fail_closed) as setup:
        for _ in range(10):
            assert (await setup.post())[0] == 200
        assert [len(engine.seen) for engine in setup.pool] == [0, 10]


async def test_a_full_first_choice_is_retried_on_the_second_and_not_ejected(tmp_path: Path) -> None:
    async with running(tmp_path, decides=True) as setup:
        setup.pool[1].status = 503
        for _ in range(10):
            assert await setup.post() == (200, CHAT)
        assert [len(engine.seen) for engine in setup.pool] == [10, 10]
        assert setup.envoy.stats("cluster.pool.outlier_detection.ejections_active") == {
            "cluster.pool.outlier_detection.ejections_active": 0
        }


async def test_a_body_over_the_limit_is_413_in_the_shape_of_the_api(tmp_path: Path) -> None:
    async with running(tmp_path, decides=True, body_limit_bytes=500_000) as setup:
        assert (await setup.post(b" " * 490_000))[0] == 200
        status, answer = await setup.post(b" " * 510_000)
        assert status == 413
        assert json.loads(answer)["error"]["code"] == "request_too_large"
        status, answer = await setup.post(b" " * 510_000, "/v1/messages?beta=true")
        assert status == 413
        assert (json.loads(answer)["type"], json.loads(answer)["error"]["type"]) == ("error", "request_too_large")
        assert setup.pool[1].seen[-1][3] == b" " * 490_000


async def test_http_1_0_is_served(tmp_path: Path) -> None:
    async with running(tmp_path, decides=True) as setup:
        status, _, answer = await raw(setup.port, "POST", PATH, body=CHAT, version="1.0")
        assert (status, answer) == (200, CHAT)


async def test_envoys_own_failures_have_the_shape_of_the_api_and_engines_answers_do_not(tmp_path: Path) -> None:
    async with running(tmp_path) as setup:
        for engine in setup.pool:
            engine.status = 502
        assert await setup.post(b"<h1>not ours</h1>") == (502, b"<h1>not ours</h1>")
    with socket() as refusing:  # bound, so that nobody else takes its port, and never listening
        refusing.bind((HOST, 0))
        nobody = EnvoySettings(
            upstreams=(Upstream("a", refusing.getsockname()),), listen=(HOST, free_port()), admin=(HOST, free_port())
        )
        with EnvoyProcess(bootstrap(nobody), tmp_path):
            status, _, answer = await raw(nobody.listen[1], "POST", PATH, body=CHAT)
            assert status == 503
            assert json.loads(answer)["error"]["code"] == "gateway_error"


async def test_an_upgrade_passes_as_a_get_and_is_refused_as_anything_else(tmp_path: Path) -> None:
    upgrade = "connection: upgrade\r\nupgrade: websocket\r\n"
    async with running(tmp_path, decides=True, fail_closed=True) as setup:
        status, _, answer = await raw(setup.port, "POST", PATH, upgrade, CHAT)
        assert (status, json.loads(answer)["error"]["code"]) == (400, "invalid_upgrade")
        assert not any(engine.seen for engine in setup.pool)
        await raw(setup.port, "GET", "/v1/realtime", upgrade)
        assert [path for engine in setup.pool for _, path, _, _ in engine.seen] == ["/v1/realtime"]


async def test_a_json_answer_larger_than_a_connections_buffer_arrives_whole(tmp_path: Path) -> None:
    async with running(tmp_path, decides=True) as setup:
        setup.pool[1].answer_bytes = 8_000_000
        status, answer = await setup.post()
        assert (status, len(answer)) == (200, 8_000_002)


async def test_two_thousand_slow_requests_are_held_at_once_each_with_its_decision(tmp_path: Path) -> None:
    async with running(tmp_path, decides=True) as setup:
        chosen = setup.pool[1]
        chosen.held = asyncio.Event()
        async with asyncio.TaskGroup() as clients:
            asked = [clients.create_task(raw(setup.port, "POST", PATH, body=CHAT)) for _ in range(2000)]
            for _ in range(1200):
                if len(chosen.seen) == 2000 or any(task.done() for task in asked):
                    break
                await asyncio.sleep(0.05)
            held = len(chosen.seen)
            chosen.held.set()
        assert held == 2000
        assert {task.result()[0] for task in asked} == {200}
        assert not setup.pool[0].seen


PARTNER = (("x-prefiller-host-port", "10.0.0.9:8000"),)
FORGED_PARTNER = "".join(f"{name}: 6.6.6.6:80\r\n{name.upper()}: 6.6.6.6:81\r\n" for name, _ in PARTNER)


async def test_the_partner_of_a_pair_reaches_the_instance_and_no_client_can_name_one(tmp_path: Path) -> None:
    """Whoever names it has the sidecar send a prompt to any address: only a decision may, and Envoy lets it."""
    async with running(tmp_path, decides=True, headers=PARTNER, hand_over=HandOver.LLM_D) as setup:
        status, _, _ = await raw(setup.port, "POST", PATH, FORGED_PARTNER, CHAT)
        assert status == 200
        assert [headers.get("x-prefiller-host-port") for *_, headers, _ in setup.pool[1].seen] == ["10.0.0.9:8000"]
        status, _, _ = await raw(setup.port, "GET", "/v1/models", FORGED_PARTNER)
        assert status == 200
        seen = [headers for engine in setup.pool for method, _, headers, _ in engine.seen if method == "GET"]
        assert len(seen) == 1
        assert "x-prefiller-host-port" not in seen[0]


async def test_without_a_stack_to_hand_over_to_no_other_header_is_let_through(tmp_path: Path) -> None:
    """The service may set what the operator chose and nothing else."""
    async with running(tmp_path, decides=True, headers=PARTNER) as setup:
        await raw(setup.port, "POST", PATH, body=CHAT)
        seen = [headers for engine in setup.pool for *_, headers, _ in engine.seen]
        assert all("x-prefiller-host-port" not in headers for headers in seen)


@pytest.mark.parametrize("stack", [HandOver.LLM_D, HandOver.DYNAMO])
async def test_every_header_of_a_stack_is_stripped_without_a_decision(tmp_path: Path, stack: HandOver) -> None:
    """With the service down."""
    forged = "".join(f"{name}: 7\r\n" for name in HEADERS[stack])
    async with running(tmp_path, hand_over=stack) as setup:
        await raw(setup.port, "POST", PATH, forged, CHAT)
        seen = [headers for engine in setup.pool for *_, headers, _ in engine.seen]
        assert len(seen) == 1
        assert not set(HEADERS[stack]) & seen[0].keys()
