"""The measurement of large bodies measures requests that are routed."""

from __future__ import annotations

import pytest

from extproc.bench import big_body
from extproc.bench.request_path import bench_router
from extproc.errors import ProcessError
from extproc.stream.exchange import Exchange
from extproc.stream.messages import RequestBody, RequestHeaders, RouteTo
from extproc.stream.rules import Rules


async def test_the_largest_body_is_routed_by_every_service() -> None:
    """Each tells of its waits; one that refused would raise."""
    costs = await big_body.big_bodies(1, big_body.BODY_BYTES[-1:])
    assert [each.service for each in costs] == ["floor", "at_once", "apart"]
    assert all(each.reply_p50_s > 0.0 and each.bodies == 1 for each in costs)


async def test_a_body_that_is_refused_is_an_error_and_no_measure(monkeypatch: pytest.MonkeyPatch) -> None:
    """A refusal is cheaper than a decision."""
    monkeypatch.setattr(big_body, "_KV_BLOCKS", 100)
    with pytest.raises(ProcessError, match="a body of 65536 bytes was not routed"):
        await big_body.big_bodies(1, (64 * 1024,))


def test_without_more_room_the_largest_body_would_be_refused() -> None:
    """So that the room is there for a reason."""
    body = big_body.large_body(big_body.BODY_BYTES[-1])
    routed = {}
    for blocks in (30_000, big_body._KV_BLOCKS):
        exchange = Exchange(bench_router(2, kv_blocks=blocks), "bench", Rules())
        exchange.receive(RequestHeaders("POST", "/v1/chat/completions", last=False), 0.0, 0.5)
        replies = exchange.receive(RequestBody(body), 0.0, 0.5)
        routed[blocks] = isinstance(replies, (list, tuple)) and isinstance(replies[0], RouteTo)
    assert routed == {30_000: False, big_body._KV_BLOCKS: True}
