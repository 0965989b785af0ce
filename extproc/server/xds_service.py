"""The gRPC service that Envoys follow: discovery of clusters and endpoints, aggregated or apart, and health."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import grpc
import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from extproc.addresses import Access, Endpoint
from extproc.control.config_source import Transport
from extproc.control.xds.messages import METHODS, Encoder, MessageError, decode
from extproc.control.xds.resources import CLUSTER, ENDPOINT, Snapshot
from extproc.control.xds.stream import Heard, Request, Stream
from extproc.observe.xds_metrics import XdsMetrics
from extproc.server.binding import LONG_STREAMS, OWN_GROUP, bind
from extproc.server.certificates import Certificates

KINDS = {CLUSTER: "cluster", ENDPOINT: "endpoint"}

_MAX_REFUSALS = 256  # different ones, after which they are told again

log = logging.getLogger("extproc.xds")


@dataclass(eq=False, slots=True)
class Link:
    """One Envoy on the line."""

    stream: Stream
    transport: Transport
    only_type: str = ""  # "": any
    news: asyncio.Event = field(default_factory=asyncio.Event)  # a request or a publication, or the end


class Discovery:
    """Keeps every stream in step with what was published last."""

    def __init__(self, metrics: XdsMetrics) -> None:
        self.snapshots: Mapping[Transport, Snapshot] | None = None
        """None while nothing is known: then nothing is said either."""
        self.links: set[Link] = set()
        self.refusals: dict[str, str] = {}
        """The latest NACK of each kind of resource, in Envoy's words."""
        self._metrics = metrics
        self.encoder = Encoder()
        self._told: set[tuple[str, str]] = set()

    def publish(self, snapshots: Mapping[Transport, Snapshot]) -> None:
        """Replace what is published. Every stream goes on from what its Envoy holds."""
        self.snapshots = snapshots
        for link in self.links:
            link.news.set()

    async def follow(
        self, requests: AsyncIterator[bytes], context: Any, *, delta: bool, only_type: str
    ) -> AsyncIterator[bytes]:
        """One stream, until Envoy ends it. A message of another protocol ends it with INVALID_ARGUMENT."""
        separate = Transport.DELTA if delta else Transport.STATE_OF_THE_WORLD
        link = Link(Stream(delta=delta), separate if only_type else Transport.AGGREGATED, only_type)
        self.links.add(link)
        listening = asyncio.create_task(self._listen(link, requests))
        try:
            while True:
                await link.news.wait()
                link.news.clear()
                for response in link.stream.due(self.snapshots[link.transport]) if self.snapshots else ():
                    self._metrics.pushed(KINDS[response.type_url])
                    yield self.encoder.encode(response, delta=delta)
                if listening.done():
                    listening.result()
                    break
        except MessageError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        finally:
            listening.cancel()
            await asyncio.gather(listening, return_exceptions=True)
            self.links.discard(link)

    async def _listen(self, link: Link, requests: AsyncIterator[bytes]) -> None:
        try:
            async for data in requests:
                request = decode(data, delta=link.stream.delta, type_url=link.only_type)
                self._note(link, request, link.stream.receive(request))
                link.news.set()
        finally:
            link.news.set()

    def _note(self, link: Link, request: Request, heard: Heard) -> None:
        kind = KINDS.get(request.type_url, "")
        if heard is Heard.ACK:
            self._metrics.acked(kind)
        elif heard is Heard.NACK:
            self._metrics.nacked(kind)
            self._refused(kind, link.stream.node, request.error or "")
        elif heard is Heard.FOREIGN:
            log.debug("Envoy %s asks for %s, which is not served here", link.stream.node, request.type_url)

    def _refused(self, kind: str, node: str, words: str) -> None:
        """Tell once what many Envoys say many times."""
        self.refusals[kind] = words
        if (kind, words) in self._told:
            return
        if len(self._told) >= _MAX_REFUSALS:
            self._told.clear()
        self._told.add((kind, words))
        log.error("Envoy %s refused a %s: %s", node, kind, words)


class XdsService:
    """The gRPC server around it. It reports healthy once there is something to tell."""

    def __init__(self, discovery: Discovery) -> None:
        self._server = grpc.aio.server(options=LONG_STREAMS)
        for service, method, delta, only_type in METHODS:
            handler = grpc.stream_stream_rpc_method_handler(partial(discovery.follow, delta=delta, only_type=only_type))
            self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {method: handler}),))
        self._health = health.aio.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)

    def bind(self, where: Endpoint, certificates: Certificates | None = None, access: Access = OWN_GROUP) -> int:
        """Take an address (port 0 takes a free one) without answering yet; returns the port, 0 of a socket.

        Raises ConfigError if it cannot be listened on.
        """
        return bind(self._server, where, certificates, access)

    async def start(self) -> None:
        """Answer on the bound address."""
        await self._health.set("", health_pb2.HealthCheckResponse.NOT_SERVING)
        await self._server.start()

    async def serving(self) -> None:
        """Report healthy."""
        await self._health.set("", health_pb2.HealthCheckResponse.SERVING)

    async def stop(self) -> None:
        """End all streams at once: Envoys keep what they have, and come again."""
        await self._server.stop(0.0)
