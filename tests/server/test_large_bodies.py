"""While one body is read elsewhere its own stream waits, and no other one."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc.aio
import pytest

from extproc.api.reading import Unread, abridged, read_prompt, restored
from extproc.core.features import read_text
from extproc.core.router import Router
from extproc.observe.live_gauges import Gauges
from extproc.observe.metrics import Metrics
from extproc.observe.observer import Observer
from extproc.server.ext_proc import ExtProc
from extproc.server.shell import Shell
from extproc.stream.rules import Rules
from tests.core.builders import instance, router
from tests.server.test_service import body, headers

LARGE, SMALL = body("x" * 100_000), body("x")


class Reader:
    """Reads when it is allowed to, as another process would; counts who gave up."""

    def __init__(self) -> None:
        self.begun, self.may_end = asyncio.Event(), asyncio.Event()
        self.given_up = 0

    async def read(self, unread: Unread, salts: Any, _renames: Any) -> Any:
        self.begun.set()
        try:
            await self.may_end.wait()
        except asyncio.CancelledError:
            self.given_up += 1
            raise
        prompt = read_prompt(unread.path, unread.content_type, b"".join(unread.chunks))
        read = read_text(prompt)
        return restored(abridged(prompt, read), {salt: read.chain(salt) for salt in salts(prompt)}, unread)


def served(made: Router, reader: Reader | None) -> ExtProc:
    observer = Observer(Metrics(lambda: Gauges({}, {}, 0.0, {})))
    rules, read = Rules(read_apart_bytes=50_000), reader and reader.read
    return ExtProc(Shell(made, observer, lambda: 0.0, lambda: 0.0, "x-upstream-cluster", rules, read=read))


class Envoy:
    """Says what it is given, as gRPC hands it over, and keeps the replies."""

    def __init__(self, *messages: bytes) -> None:
        self._left = iter(messages)
        self.heard: list[bytes] = []

    async def read(self) -> Any:
        return next(self._left, grpc.aio.EOF)

    async def write(self, reply: bytes) -> None:
        self.heard.append(reply)


async def replies(service: ExtProc, *messages: bytes) -> list[bytes]:
    envoy = Envoy(*messages)
    await service.process(None, envoy)
    return envoy.heard


async def test_other_streams_go_on_while_a_body_is_read() -> None:
    """And the body's own gets the reply that it would have got at once."""
    made, reader = router(instance("a")), Reader()
    service = served(made, reader)
    waiting = asyncio.create_task(replies(service, headers(), LARGE))
    await reader.begun.wait()
    _, small = await replies(service, headers(), SMALL)
    assert b"pool" in small or b"127.0.0.1" in small
    assert not waiting.done()
    reader.may_end.set()
    _, large = await waiting
    assert b"127.0.0.1" in large


async def test_a_client_that_leaves_while_its_body_is_read_leaves_nothing_in_flight() -> None:
    """The reading is given up, and the stream's place is free."""
    made, reader = router(instance("a")), Reader()
    service = served(made, reader)
    waiting = asyncio.create_task(replies(service, headers(), LARGE))
    await reader.begun.wait()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert reader.given_up == 1
    assert made.ledger.in_flight() == {}
    assert service.idle.is_set()


async def test_where_nobody_reads_elsewhere_a_large_body_is_decided_upon_by_its_size() -> None:
    """An ill-assembled service is slow at nothing, and says where requests go."""
    _, large = await replies(served(router(instance("a")), None), headers(), LARGE)
    assert b"127.0.0.1" in large
