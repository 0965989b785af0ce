"""A process that is an ext_proc service as anybody would write it, and does nothing: it names the pool, that is all.

`python -m extproc.bench.overhead.floor unix:/path` prints a line once it serves. uvloop, grpc.aio and upb as in the
real one; every reply is serialised once; messages are parsed to know their kind, and nothing of them is read. How gRPC
reads its sockets is left as gRPC has it, or as the environment says; the real one chooses for itself.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from typing import Any

import grpc.aio
import uvloop
from envoy.service.ext_proc.v3 import external_processor_pb2 as messages
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

READY = "the floor serves"
_CLUSTER_HEADER = "x-upstream-cluster"
_CLUSTER = "pool"
_MAX_MESSAGE_BYTES = 128 * 1024 * 1024


def _replies() -> dict[str, bytes]:
    body = messages.ProcessingResponse(request_body=messages.BodyResponse())
    mutation = body.request_body.response.header_mutation.set_headers.add()
    mutation.header.key, mutation.header.raw_value = _CLUSTER_HEADER, _CLUSTER.encode()
    body.request_body.response.clear_route_cache = True
    answers = {
        "request_headers": messages.ProcessingResponse(request_headers=messages.HeadersResponse()),
        "request_body": body,
        "response_headers": messages.ProcessingResponse(response_headers=messages.HeadersResponse()),
        "response_trailers": messages.ProcessingResponse(response_trailers=messages.TrailersResponse()),
    }
    return {kind: answer.SerializeToString() for kind, answer in answers.items()}


_REPLIES = _replies()


async def process(stream: AsyncIterator[Any], _context: Any) -> AsyncIterator[bytes]:
    """Answer each message by its kind."""
    async for message in stream:
        yield _REPLIES[message.WhichOneof("request")]


async def serve(where: str) -> None:
    """Serve until killed."""
    limits = [
        ("grpc.max_receive_message_length", _MAX_MESSAGE_BYTES),
        ("grpc.http2.min_ping_interval_without_data_ms", 0),
    ]
    server = grpc.aio.server(options=[*limits, ("grpc.http2.max_ping_strikes", 0)])
    handler = grpc.stream_stream_rpc_method_handler(
        process, request_deserializer=messages.ProcessingRequest.FromString, response_serializer=None
    )
    name = "envoy.service.ext_proc.v3.ExternalProcessor"
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(name, {"Process": handler}),))
    checks = health.aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(checks, server)
    server.add_insecure_port(where)
    await server.start()
    await checks.set("", health_pb2.HealthCheckResponse.SERVING)
    sys.stdout.write(f"{READY}\n")
    sys.stdout.flush()
    await server.wait_for_termination()


if __name__ == "__main__":
    uvloop.run(serve(sys.argv[1]))
