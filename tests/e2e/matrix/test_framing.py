"""Known fault B7: requests without a body, with trailers, with expectations, of an old version: all get an answer."""

from __future__ import annotations

import pytest

from tests.e2e.matrix.cells import Cell, Door, same
from tests.e2e.matrix.clients import CHAT_PATH, Framing

TRAILERS = [("x-checksum", "1"), ("x-upstream-cluster", "open")]
DOORS = pytest.mark.parametrize("door", [Door.MAIN, Door.DOWN, Door.DOWN_CLOSED])


@pytest.mark.parametrize("framing", [Framing.LENGTH, Framing.NONE, Framing.CHUNKED])
async def test_a_post_without_a_body_is_told_that_it_has_none(cell: Cell, framing: Framing) -> None:
    """By a length of 0, by nothing at all, or by an empty chunked body."""
    got = await cell.ask([], framing=framing)
    assert got.status == 400, got
    assert got.error["code"] == "invalid_request_body"
    assert cell.took() == []


async def test_a_get_goes_to_an_engine_without_a_decision(cell: Cell) -> None:
    """Nobody waits for a body."""
    got = await cell.ask([], method="GET", path="/v1/models", framing=Framing.NONE)
    assert got.status == 200, got
    assert cell.undecided().method == "GET"
    got = await cell.ask([], method="GET", framing=Framing.NONE)
    assert got.status == 200, got
    assert cell.undecided().path == CHAT_PATH


@DOORS
async def test_without_the_service_a_get_goes_on(cell: Cell, door: Door) -> None:
    """It needs no decision, so that --fail-closed does not refuse it either."""
    got = await cell.ask([], door, method="GET", path="/v1/models", framing=Framing.NONE)
    assert got.status == 200, got
    assert cell.undecided().method == "GET"


async def test_a_body_on_a_path_that_needs_no_decision_goes_on_unread(cell: Cell) -> None:
    """Whatever is in it."""
    body = b"\x00\xff" * 50_000
    got = await cell.ask([body[:7], body[7:]], path="/v1/files", framing=Framing.CHUNKED)
    assert got.status == 200, got
    assert same(cell.undecided(), body)


async def test_trailers_neither_hang_nor_choose(cell: Cell) -> None:
    """Of HTTP/2, or after a chunked body of HTTP/1."""
    body = cell.chat(70_000)
    got = await cell.ask([body[:9], body[9:]], framing=Framing.CHUNKED, trailers=TRAILERS)
    assert got.status == 200, got
    assert same(cell.decided(), body)


async def test_without_the_service_trailers_neither_hang_nor_choose(cell: Cell) -> None:
    """The body is not doubled either."""
    body = cell.chat(70_000)
    got = await cell.ask([body], Door.DOWN, framing=Framing.CHUNKED, trailers=TRAILERS)
    assert got.status == 200, got
    assert same(cell.undecided(), body)


async def test_who_expects_100_gets_it_and_then_the_answer(cell: Cell) -> None:
    """With a body, and with one of no bytes."""
    body = cell.chat(40_000)
    got = await cell.ask([body], headers=[("expect", "100-continue")])
    assert (got.status, got.interim) == (200, [100])
    assert same(cell.decided(), body)
    got = await cell.ask([], headers=[("expect", "100-continue")])
    assert got.status == 400, got


@pytest.mark.parametrize("door", Door)
async def test_http_1_0_is_answered(http1_cell: Cell, door: Door) -> None:
    """Whether or not there is a service."""
    body = http1_cell.chat(40_000)
    got = await http1_cell.ask([body], door, version="1.0")
    if door is Door.DOWN_CLOSED:
        assert got.status == 503, got
        assert got.error["code"] == "router_unavailable"
        return
    assert got.status == 200, got
    seen = http1_cell.undecided() if door is Door.DOWN else http1_cell.decided()
    assert same(seen, body)
    got = await http1_cell.ask([], door, method="GET", path="/v1/models", framing=Framing.NONE, version="1.0")
    assert got.status == 200, got


async def test_a_stream_that_ends_with_an_empty_frame_is_a_whole_body(http2_cell: Cell) -> None:
    """As some clients of HTTP/2 end it."""
    body = http2_cell.chat(40_000)
    got = await http2_cell.ask([body, b""], framing=Framing.CHUNKED)
    assert got.status == 200, got
    assert same(http2_cell.decided(), body)
