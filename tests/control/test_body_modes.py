"""Bodies cut at every size through a real Envoy, in each body mode: the same bytes reach the engine that was chosen."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import orjson
import pytest
import pytest_asyncio

from extproc.control.settings import RequestBodies, Shape
from extproc.stream.rules import Rules
from tests.control.deciding import CHAT, HELLO, Deciding, deciding
from tests.control.parts import HOST, raw
from tests.control.raw_requests import Answered, http1, http2
from tests.e2e.eventually import eventually

Post = Callable[..., Awaitable[Answered]]
BOTH = pytest.mark.parametrize("post", [http1, http2])
MODES = pytest.mark.parametrize("mode", RequestBodies)
CHUNKED = pytest.mark.parametrize("mode", [RequestBodies.FULL_DUPLEX, RequestBodies.STREAMED])


pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=RequestBodies)
async def running(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Deciding]:
    """An Envoy for each mode, as it is by default."""
    async with deciding(tmp_path_factory.mktemp("plain"), body_mode=request.param) as setup:
        yield setup


@pytest.fixture
def plain(running: Deciding) -> Deciding:
    """Of which nothing has been asked yet."""
    running.chosen.seen.clear()
    running.other.seen.clear()
    return running


COUNTED = "".join(map("{:06x}".format, range(2**22 // 6 + 1)))


def long_body(size: int) -> bytes:
    """A chat body of `size` bytes, cut from a text made beforehand.

    The service shares our event loop, and to Envoy's health check a pause of a second is its death.
    """
    body: dict[str, Any] = orjson.loads(HELLO)
    frame = len(orjson.dumps(body | {"messages": [{"role": "user", "content": ""}]}))
    counted = (COUNTED * (size // len(COUNTED) + 1))[: size - frame]
    return orjson.dumps(body | {"messages": [{"role": "user", "content": counted}]})


async def sent(setup: Deciding, post: Post, pieces: Sequence[bytes], **how: Any) -> None:
    """The body arrives as it was sent, and comes back as the engine's answer."""
    body = b"".join(pieces)
    answer = await post(setup.port, CHAT, pieces, **how)
    assert answer == Answered(200, body)
    assert setup.bodies() == [body]


@BOTH
async def test_a_small_body_may_be_cut_anywhere(post: Post, plain: Deciding) -> None:
    """In two at each of its bytes, and into single bytes."""
    for cut in range(len(HELLO) + 1):
        await sent(plain, post, [HELLO[:cut], HELLO[cut:]])
    await sent(plain, post, [HELLO[:40], HELLO[40:]], pause_s=0.02)
    await sent(plain, post, [HELLO[i : i + 1] for i in range(len(HELLO))], pause_s=0.001)
    await plain.until_nothing_is_in_flight()


async def large_bodies_arrive(setup: Deciding, post: Post) -> None:
    """Around the sizes of frames and buffers."""
    for size in (16_383, 16_384, 16_385, 65_535, 65_536, 65_537, 1_048_576, 1_048_577, 20 * 1_048_576):
        await sent(setup, post, [long_body(size)])
    await setup.until_nothing_is_in_flight()


@BOTH
async def test_a_large_body_arrives_whole(post: Post, plain: Deciding) -> None:
    await large_bodies_arrive(plain, post)


@MODES
@BOTH
async def test_a_large_body_arrives_whole_over_http2_too(mode: RequestBodies, post: Post, tmp_path: Path) -> None:
    """To the engines."""
    async with deciding(tmp_path, body_mode=mode, http2_upstream=True) as setup:
        await large_bodies_arrive(setup, post)


async def test_trailers_do_not_change_the_body(plain: Deciding) -> None:
    """HTTP/2 clients may send them; then no chunk is the last one."""
    for pieces in ([HELLO], [HELLO[:9], HELLO[9:]], [long_body(200_000)]):
        await sent(plain, http2, pieces, trailers=(("x-checksum", "1"),))
    await plain.until_nothing_is_in_flight()


@pytest.mark.parametrize("mode", [RequestBodies.BUFFERED, RequestBodies.FULL_DUPLEX])
@pytest.mark.parametrize("size", [len(HELLO) + 1, 1_048_577])
@BOTH
async def test_a_retry_takes_the_same_body_elsewhere(
    mode: RequestBodies, post: Post, size: int, tmp_path: Path
) -> None:
    """To our second choice."""
    body = long_body(size)
    async with deciding(tmp_path, body_mode=mode, one_pool=True) as setup:
        setup.chosen.status = 503
        assert await post(setup.port, CHAT, [body[:9], body[9:]]) == Answered(200, body)
        assert [seen[-1] for seen in (*setup.chosen.seen, *setup.other.seen)] == [body, body]
        await setup.until_nothing_is_in_flight()


async def test_a_streamed_body_is_not_retried(tmp_path: Path) -> None:
    """Its trailers would double it."""
    async with deciding(tmp_path, body_mode=RequestBodies.STREAMED, one_pool=True) as setup:
        setup.chosen.status = 503
        assert (await http2(setup.port, CHAT, [HELLO], trailers=(("x-checksum", "1"),))).status == 503
        assert [body for *_, body in setup.chosen.seen] == [HELLO]
        assert not setup.other.seen


