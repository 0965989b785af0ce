"""Ways in which an ext_proc service can be wrong, as processes for `running_service`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
from envoy.service.ext_proc.v3 import external_processor_pb2 as ext_proc

from tests.control.parts import Process

Response = ext_proc.ProcessingResponse
HEADERS_OK = Response(request_headers=ext_proc.HeadersResponse()).SerializeToString()
BODY_OK = Response(request_body=ext_proc.BodyResponse()).SerializeToString()


async def silent(stream: AsyncIterator[bytes], _context: Any) -> AsyncIterator[bytes]:
    """Takes every message and answers none: slow, or stopped."""
    async for _ in stream:
        await asyncio.sleep(3600)
    yield b""


async def ends(_stream: AsyncIterator[bytes], _context: Any) -> AsyncIterator[bytes]:
    """Closes each stream as soon as it is opened."""
    for nothing in ():
        yield nothing


async def fails(_stream: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
    """Ends each stream with an error."""
    await context.abort(grpc.StatusCode.INTERNAL, "no")
    yield b""


def replies(*answers: bytes, at_once: bool = False, then_ends: bool = False) -> Process:
    """One answer to each message, whatever that was; then none, or the stream's end. `at_once`: before any message."""

    async def process(stream: AsyncIterator[bytes], _context: Any) -> AsyncIterator[bytes]:
        left = list(answers)
        while at_once and left:
            yield left.pop(0)
        async for _ in stream:
            if left:
                yield left.pop(0)
            if then_ends and not left:
                return

    return process


def sets(name: str, value: bytes, *, with_body: bool = True) -> bytes:
    """A reply that sets one request header."""
    common = ext_proc.CommonResponse(clear_route_cache=True)
    option = common.header_mutation.set_headers.add()
    option.header.key, option.header.raw_value = name, value
    if with_body:
        return bytes(Response(request_body=ext_proc.BodyResponse(response=common)).SerializeToString())
    return bytes(Response(request_headers=ext_proc.HeadersResponse(response=common)).SerializeToString())


def swaps_body(body: bytes) -> bytes:
    """A reply that puts another body in the request's place."""
    common = ext_proc.CommonResponse(body_mutation=ext_proc.BodyMutation(body=body))
    return bytes(Response(request_body=ext_proc.BodyResponse(response=common)).SerializeToString())


def answers_itself(status: int) -> bytes:
    """An answer in the engine's place."""
    reply = Response(immediate_response=ext_proc.ImmediateResponse())
    reply.immediate_response.status.code = status
    return bytes(reply.SerializeToString())


_LAST = bytes(Response(response_trailers=ext_proc.TrailersResponse()).SerializeToString())
_ANSWERS_HEADERS = bytes(Response(response_headers=ext_proc.HeadersResponse()).SerializeToString())

WRONG: dict[str, Process] = {
    "silent": silent,
    "ends at once": ends,
    "fails at once": fails,
    "no protobuf": replies(b"\xff\xff\xff\xff"),
    "an empty reply": replies(b""),
    "a body's reply to headers": replies(BODY_OK),
    "an answer's reply to a request": replies(_ANSWERS_HEADERS),
    "a trailers' reply to headers": replies(_LAST),
    "replies before it was asked": replies(HEADERS_OK, BODY_OK, at_once=True),
    "the same reply again": replies(HEADERS_OK, HEADERS_OK),
    "right, then ends": replies(HEADERS_OK, then_ends=True),
    "right, then silent": replies(HEADERS_OK),
    "right, then no protobuf": replies(HEADERS_OK, b"\x0a\xff"),
    "right, then silent at the answer": replies(HEADERS_OK, BODY_OK),
    "right, then ends at the answer": replies(HEADERS_OK, BODY_OK, then_ends=True),
    "right, then wrong at the answer": replies(HEADERS_OK, BODY_OK, BODY_OK, b"\xff"),
    "a header of 1 MiB": replies(HEADERS_OK, sets("x-extproc-note", b"x" * 2**20)),
    "a reply of 64 MiB": replies(HEADERS_OK, swaps_body(b"x" * 2**26)),
    "another body": replies(HEADERS_OK, swaps_body(b"[]")),
    "a header with a line break": replies(HEADERS_OK, sets("x-extproc-note", b"a\r\nb: c")),
    "a header without a name": replies(HEADERS_OK, sets("", b"a")),
    "a header that it may not set": replies(HEADERS_OK, sets("authorization", b"a")),
    "another method": replies(HEADERS_OK, sets(":method", b"DELETE")),
    "an empty cluster": replies(HEADERS_OK, sets("x-upstream-cluster", b"")),
    "a cluster that is none": replies(HEADERS_OK, sets("x-upstream-cluster", b"nowhere")),
    "an answer of status 0": replies(answers_itself(0)),
    "an answer of status 99": replies(answers_itself(99)),
    "an answer of status 999": replies(answers_itself(999)),
}
