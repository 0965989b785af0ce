"""Envoy's ext_proc calls: each is one HTTP request, whose messages are answered in turn and whose errands are run."""

from __future__ import annotations

import asyncio
import itertools
import logging
import secrets
from collections.abc import Awaitable, Iterator
from typing import Any

import grpc

from extproc.adapters import wire
from extproc.adapters.slices import others_turn
from extproc.observe.phases import Stopwatch
from extproc.server.holding import Holding
from extproc.server.shell import Shell
from extproc.stream.at_once import no_room_answer
from extproc.stream.errands import Charge, CountTokens, Errand, Hold, ReadBody, TakePlace
from extproc.stream.exchange import Exchange
from extproc.stream.intake import UNSEEN
from extproc.stream.messages import Answer, Continue, OutOfOrderError, PassOn, Replies, ResponseHeaders, RouteTo
from extproc.stream.patience import Wait
from extproc.stream.rules import PARENT_HEADER

log = logging.getLogger("extproc.serve")

# Envoy resets each stream once it needs it no more: the messages end, and a turn or two of the loop later the call is
# cancelled, or the other way round. What gRPC does for a stream and does not bring to its end costs 96 bytes for good,
# https://github.com/grpc/grpc/issues/43360: a status that is sent to one that was reset, and a read that is cancelled.
# So the first waits for the cancellation, and the second goes on without us (`_next`).
_CANCELLED_WITHIN_S = 0.01

# To write a reply of megabytes down, and to hand it to gRPC, which copies it, takes milliseconds each: others have a
# turn in between.
_LONG_BYTES = 512 * 1024