@pytest.mark.parametrize("mode", [RequestBodies.BUFFERED, RequestBodies.FULL_DUPLEX])
@BOTH
async def test_a_cluster_an_instance_gets_the_same_body(mode: RequestBodies, post: Post, tmp_path: Path) -> None:
    """The other shape, in which the header names an instance's own cluster."""
    async with deciding(tmp_path, body_mode=mode, shape=Shape.INSTANCE) as setup:
        await sent(setup, post, [HELLO[:9], HELLO[9:]])
        await sent(setup, post, [long_body(300_000)])


async def test_a_client_that_waits_for_100_continue_is_served(plain: Deciding) -> None:
    await sent(plain, http1, [HELLO[:9], HELLO[9:]], pause_s=0.05, headers="expect: 100-continue\r\n")


async def test_what_has_no_body_is_answered_or_passed_on(plain: Deciding) -> None:
    for headers in ("", "content-length: 0\r\n", "transfer-encoding: chunked\r\n\r\n0\r\n"):
        status, _, answer = await raw(plain.port, "POST", CHAT, headers)
        assert status == 400
        assert b"invalid_request_error" in answer
    status, _, _ = await raw(plain.port, "GET", "/v1/models")
    assert status == 200
    assert (await raw(plain.port, "POST", "/v1/files", body=long_body(100_000)))[2] == long_body(100_000)
    assert [path for _, path, *_ in plain.other.seen] == ["/v1/models", "/v1/files"]


async def test_an_upload_that_breaks_off_leaves_nothing_behind(plain: Deciding) -> None:
    """Neither a request in flight nor a stream; the next one is served."""
    for _ in range(20):
        with socket.create_connection((HOST, plain.port)) as connection:
            connection.sendall(f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-length: 99999\r\n\r\n{{".encode())
    await sent(plain, http1, [HELLO])
    await plain.until_nothing_is_in_flight()
    for _ in range(1200):
        active = (await asyncio.to_thread(plain.envoy.stats, "cluster.extproc.upstream_rq_active")).popitem()[1]
        if active <= 1:  # the access log's stream stays
            break
        await asyncio.sleep(0.05)
    assert active <= 1


@MODES
async def test_a_slow_upload_outlasts_the_message_timeout(mode: RequestBodies, tmp_path: Path) -> None:
    """In `streamed` it begins anew with each chunk: after a pause that is longer, all goes on undecided, and whole."""
    async with deciding(tmp_path, body_mode=mode, message_timeout_s=0.5) as setup:
        answer = await http1(setup.port, CHAT, [HELLO[:9], HELLO[9:20], HELLO[20:]], pause_s=0.8)
        assert answer == Answered(200, HELLO)
        undecided = mode is RequestBodies.STREAMED
        assert (len(setup.chosen.seen), len(setup.other.seen)) == ((0, 1) if undecided else (1, 0))
        assert [body for *_, body in (*setup.chosen.seen, *setup.other.seen)] == [HELLO]


@CHUNKED
@BOTH
async def test_a_body_beyond_the_services_limit_is_413(mode: RequestBodies, post: Post, tmp_path: Path) -> None:
    """Envoy bounds none that it does not buffer."""
    async with deciding(tmp_path, body_mode=mode, rules=Rules(body_limit_bytes=300_000)) as setup:
        await sent(setup, post, [long_body(300_000)])
        answer = await post(setup.port, CHAT, [long_body(300_001)])
        assert answer.status == 413
        assert orjson.loads(answer.body)["error"]["code"] == "request_too_large"
        await setup.until_nothing_is_in_flight()


@pytest.mark.parametrize(("mode", "reason"), [("STREAMED", "streamed_body"), ("BUFFERED_PARTIAL", "truncated_body")])
async def test_in_modes_that_may_show_a_part_alone_what_is_not_seen_whole_is_balanced(
    mode: str, reason: str, tmp_path: Path
) -> None:
    """And counted. What comes at once is decided upon."""

    def change(ext_proc: dict[str, Any]) -> None:
        ext_proc["processing_mode"]["request_body_mode"] = mode

    async with deciding(tmp_path, change=change, body_limit_bytes=65_536, json_usage=False) as setup:
        await sent(setup, http1, [HELLO])
        body = long_body(300_000)
        answer = await http1(setup.port, CHAT, [body[:100], body[100:]], pause_s=0.1)
        assert answer == Answered(200, body)
        assert [body for *_, body in setup.other.seen] == [body]

        async def counted() -> str:
            return setup.metrics.page().decode()

        await eventually(counted, lambda page: f'action="passed_on",reason="{reason}"' in page)


@pytest.mark.parametrize("answers", ["FULL_DUPLEX_STREAMED", "STREAMED"])
async def test_an_answer_that_is_streamed_through_the_service_is_the_same(answers: str, tmp_path: Path) -> None:
    """As the Gateway API Inference Extension configures it; we do not look at it."""

    def change(ext_proc: dict[str, Any]) -> None:
        ext_proc["processing_mode"]["response_body_mode"] = answers

    async with deciding(tmp_path, change=change, body_mode=RequestBodies.FULL_DUPLEX) as setup:
        await sent(setup, http1, [HELLO])
        await sent(setup, http2, [long_body(2_000_000)])
        setup.chosen.status = 502
        assert await http1(setup.port, CHAT, [HELLO]) == Answered(502, HELLO)
        await setup.until_nothing_is_in_flight()
