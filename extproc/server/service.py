"""The gRPC service that Envoy calls: ext_proc, access log and health on one port."""

from __future__ import annotations

import asyncio
import itertools
import logging
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

import grpc
import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from extproc.adapters import wire
from extproc.addresses import Access, Endpoint
from extproc.core.health.verdict import Attempt
from extproc.core.limits.charge import settlement
from extproc.core.router import Router
from extproc.core.tokens.tokens import ExactCount
from extproc.core.values.outcome import Outcome
from extproc.observe.observer import Observer
from extproc.server.binding import OWN_GROUP, bind
from extproc.server.certificates import Certificates
from extproc.server.charges import Charges
from extproc.server.cold_waits import ColdWaits
from extproc.server.holding import Holding
from extproc.stream.errands import AwaitModel, Charge, CountTokens, Errand, Hold, TakePlace
from extproc.stream.exchange import Exchange
from extproc.stream.intake import UNSEEN
from extproc.stream.messages import Answer, OutOfOrderError, PassOn, Replies, ResponseHeaders, RouteTo
from extproc.stream.rules import Rules

log = logging.getLogger("extproc.serve")

# gRPC's own limit of 4 MiB is below real prompts; Envoy bounds the body before it reaches us.
MAX_MESSAGE_BYTES = 128 * 1024 * 1024
# What health checks ask for: Envoy's the server, gateways (endpoint picker protocol, "Health Checking") the others.
_HEALTH_NAMES = ("", "readiness", wire.EXT_PROC_METHOD[0])
_ALIVE = "liveness"  # also while the service drains
# Streams that may wait for the event loop in a burst; gRPC's own limit of 1,000 would cancel the rest.
_MAX_PENDING = 20_000
_GOODBYE_S = 1.0  # to end streams in good order


class Places(Protocol):
    """Counts open requests over all routers."""

    async def take(self, wish: TakePlace) -> int | None:
        """Number of the place that was taken, None if none was left."""

    def release(self, request_id: str) -> None:
        """The request has ended; unknown ids are ignored."""


@dataclass(frozen=True, slots=True)
class Shell:
    """What the service needs from outside: the state, who watches, the clock and chance."""

    router: Router
    observer: Observer
    clock: Callable[[], float]
    draw: Callable[[], float]
    cluster_header: str
    rules: Rules
    count: Callable[[CountTokens], Awaitable[ExactCount | None]] | None = None  # needed for `rules.counted_models`
    places: Places | None = None  # needed for `rules.strict`
    max_streams: int = 20_000  # requests under way at once
    charges: Charges | None = None  # needed for `rules.limits`
    cold_waits: ColdWaits | None = None  # needed for models that are waited for