class ExtProc:
    """One call is one HTTP request; its end, however it comes, gives the reservation back."""

    def __init__(self, shell: Shell) -> None:
        self._shell = shell
        # Outcomes come to any router, and are matched by id with what is known of a request here.
        self._name = shell.siblings.name if shell.siblings else secrets.token_hex(4)
        self._numbers = itertools.count(1)
        self._wanted = shell.rules.headers
        self._open_streams = 0
        self._warned: set[str] = set()  # reasons
        self.refused = 0  # streams
        self._calls: set[asyncio.Task[Any]] = set()
        self._leaving = False
        self._holding = Holding(shell.router, shell.clock, shell.draw)
        self._held: set[asyncio.Task[Any]] = set()  # calls whose request waits, or was refused after that
        self._over = False
        self.idle = asyncio.Event()  # no request is under way
        self.idle.set()

    def use(self, shell: Shell) -> None:
        """Take new streams by other rules; those that are under way go on by theirs."""
        self._shell = shell
        self._wanted = shell.rules.headers

    async def process(self, _messages: object, context: Any) -> None:
        """Answer the messages of one stream in turn.

        A message of another protocol ends it with INVALID_ARGUMENT; beyond `max_streams` it ends with
        RESOURCE_EXHAUSTED before its first message is looked at, after `leave` with UNAVAILABLE: Envoy asks another
        worker, or goes on without us. But where requests are held for want of room, none beyond may go past those: it
        is refused.

        Messages are read from `context`: gRPC's iterator over them would hold a body until the engine answers.
        """
        shell, wanted = self._shell, self._wanted
        if self._leaving or self._open_streams >= shell.max_streams:
            await self._beyond(context)
            await self._reset()
            return
        self._open_streams += 1
        self.idle.clear()
        exchange_id = f"{self._name}-{next(self._numbers)}"
        exchange = Exchange(shell.router, exchange_id, shell.rules)
        if shell.rules.traces:
            exchange.trace_parent = _parent(context)
        watch = Stopwatch()
        call = asyncio.current_task()
        assert call is not None
        self._calls.add(call)
        try:
            while (data := await _next(context, exchange)) is not grpc.aio.EOF:
                began_s = shell.clock()
                message = wire.decode_message(data, wanted)
                read_at_s = shell.clock()
                step = exchange.receive(message, began_s, shell.draw())
                watch.read_s += read_at_s - began_s
                watch.decide_s += shell.clock() - read_at_s
                answers_headers = isinstance(message, ResponseHeaders)
                # The engine's answer, or room for it, may be minutes away: the body is not kept until then.
                del data, message
                if not isinstance(step, tuple):
                    step, began_s = await self._resumed(exchange, step, began_s, watch, call, context)
                if answers_headers:
                    self._holding.stir()
                answers = self._encoded(exchange, step, began_s, watch)
                del step
                for answer in answers:
                    if len(answer) > _LONG_BYTES:
                        await others_turn()
                    await context.write(answer)
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
        await self._reset()

    async def _reset(self) -> None:
        """Give Envoy the time to reset a stream on which all is said."""
        if not self._over:  # then all are ended by us, in good order, and the process with them
            await asyncio.sleep(_CANCELLED_WITHIN_S)

    async def _resumed(
        self,
        exchange: Exchange,
        errand: Errand,
        began_s: float,
        watch: Stopwatch,
        call: asyncio.Task[Any],
        context: Any,
    ) -> tuple[Replies, float]:
        """Run errands up to the replies. These come with `began_s`, later by the time that the request has waited."""
        shell = self._shell
        step = await self._run(exchange, errand, watch)
        while not isinstance(step, tuple):
            waits_from_s = shell.clock()
            wait, more_time = exchange.wait(step, waits_from_s)
            self._waits(call, wait)
            if more_time is not None:
                await context.write(wire.encode_reply(more_time, shell.cluster_header))
            result, now = await self._waited(wait), shell.clock()
            began_s += now - waits_from_s  # waiting is no part of what answering takes
            step = await self._run(exchange, self._went_on(exchange, result, now, watch), watch)
        self._noted(call, step)
        return step, began_s

    async def _run(self, exchange: Exchange, step: Replies | Errand, watch: Stopwatch) -> Replies | Wait:
        """Run errands up to the replies, or to one that takes so long that Envoy has to be told."""
        shell = self._shell
        while True:
            left_at_s = shell.clock()
            match step:
                case ReadBody():
                    read = shell.read
                    result: object = await read(step.unread, step.salts, step.renames) if read else None
                case CountTokens():
                    result = await shell.count(step) if shell.count else None
                case TakePlace():
                    result = await shell.places.take(step) if shell.places else 0
                case Charge():
                    result = await shell.charges.charge(step) if shell.charges else None
                case _:
                    return step
            now = shell.clock()
            watch.errand_s += now - left_at_s
            step = self._went_on(exchange, result, now, watch)

    def _went_on(self, exchange: Exchange, result: object, now: float, watch: Stopwatch) -> Replies | Errand:
        step = exchange.resume(result, now, self._shell.draw())
        watch.decide_s += self._shell.clock() - now
        return step

    def _waits(self, call: asyncio.Task[Any], errand: Wait) -> None:
        """What is to be done at once, before anything else can happen to a request that is held."""
        if isinstance(errand, Hold):
            self._holding.expect(errand)
        self._held.add(call)

    async def _waited(self, errand: Wait) -> object:
        if isinstance(errand, Hold):
            return await self._holding.turn(errand)
        return await self._shell.cold_waits.until_served(errand) if self._shell.cold_waits else False

    def _close(self, exchange: Exchange, exchange_id: str) -> None:
        """Give back all that a request had; perhaps it makes room for one that is held."""
        shell = self._shell  # as it is now: limits may have been set meanwhile
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

    async def _beyond(self, context: Any) -> None:
        """A stream that is not taken: refused if it would be held, else left to Envoy without being looked at."""
        shell = self._shell
        if self._leaving:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "this worker is leaving")
        self.refused += 1
        if shell.router.policy.admission is not None and (data := await context.read()) is not grpc.aio.EOF:
            exchange = Exchange(shell.router, "", shell.rules)
            try:
                answer = no_room_answer(wire.decode_message(data, self._wanted), shell.rules, shell.draw())
            except wire.WireError as error:
                await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
            if answer is not None:
                for encoded in self._encoded(exchange, (answer,), shell.clock(), Stopwatch()):
                    await context.write(encoded)
                return
        await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "too many requests are under way here")

    def _encoded(self, exchange: Exchange, replies: Replies, began_s: float, watch: Stopwatch) -> Iterator[bytes]:
        shell, encodes_at_s = self._shell, self._shell.clock()
        mark = shell.observer.mark
        for each in replies:
            if isinstance(each, Continue):  # most of them: nothing has come of it
                yield wire.encode_reply(each, shell.cluster_header)
                continue
            reply = (
                each if mark is None or not isinstance(each, RouteTo) else mark(exchange, each, encodes_at_s - began_s)
            )
            answer = wire.encode_reply(reply, shell.cluster_header)
            encoded_at_s = shell.clock()
            if isinstance(reply, RouteTo | Answer | PassOn):
                shell.observer.phases.add(watch, encoded_at_s - encodes_at_s)
            shell.observer.replied(exchange, reply, encoded_at_s - began_s)
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

    @property
    def rollout_share(self) -> float:
        """Share of requests that are routed now."""
        return self._shell.rules.rollout_share

    async def refuse_held(self, within_s: float) -> None:
        """Refuse who is held, and wait for Envoy to have heard of it: an end without an answer lets requests on."""
        held = tuple(self._held)
        self._holding.close()
        if self._shell.cold_waits is not None:
            self._shell.cold_waits.close()
        if held:
            await asyncio.wait(held, timeout=within_s)

    def end(self) -> None:
        """End all streams in good order. By an error Envoy would cut answers whose body it streamed to us."""
        self._over = True
        for call in self._calls:
            call.cancel()


def _next(context: Any, exchange: Exchange) -> Awaitable[Any]:
    """The next message; once a reply was given it may be long in coming, and the stream be reset meanwhile."""
    if not exchange.replied:
        read: Awaitable[Any] = context.read()
        return read
    reading = asyncio.ensure_future(context.read())
    reading.add_done_callback(_over)
    return asyncio.shield(reading)


def _over(reading: asyncio.Future[Any]) -> None:
    """Look at how a read has ended that nobody waits for any more: of streams that we end it does so by an error."""
    if not reading.cancelled():
        reading.exception()


def _parent(context: Any) -> str:
    """The span of Envoy's call to us, which Envoy puts into the call's own headers; "" if it traces none."""
    return next((value for name, value in context.invocation_metadata() or () if name == PARENT_HEADER), "")
