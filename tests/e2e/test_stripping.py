"""Headers that clients must not set, through a real Envoy: in HTTP/1.1 and HTTP/2, in any case, twice, in trailers."""

from __future__ import annotations

import asyncio
from pathlib import Path

import h2.config
import h2.connection
import h2.events
import pytest

from extproc.core.pairs.hand_over import HEADERS, HandOver
from tests.control.parts import HOST, ScriptedEngine, raw, running_engine
from tests.e2e.secure import CHAT, PATH, Secured, running

Headers = list[tuple[str, str]]


def forged(elsewhere: str, partners: tuple[str, ...] = ()) -> Headers:
    """All that the parts of this project set or believe, as a client would like them."""
    return [
        ("x-upstream-cluster", "extproc"),
        ("x-gateway-destination-endpoint", elsewhere),
        ("x-gateway-destination-endpoint-subset", elsewhere),
        ("x-gateway-destination-endpoint-served", elsewhere),
        ("x-extproc-explanation", "mine"),
        ("x-extproc-instance", "mine"),
        ("x-envoy-original-dst-host", elsewhere),
        ("x-envoy-retry-on", "5xx"),
        ("x-envoy-max-retries", "100"),
        ("x-envoy-upstream-rq-timeout-ms", "1"),
        ("x-envoy-upstream-alt-stat-name", "mine"),
        *((name, elsewhere) for name in partners),
        ("x-forwarded-for", "10.0.0.1"),  # for which Envoy would take the client for one of its own
    ]


async def over_h1(port: int, method: str, headers: Headers, body: bytes) -> int:
    """Each header in three ways of writing its name."""
    ways = [(way(name), value) for name, value in headers for way in (str, str.upper, str.title)]
    text = "".join(f"{name}: {value}\r\n" for name, value in ways)
    return (await raw(port, method, PATH, text, body))[0]


async def over_h2(port: int, method: str, headers: Headers, body: bytes) -> int:
    """Each header twice, and again as a trailer where there is a body."""
    reader, writer = await asyncio.open_connection(HOST, port)
    client = h2.connection.H2Connection(h2.config.H2Configuration(header_encoding="utf-8"))
    client.initiate_connection()
    head = [(":method", method), (":path", PATH), (":scheme", "http"), (":authority", "x")]
    client.send_headers(1, head + headers + headers, end_stream=not body)
    if body:
        client.send_data(1, body)
        client.send_headers(1, headers, end_stream=True)
    writer.write(client.data_to_send())
    try:
        async with asyncio.timeout(60):
            while data := await reader.read(65_536):
                for event in client.receive_data(data):
                    if isinstance(event, h2.events.ResponseReceived):
                        return int(dict(event.headers)[":status"])
        raise AssertionError("no answer")
    finally:
        writer.close()


@pytest.mark.parametrize("stack", [HandOver.LLM_D, HandOver.DYNAMO])
@pytest.mark.parametrize("method", ["POST", "GET"])
@pytest.mark.parametrize("ask", [over_h1, over_h2])
async def test_no_header_of_a_client_passes_for_one_of_ours(
    ask: object, method: str, stack: HandOver, tmp_path: Path
) -> None:
    """With a decision and, once the service is gone, without one; nor does it change how often Envoy tries."""
    assert callable(ask)
    async with running_engine(ScriptedEngine("elsewhere")) as other, running(tmp_path, hand_over=stack) as secured:
        await secured.healthy()
        headers = forged(f"{HOST}:{other.port}", HEADERS[stack])
        body = CHAT if method == "POST" else b""
        assert await ask(secured.port, method, headers, body) == 200
        await secured.service.stop(0.0)
        assert await ask(secured.port, method, headers, body) == 200
        secured.engine.status = 500
        assert await ask(secured.port, method, headers, body) == 500
        _nothing_believed(secured, {name for name, _ in headers}, decided=method == "POST")
        assert len(secured.engine.seen) == 3
        assert not other.seen


def _nothing_believed(secured: Secured, names: set[str], *, decided: bool) -> None:
    first, *rest = [headers for _, _, headers, _ in secured.engine.seen]
    ours = {"x-upstream-cluster"} if decided else set()
    allowed = {"x-forwarded-for"}
    assert names & first.keys() - allowed == ours
    assert not decided or first["x-upstream-cluster"] == "pool"
    for headers in rest:
        assert not names & headers.keys() - allowed
