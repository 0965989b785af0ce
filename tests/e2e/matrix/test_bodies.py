"""Known fault B1: prompts of every size, cut and framed in every way, reach the engine byte by byte; or get a 413."""

from __future__ import annotations

import pytest

from tests.e2e.matrix.cells import Cell, Door, same
from tests.e2e.matrix.clients import Framing
from tests.e2e.matrix.house import BODY_LIMIT_BYTES

KIB, MIB = 2**10, 2**20
SIZES = (31_000, 31 * KIB, 33_000, 33 * KIB, 128 * KIB, 10**6, int(3.9 * MIB), int(4.1 * MIB), 20 * MIB)


def pieces_of(body: bytes, size: int) -> list[bytes]:
    """The body in pieces."""
    return [body[start : start + size] for start in range(0, len(body), size)]


async def test_a_body_of_any_size_arrives_whole(cell: Cell) -> None:
    """Sent in one write."""
    for size in SIZES:
        body = cell.chat(size)
        got = await cell.ask([body])
        assert got.status == 200, got
        assert len(body) == size
        assert same(cell.decided(), body)


async def test_a_chunked_body_of_any_size_arrives_whole(cell: Cell) -> None:
    """Its length is told nowhere; chunks fit no buffer."""
    for size in SIZES:
        body = cell.chat(size)
        got = await cell.ask(pieces_of(body, 9_973 if size < 2 * MIB else 99_991), framing=Framing.CHUNKED)
        assert got.status == 200, got
        assert same(cell.decided(), body)


@pytest.mark.parametrize("framing", [Framing.LENGTH, Framing.CHUNKED])
async def test_where_the_operator_chose_fail_closed_the_limit_is_the_same(cell: Cell, framing: Framing) -> None:
    """The route before the decision is a refusal then, of which Envoy knows no limit but the connection's."""
    for size in (10**6, int(4.1 * MIB), 20 * MIB):
        body = cell.chat(size)
        got = await cell.ask(pieces_of(body, 99_991), Door.MAIN_CLOSED, framing=framing)
        assert got.status == 200, got
        assert same(cell.decided(), body)


@pytest.mark.parametrize("framing", [Framing.LENGTH, Framing.CHUNKED])
async def test_a_body_in_writes_of_one_byte_arrives_whole(cell: Cell, framing: Framing) -> None:
    """Of two kilobytes."""
    body = cell.chat(2_000)
    got = await cell.ask(pieces_of(body, 1), framing=framing)
    assert got.status == 200, got
    assert same(cell.decided(), body)


@pytest.mark.chaos
@pytest.mark.parametrize("size", [31 * KIB, 33 * KIB, 128 * KIB])
async def test_a_long_body_in_writes_of_one_byte_arrives_whole(cell: Cell, size: int) -> None:
    """As the one above, for longer, and again, when gRPC has come to take in megabytes at once."""
    body = cell.chat(size)
    for _ in range(3):
        got = await cell.ask(pieces_of(body, 1))
        assert got.status == 200, got
        assert same(cell.decided(), body)


@pytest.mark.parametrize("framing", [Framing.LENGTH, Framing.CHUNKED])
async def test_a_body_over_the_limit_gets_413_in_the_shape_of_openai(cell: Cell, framing: Framing) -> None:
    """Nothing of it reaches an engine."""
    got = await cell.ask(pieces_of(cell.chat(BODY_LIMIT_BYTES + 2 * MIB), MIB), framing=framing)
    assert got.status == 413, got
    assert got.error["code"] == "request_too_large"
    assert got.error["type"] == "invalid_request_error"
    assert cell.took() == []
    await cell.until_idle()