class ExtProc:
    """One call is one HTTP request; its end, however it comes, gives the reservation back."""

    def __init__(self, shell: Shell) -> None:
        self._shell = shell
        # Outcomes come to any router, and are matched by id with what is known of a request here.
        self._name = secrets.token_hex(4)
        self._numbers = itertools.count(1)
        self._wanted = shell.rules.headers
        self._open_streams = 0
        self._warned: set[str] = set()  # reasons
        self.refused = 0  # streams
        self._calls: set[asyncio.Task[Any]] = set()
        self._leaving = False
        self._admits = shell.router.policy.admission is not None
        self._holding = Holding(shell.router, shell.clock, shell.draw)
        self._held: set[asyncio.Task[Any]] = set()  # calls whose request is held, or was refused after that
        self._over = False
        self.idle = asyncio.Event()  # no request is under way
        self.idle.set()

    async def process(self, stream: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        """Answer the messages of one stream in turn.

        A message of another protocol ends it with INVALID_ARGUMENT; beyond `max_streams` it ends with
        RESOURCE_EXHAUSTED before its first message is looked at, after `leave` with UNAVAILABLE: Envoy asks another
        worker, or goes on without us. But where requests are held for want of room, none beyond may go past those: it
        is refused.
        """
        shell = self._shell
        if self._leaving or self._open_streams >= shell.max_streams:
            async for answer in self._beyond(stream, context):
                yield answer
            return
        self._open_streams += 1
        self.idle.clear()
        exchange_id = f"{self._name}-{next(self._numbers)}"
        exchange = Exchange(shell.router, exchange_id, shell.rules)
        call = asyncio.current_task()
        assert call is not None
        self._calls.add(call)
        try:
            async for data in stream:
                began_s = shell.clock()
                message = wire.decode_message(data, self._wanted)
                step = await self._run(exchange, exchange.receive(message, began_s, shell.draw()))
                answers_headers = isinstance(message, ResponseHeaders)
                # The engine's answer, or room for it, may be minutes away: the body is not kept until then.
                del data, message
                while isinstance(step, Hold | AwaitModel):
                    waits_from_s = shell.clock()
                    step = self._waits(call, exchange.in_time(step))
                    if (more_time := exchange.more_time(step, waits_from_s)) is not None:
                        yield wire.encode_reply(more_time, shell.cluster_header)
                    result, now = await self._waited(step), shell.clock()
                    began_s += now - waits_from_s  # waiting is no part of what answering takes
                    step = await self._run(exchange, exchange.resume(result, now, shell.draw()))
                self._noted(call, step)
                if answers_headers:
                    self._holding.stir()
                answers = self._encoded(exchange, step, began_s)
                del step
                for answer in answers:
                    yield answer
                answer = b""
        except (wire.WireError, OutOfOrderError) as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        except asyncio.CancelledError:
            if not self._over:
                raise
            if not exchange.replied:  # Envoy would let a body that it has sent us go on as an empty one
                await context.abort(grpc.StatusCode.UNAVAILABLE, "the service ends")
        finally:
            self._calls.discard(call)
            self._held.discard(call)
            self._close(exchange, exchange_id)

    async def _run(self, exchange: Exchange, step: Replies | Errand) -> Replies | Hold | AwaitModel:
        """Run errands up to the replies, or to one that takes so long that Envoy has to be told."""
        shell = self._shell
        while True:
            match step:
                case CountTokens():
                    result: object = await shell.count(step) if shell.count else None
                case TakePlace():
                    result = await shell.places.take(step) if shell.places else 0
                case Charge():
                    result = await shell.charges.charge(step) if shell.charges else None
                case _:
                    return step
            step = exchange.resume(result, shell.clock(), shell.draw())

    def _waits(self, call: asyncio.Task[Any], errand: Hold | AwaitModel) -> Hold | AwaitModel:
        """What is to be done at once, before anything else can happen to a request that is held."""
        if isinstance(errand, Hold):
            self._holding.expect(errand)
            self._held.add(call)
        return errand

    async def _waited(self, errand: Hold | AwaitModel) -> object:
        if isinstance(errand, Hold):
            return await self._holding.turn(errand)
        return await self._shell.cold_waits.until_served(errand) if self._shell.cold_waits else False

    def _close(self, exchange: Exchange, exchange_id: str) -> None:
        """Give back all that a request had; perhaps it makes room for one that is held."""
        shell = self._shell
        exchange.close(shell.clock())
        if shell.places:
            shell.places.release(exchange_id)
        if shell.charges:
            shell.charges.release(exchange_id)
        self._holding.forget(exchange_id)
        self._holding.stir()
        self._open_streams -= 1
        if not self._open_streams:
            self.idle.set()

    def _noted(self, call: asyncio.Task[Any], replies: Replies) -> None:
        """A call that was held is so no longer, unless Envoy has still to hear that it is refused."""
        if call in self._held and not any(isinstance(reply, Answer) for reply in replies):
            self._held.discard(call)

    async def _beyond(self, stream: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        """A stream that is not taken: refused if it would be held, else left to Envoy without being looked at."""
        shell = self._shell
        if self._leaving:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "this worker is leaving")
        self.refused += 1
        if self._admits and (data := await anext(stream, None)) is not None:
            exchange = Exchange(shell.router, "", shell.rules)
            answer = exchange.turn_away(wire.decode_message(data, self._wanted), shell.draw())
            if answer is not None:
                for encoded in self._encoded(exchange, (answer,), shell.clock()):
                    yield encoded
                return
        await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "too many requests are under way here")

    def _encoded(self, exchange: Exchange, replies: Replies, began_s: float) -> Iterator[bytes]:
        shell = self._shell
        for reply in replies:
            answer = wire.encode_reply(reply, shell.cluster_header)
            shell.observer.replied(exchange, reply, shell.clock() - began_s)
            if shell.charges and exchange.request is not None and isinstance(reply, RouteTo | PassOn):
                shell.charges.handed_over(exchange.request.id)
            if isinstance(reply, PassOn):
                self._warn(reply.reason)
            yield answer

    def _warn(self, reason: str) -> None:
        """Say once of each body mode that leaves requests undecided, and not of each request."""
        if reason in UNSEEN.values() and reason not in self._warned:
            self._warned.add(reason)
            log.warning(
                "requests are passed on undecided (%s): in Envoy's request_body_mode their bodies are not seen whole; "
                "configure BUFFERED or FULL_DUPLEX_STREAMED",
                reason,
            )

    def leave(self) -> None:
        """Take no new streams. An Envoy that knows no other worker asks us on, though we say that we are not well."""
        self._leaving = True

    @property
    def holding(self) -> Holding:
        """Where requests are held."""
        return self._holding

    async def refuse_held(self, within_s: float) -> None:
        """Refuse who is held, and wait for Envoy to have heard of it: an end without an answer lets requests on."""
        held = tuple(self._held)
        self._holding.close()
        if held:
            await asyncio.wait(held, timeout=within_s)

    def end(self) -> None:
        """End all streams in good order. By an error Envoy would cut answers whose body it streamed to us."""
        self._over = True
        for call in self._calls:
            call.cancel()


