"""The measurement measures what it says: a routed request of every size."""

from __future__ import annotations

from extproc.bench.request_path import BODY_BYTES, _begun, _body, bench_router, request_path
from extproc.stream.messages import RequestBody, RouteTo


def test_every_size_is_a_request_that_is_routed() -> None:
    router = bench_router(3)
    for size in BODY_BYTES:
        body = _body(size)
        assert 0.8 * size < len(body) < 1.25 * size
        (reply,) = _begun(router).receive(RequestBody(body), 0.0, 0.5)
        assert isinstance(reply, RouteTo)


def test_one_timing_a_size_comes_back() -> None:
    timings = list(request_path(2, 2))
    assert [timing.body_bytes for timing in timings] == list(BODY_BYTES)
    taken_s = [(each.reply_s, each.understand_s, each.rename_s, each.search_s) for each in timings]
    assert min(map(min, taken_s)) > 0
