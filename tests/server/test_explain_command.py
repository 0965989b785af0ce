"""`extproc explain` for a request that was not sent, against a real Redis; and what it says when it cannot."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from extproc.adapters.prefix_memory import PrefixMemory
from extproc.adapters.registry import Registry
from extproc.addresses import UnixSocket
from extproc.cli import main
from extproc.core.decide import decide
from extproc.core.reasons.explanation import explain, material
from extproc.core.router import Router
from extproc.core.values.instance import Instance, Lifecycle
from extproc.server.admin import Admin
from extproc.server.prefix_keeper import PrefixKeeper
from extproc.stream.exchange import Exchange
from extproc.stream.messages import RequestBody, RequestHeaders
from extproc.stream.rules import Rules
from tests.core.builders import MODEL, instance, request, router
from tests.redis_server import RedisServer

FAST, SLOW = instance("fast"), instance("slow", hardware="l40s", max_model_len_tokens=4096)
LOADING = instance("new", lifecycle=Lifecycle.LOADING, ready_in_s=20.0)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    with RedisServer("valkey", tmp_path) as running:
        yield running


def publish(server: RedisServer, *instances: Instance, knows: Router | None = None) -> None:
    async def write() -> None:
        async with Registry(server.url) as registry:
            for each in instances:
                await registry.publish(each, ttl_s=600.0)
            if knows is not None:
                await PrefixKeeper(knows, PrefixMemory(registry.link, registry.base)).write()

    asyncio.run(write())


def chat(content: str = "hello", **changes: object) -> bytes:
    return json.dumps({"model": MODEL, "messages": [{"role": "user", "content": content}]} | changes).encode()


def written(tmp_path: Path, body: bytes) -> str:
    path = tmp_path / "request.json"
    path.write_bytes(body)
    return str(path)


def test_a_request_file_is_decided_upon_the_live_fleet(
    server: RedisServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every instance is told of: the choice, the others at their cost, and who cannot serve it."""
    publish(server, FAST, SLOW, LOADING)
    ask = ["explain", "--body", written(tmp_path, chat()), "--redis-url", server.url]
    assert main([*ask, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["chosen"] == "fast"
    assert [each["instance"] for each in told["options"]] == ["fast", "slow"]
    assert [(each["instance"], each["reason"]) for each in told["rejected"]] == [("new", "not_ready")]
    assert told["second"]["decided_by"] == "decode"
    assert main(ask) == 0
    text = capsys.readouterr().out
    assert text.startswith(f"request request.json: chat of {MODEL}, ")
    assert "slow would have cost" in text


def test_a_request_that_nobody_can_serve_is_status_1_with_the_nearest_miss(
    server: RedisServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A script can tell it from one that can be served."""
    publish(server, SLOW)
    assert main(["explain", "--body", written(tmp_path, chat("some words " * 9000)), "--redis-url", server.url]) == 1
    assert "nearest: slow needs " in capsys.readouterr().out


def test_headers_and_limits_count_as_they_do_for_the_service(
    server: RedisServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The class comes by a header that is trusted here too; the limit on requests is the operator's."""
    publish(server, instance("fast", load={"running": 3}))
    ask = ["explain", "--body", written(tmp_path, chat()), "--redis-url", server.url, "--json"]
    assert main([*ask, "--class-header", "x-class", "--header", "X-Class: batch"]) == 0
    assert json.loads(capsys.readouterr().out)["request"]["request_class"] == "batch"
    assert main([*ask, "--header", "X-Class: batch"]) == 0
    assert json.loads(capsys.readouterr().out)["request"]["request_class"] == "interactive"


def test_what_was_learned_of_prefixes_is_known(
    server: RedisServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The memory that a new service begins with."""
    body = chat("a prefix that is worth keeping " * 100)
    knows = router(FAST)
    exchange = Exchange(knows, "1", Rules())
    exchange.receive(RequestHeaders("POST", "/v1/chat/completions", last=False), 0.0, 0.0)
    exchange.receive(RequestBody(body), 0.0, 0.0)
    publish(server, FAST, knows=knows)
    assert main(["explain", "--body", written(tmp_path, body), "--redis-url", server.url, "--json"]) == 0
    (option,) = json.loads(capsys.readouterr().out)["options"]
    assert option["cached_tokens"] > 500
    assert option["cached_source"] == "learned"


async def test_pages_on_a_unix_socket_are_asked_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The socket's path stands in the place of the URL."""
    made, asked = router(FAST, SLOW), request("r")
    snapshot = made.snapshot()
    told = explain(material(asked, decide(asked, snapshot, 0.0, 0.0), snapshot, 0.0))
    pages = Admin(lambda: b"", list, list, lambda name: told if name == "r" else None, dict)
    where = UnixSocket(tmp_path / "pages.sock")
    await pages.start(where)
    try:
        assert await asyncio.to_thread(main, ["explain", "r", "--pages", str(where), "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["chosen"] == "fast"
        assert await asyncio.to_thread(main, ["explain", "another", "--pages", str(where)]) == 1
        gone = f"unix:{tmp_path}/gone.sock"
        assert await asyncio.to_thread(main, ["explain", "r", "--pages", gone]) == 2
        assert f"{gone} does not answer" in capsys.readouterr().err
    finally:
        await pages.stop()


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        ((), 2, "say which request"),
        (("1", "--body", "{file}"), 2, "say which request"),
        (("1", "--pages", "http://127.0.0.1:1"), 2, "does not answer"),
        (("--body", "/does/not/exist.json"), 2, "cannot read"),
        (("--body", "{file}", "--path", "/v1/unknown"), 2, "passed on undecided"),
        (("--body", "{file}", "--header", "nonsense"), 2, "is not NAME:VALUE"),
        (
            (
                "--body",
                "{broken}",
            ),
            2,
            "would be refused with 400",
        ),
        (("--body", "{file}", "--redis-url", "redis://127.0.0.1:1"), 2, "127.0.0.1:1"),
    ],
)
def test_what_cannot_be_explained_is_one_line_that_says_why(
    arguments: tuple[str, ...],
    status: int,
    said: str,
    server: RedisServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Each mistake can be mended by whoever made it."""
    monkeypatch.setenv("EXTPROC_REDIS_URL", server.url)
    broken = tmp_path / "broken.json"
    broken.write_bytes(b"null")
    file = written(tmp_path, chat())
    assert main(["explain", *(each.format(file=file, broken=broken) for each in arguments)]) == status
    error = capsys.readouterr().err.strip()
    assert said in error
    assert len(error.splitlines()) == 1


def test_a_header_that_envoy_strips_is_refused_as_the_trusted_one(capsys: pytest.CaptureFixture[str]) -> None:
    """Whoever names it would wonder why nobody is ever told anything."""
    assert main(["serve", "--explain-header", "x-extproc-debug", "--listen", "127.0.0.1:0"]) == 2
    assert "Envoy strips" in capsys.readouterr().err


@pytest.mark.parametrize(("wanted", "said"), [("last", "no request was decided upon"), ("r-9", "--record FILE")])
async def test_a_request_that_the_service_does_not_know_is_one_line_that_says_why(
    wanted: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """One asks for the last one before there is any, or for one of yesterday."""
    pages = Admin(lambda: b"", list, list, lambda _: None, dict)
    port = await pages.start(("127.0.0.1", 0))
    try:
        status = await asyncio.to_thread(main, ["explain", wanted, "--pages", f"http://127.0.0.1:{port}"])
    finally:
        await pages.stop()
    error = capsys.readouterr().err.strip()
    assert status == 1
    assert said in error
    assert len(error.splitlines()) == 1
