"""The gRPC service that Envoy calls: ext_proc, access log and health on one port."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace
from typing import Any

import grpc
import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from extproc.adapters import wire
from extproc.addresses import Access, Endpoint
from extproc.server.access_log import AccessLog
from extproc.server.binding import ANY_PINGS, ONE_SERVER, OWN_GROUP, bind
from extproc.server.certificates import Certificates
from extproc.server.charges import Charges
from extproc.server.ext_proc import ExtProc
from extproc.server.holding import Holding
from extproc.server.shell import Shell
from extproc.stream.rules import Rules

# gRPC's own limit of 4 MiB is below real prompts; Envoy bounds the body before it reaches us.
MAX_MESSAGE_BYTES = 128 * 1024 * 1024
# What health checks ask for: Envoy's the server, gateways (endpoint picker protocol, "Health Checking") the others.
_HEALTH_NAMES = ("", "readiness", wire.EXT_PROC_METHOD[0])
_ALIVE = "liveness"  # also while the service drains
# Streams that may wait for the event loop in a burst; gRPC's own limit of 1,000 would cancel the rest.
_MAX_PENDING = 20_000
_GOODBYE_S = 1.0  # to end streams in good order


class Service:
    """The gRPC server around both, with a health service that says when to stop sending."""

    def __init__(self, shell: Shell) -> None:
        self._server = grpc.aio.server(
            options=[
                ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
                ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
                ("grpc.server.max_pending_requests", _MAX_PENDING),
                ("grpc.server.max_pending_requests_hard_limit", _MAX_PENDING),
                ONE_SERVER,
                ANY_PINGS,  # Envoy asks every few seconds: running streams and the access log would be hung up on
            ]
        )
        service, method = wire.EXT_PROC_METHOD
        self._shell = shell
        self._ext_proc = ExtProc(shell)
        handler = grpc.stream_stream_rpc_method_handler(self._ext_proc.process)
        self.add(service, method, handler)
        self._access_log = AccessLog(shell, self._ext_proc.holding.stir)
        service, method = wire.ACCESS_LOG_METHOD
        self.add(
            service,
            method,
            grpc.stream_unary_rpc_method_handler(self._access_log.stream_access_logs),
        )
        self.ready = False
        """Whether new requests are taken."""
        self._health = health.aio.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)

    def use(self, rules: Rules, max_streams: int, charges: Charges | None) -> None:
        """Take requests by other rules from now on; those that are under way go on by theirs."""
        self._shell = replace(self._shell, rules=rules, max_streams=max_streams, charges=charges)
        self._ext_proc.use(self._shell)
        self._access_log.use(self._shell)

    def add(self, service: str, method: str, handler: Any) -> None:
        """Answer one more method; before the start."""
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {method: handler}),))

    def bind(self, where: Endpoint, certificates: Certificates | None = None, access: Access = OWN_GROUP) -> int:
        """Take an address (port 0 takes a free one) without answering yet; returns the port, 0 of a socket.

        Raises ConfigError if it cannot be listened on.
        """
        return bind(self._server, where, certificates, access)

    @property
    def holding(self) -> Holding:
        """Where requests are held."""
        return self._ext_proc.holding

    @property
    def refused_streams(self) -> int:
        """How many requests were left to Envoy, or refused, because too many were under way."""
        return self._ext_proc.refused

    @property
    def rollout_share(self) -> float:
        """Share of requests that are routed now."""
        return self._ext_proc.rollout_share

    async def start(self) -> None:
        """Answer on the bound address, and report healthy."""
        await self._server.start()
        for name in (*_HEALTH_NAMES, _ALIVE):
            await self._health.set(name, health_pb2.HealthCheckResponse.SERVING)
        self.ready = True

    async def drain(self) -> None:
        """Report not serving, so that Envoy sends new requests elsewhere; running ones go on."""
        self.ready = False
        for name in _HEALTH_NAMES:
            await self._health.set(name, health_pb2.HealthCheckResponse.NOT_SERVING)

    async def stop(self, grace_s: float, at_once: asyncio.Event | None = None) -> None:
        """Take no new requests, give running ones `grace_s` to end, refuse who is held then, and end everything.

        `at_once` ends the grace. Envoy's access-log stream would never end by itself, so it is not waited for.
        """
        self._ext_proc.leave()
        ends = [asyncio.ensure_future(event.wait()) for event in (self._ext_proc.idle, at_once) if event is not None]
        await asyncio.wait(ends, timeout=grace_s, return_when=asyncio.FIRST_COMPLETED)
        for end in ends:
            end.cancel()
        await self._ext_proc.refuse_held(_GOODBYE_S)
        self._ext_proc.end()
        with suppress(TimeoutError):
            async with asyncio.timeout(_GOODBYE_S):
                await self._ext_proc.idle.wait()
        await self._server.stop(0.0)
