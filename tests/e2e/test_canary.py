"""What clients say is found nowhere but at the engine: not in logs, pages, metrics, Envoy's statistics, or Redis."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

import orjson
import pytest
import redis.asyncio as aioredis

from extproc.adapters.http_client import Answer
from extproc.cli import main
from extproc.demo.stack import MODEL
from tests.control.parts import raw
from tests.e2e.conftest import EQUALS, Fleet, StartFleet
from tests.e2e.eventually import eventually
from tests.e2e.secure import PATH, running
from tests.otlp_receiver import Receiver

CANARY = "Kanarienvogel-7f3a"
LONG = (CANARY + " ") * 400  # blocks of a prefix, and a prompt that is learned


def bodies(model: str) -> list[tuple[str, bytes]]:
    """The canary wherever a client may put text, in JSON and in what is none."""
    said = {"role": "user", "content": LONG}
    tool = {"type": "function", "function": {"name": "f", "description": CANARY, "parameters": {}}}
    chat = {"model": model, "max_tokens": 4}
    whole = [
        (PATH, chat | {"messages": [said]}),
        (PATH, chat | {"messages": [said, {"role": "assistant", "content": LONG}, said], "user": CANARY}),
        (PATH, chat | {"messages": [{"role": "system", "content": [{"type": "text", "text": LONG}]}]}),
        (PATH, chat | {"messages": [said], "tools": [tool], "stop": CANARY, "stream": True}),
        (PATH, chat | {"messages": CANARY}),
        (PATH, {"model": model, "messages": [said], "max_tokens": CANARY}),
        (PATH, chat | {"messages": [{"role": CANARY, "content": {"x": CANARY}}]}),
        ("/v1/completions", chat | {"prompt": LONG}),
        ("/v1/embeddings", {"model": model, "input": [LONG, CANARY]}),
        ("/v1/messages", chat | {"messages": [said], "system": LONG}),
        ("/v1/responses", chat | {"input": LONG}),
    ]
    broken = [b'{"model": "m", "messages": "' + CANARY.encode(), CANARY.encode(), b'{"' + CANARY.encode() + b'": \xff}']
    return [(path, orjson.dumps(body)) for path, body in whole] + [(PATH, body) for body in broken]


async def test_a_canary_is_in_no_log_page_or_statistic_at_the_level_debug(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The service in this process, all its loggers wide open."""
    caplog.set_level(logging.DEBUG)
    async with running(tmp_path) as secured:
        await secured.healthy()
        model = secured.made.fleet.members()[0].instance.models[0]
        for path, body in bodies(model):
            await raw(secured.port, "POST", path, f"x-session-id: {CANARY}\r\n", body)
        observer = secured.observer
        shown = [orjson.dumps(observer.recent()).decode(), observer.page().decode()]
        shown += [repr(asdict(found)) for each in observer.recent() if (found := observer.explain(each["request"]))]
        assert len(observer.recent()) > 5
        shown += [secured.envoy.page(page) for page in ("/stats", "/clusters", "/config_dump")]
        shown += [secured.envoy.log.read_text(), caplog.text]
        assert any(CANARY.encode() in body for *_, body in secured.engine.seen)
        assert [text[:200] for text in shown if CANARY in text] == []


async def watched(url: str, heard: list[str]) -> None:
    """All commands that a server gets."""
    async with aioredis.from_url(url) as client, client.monitor() as monitor:  # type: ignore[no-untyped-call]
        async for command in monitor.listen():
            heard.append(str(command["command"]))


async def dumped(url: str) -> bytes:
    """All values of a server as it would save them; short ones are not compressed."""
    async with aioredis.from_url(url) as client:
        return b"".join([key + (await client.dump(key) or b"") for key in await client.keys("*")])


async def test_a_canary_is_in_no_log_page_or_key_of_a_whole_fleet(start_fleet: StartFleet, tmp_path: Path) -> None:
    """Agent, service, Envoy, Redis as they are run, all that is sent to Redis, traces and records included."""
    record = tmp_path / "decisions.jsonl"
    tells = ("--log-level", "debug", "--record", str(record), "--record-share", "1", "--trace-share", "1")
    async with (
        Receiver() as receiver,
        start_fleet(EQUALS, serve_flags=(*tells, "--otlp-endpoint", receiver.url)) as fleet,
    ):
        heard: list[str] = []
        watching = asyncio.create_task(watched(fleet.redis.url, heard))
        await eventually(lambda: _count(heard), bool)
        for path, body in bodies(MODEL):
            await fleet.http.post_json(f"{fleet.stack.routed_url}{path}", body)
        before = len(heard)
        await eventually(lambda: _count(heard), lambda count: count > before + 200)  # learned prefixes are written
        assert "bookings" in "".join(heard)
        shown = [await fleet.metrics(), (await dumped(fleet.redis.url)).decode("latin-1"), "\n".join(heard)]
        shown += await _pages(fleet)
        watching.cancel()
        with suppress(asyncio.CancelledError):
            await watching
        assert main(["explain", "--record", str(record)]) == 0
    logs = written(tmp_path)
    assert len(logs) > 3
    assert logs["serve.log"].count(b"extproc.decision decided reply=") > 5
    assert logs[record.name].count(b'"reply":"routed"') > 5
    assert sum(span.attributes.get("extproc.reply") == "routed" for span in receiver.spans) > 5
    assert CANARY.encode() not in receiver.bodies
    assert [name for name, text in logs.items() if CANARY.encode() in text] == []
    assert [text[:200] for text in shown if CANARY in text] == []


def written(folder: Path) -> dict[str, bytes]:
    """All files under a folder: logs, configuration, Redis' own."""
    return {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


async def _count(heard: list[str]) -> int:
    return len(heard)


async def _pages(fleet: Fleet) -> list[str]:
    pages = []
    for page in ("/fleet", "/decisions", "/decisions/last"):
        answer = await fleet.http.get(f"{fleet.stack.pages_url}{page}")
        assert isinstance(answer, Answer)
        pages.append(answer.body.decode())
    assert MODEL in pages[1]
    return pages