class AccessLog:
    """Envoy's access log: outcomes, off the request path. `stir` is called after some were taken in."""

    def __init__(self, shell: Shell, stir: Callable[[], None]) -> None:
        self._shell = shell
        self._stir = stir

    async def stream_access_logs(self, stream: AsyncIterator[bytes], context: Any) -> bytes:
        """Take in entries until Envoy ends the stream. One that we stumble over costs no other, nor the stream."""
        try:
            async for data in stream:
                for entry in wire.decode_access_log(data):
                    try:
                        self._take(entry)
                    except Exception:
                        log.exception("an entry of Envoy's access log was not taken in")
                self._tell_trust()
                self._stir()
        except wire.WireError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        return wire.access_log_answer()

    def _take(self, entry: Outcome | Attempt) -> None:
        shell = self._shell
        if isinstance(entry, Attempt):
            shell.router.attempted(entry, shell.clock())
        else:
            shell.router.learn(entry, shell.clock())
            shell.observer.finished(entry)
            if shell.charges and (mended := settlement(entry)) is not None:
                shell.charges.settle(mended)

    def _tell_trust(self) -> None:
        news = self._shell.router.trust.news
        for key, model, trusted in news:
            if trusted:
                log.info("%s: what it tells of its cache is borne out again for %s", key, model)
            else:
                log.warning(
                    "%s: what it tells of its cache disagrees with its answers for %s, and is not used: "
                    "is the chat template, the tokenizer or the model's name another?",
                    key,
                    model,
                )
        news.clear()


class Service:
    """The gRPC server around both, with a health service that says when to stop sending."""

    def __init__(self, shell: Shell) -> None:
        self._server = grpc.aio.server(
            options=[
                ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
                ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
                ("grpc.server.max_pending_requests", _MAX_PENDING),
                ("grpc.server.max_pending_requests_hard_limit", _MAX_PENDING),
                ("grpc.so_reuseport", 0),  # a port in use is an error, not a second server behind the same door
                # Envoy asks for signs of life every few seconds, also while a stream is silent. gRPC's default is to
                # hang up on the third question within 10 minutes: running streams and the access log with it.
                ("grpc.http2.max_ping_strikes", 0),
            ]
        )
        service, method = wire.EXT_PROC_METHOD
        self._ext_proc = ExtProc(shell)
        handler = grpc.stream_stream_rpc_method_handler(self._ext_proc.process)
        self._add(service, method, handler)
        access_log = AccessLog(shell, self._ext_proc.holding.stir)
        service, method = wire.ACCESS_LOG_METHOD
        self._add(
            service,
            method,
            grpc.stream_unary_rpc_method_handler(access_log.stream_access_logs),
        )
        self._health = health.aio.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)

    def _add(self, service: str, method: str, handler: Any) -> None:
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

    async def start(self) -> None:
        """Answer on the bound address, and report healthy."""
        await self._server.start()
        for name in (*_HEALTH_NAMES, _ALIVE):
            await self._health.set(name, health_pb2.HealthCheckResponse.SERVING)

    async def drain(self) -> None:
        """Report not serving, so that Envoy sends new requests elsewhere; running ones go on."""
        for name in _HEALTH_NAMES:
            await self._health.set(name, health_pb2.HealthCheckResponse.NOT_SERVING)

    async def stop(self, grace_s: float) -> None:
        """Take no new requests, give running ones `grace_s` to end, refuse who is held then, and end everything.

        Envoy's access-log stream would never end by itself, so it is not waited for.
        """
        self._ext_proc.leave()
        with suppress(TimeoutError):
            async with asyncio.timeout(grace_s):
                await self._ext_proc.idle.wait()
        await self._ext_proc.refuse_held(_GOODBYE_S)
        self._ext_proc.end()
        with suppress(TimeoutError):
            async with asyncio.timeout(_GOODBYE_S):
                await self._ext_proc.idle.wait()
        await self._server.stop(0.0)
