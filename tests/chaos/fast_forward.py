"""An hour of a fleet's life in minutes: Envoy's messages over gRPC, reports, restarts, instances that come and go."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import grpc.aio
import orjson
from envoy.service.accesslog.v3 import als_pb2
from envoy.service.ext_proc.v3 import external_processor_pb2 as ext_proc

from extproc.adapters import wire
from extproc.adapters.registry import Registry
from extproc.bench.envoy_messages import access_log, chosen, conversation
from extproc.core.values.instance import Lifecycle, Load
from tests.core.builders import MODEL, instance

TENANT_HEADER = "x-tenant"
SESSIONS = 2_000
# More than any table of tenants has room for, so that these are full early, and turn over; with some hundreds, windows
# of answers' lengths (1,024 of them) would fill during all of the run.
TENANTS = 5_000
# Names of guests, which come again. With ever new ones two bounded tables would fill during all of the run: what is
# known of those whose records ran out is kept for `RETENTION_S`, 10 to 20 kB each, and counters keep 1,024 names.
GUESTS = 12
ABORTED_SHARE = 0.1
# The message after which a client leaves. After the body's (1) the decision is never read, so that no outcome comes:
# what is kept of such a request is bounded, but it takes long to get there if they are many.
_LEAVE_AFTER = (0, 2) * 10 + (1,)
_TOLD_AT_ONCE = 16  # requests in a message of the access log
_BODIES = (40, 400, 4000)  # words of a prompt


@dataclass
class Driver:
    """Plays Envoy for one service. Chance is seeded: which request does what is the same each time."""

    channels: list[grpc.aio.Channel]
    chance: random.Random = field(default_factory=lambda: random.Random(7))
    sent: int = 0
    routed: int = 0
    aborted: int = 0
    undecided: int = 0
    _told: list[tuple[bytes, str, bool]] = field(default_factory=list)

    async def requests(self, count: int, at_once: int) -> None:
        """Send so many, and wait for the end of all."""
        numbers = iter(range(count))

        async def client(channel: grpc.aio.Channel) -> None:
            for number in numbers:
                await self._one(channel, number)

        async with asyncio.TaskGroup() as clients:
            for _, channel in zip(range(at_once), itertools.cycle(self.channels), strict=False):
                clients.create_task(client(channel))
        await self._tell()

    async def _one(self, channel: grpc.aio.Channel, number: int) -> None:
        leaves_after = self.chance.choice(_LEAVE_AFTER) if self.chance.random() < ABORTED_SHARE else None
        messages = self._messages(number)
        self.sent += 1
        call = channel.stream_stream("/" + "/".join(wire.EXT_PROC_METHOD))()
        routed, upstream = b"", ""
        for place, message in enumerate(messages):
            await call.write(message)
            if place == leaves_after:
                call.cancel()
                self.aborted += 1
                if upstream:
                    await self._note(routed, upstream, left=True)
                return
            reply = await call.read()
            if place == 1:
                routed, upstream = reply, chosen(reply)
            if place == 2:  # what an engine takes to answer, in which others are under way
                await asyncio.sleep(self.chance.random() * 0.02)
        call.cancel()  # as Envoy ends each stream
        if not upstream:
            self.undecided += 1
            return
        self.routed += 1
        await self._note(routed, upstream)

    def _messages(self, number: int) -> tuple[bytes, ...]:
        """Turns of sessions that come again, and as many prompts that never do."""
        again = self.chance.random() < 0.5
        session = self.chance.randrange(SESSIONS) if again else SESSIONS + number
        words = f"session {session} says " * (_BODIES[session % 3] // 3)
        content = [{"role": "user", "content": f"{words}{'' if again else self.chance.random()}"}]
        body = orjson.dumps({"model": MODEL, "messages": content, "stream": bool(number % 2)})
        first, *rest = conversation(body, "127.0.0.1:1")
        headers = ext_proc.ProcessingRequest.FromString(first)
        tenant = f"tenant-{self.chance.randrange(TENANTS)}"
        headers.request_headers.headers.headers.add(key=TENANT_HEADER, raw_value=tenant.encode())
        return bytes(headers.SerializeToString()), *rest

    async def _note(self, reply: bytes, upstream: str, *, left: bool = False) -> None:
        self._told.append((reply, upstream, left))
        if len(self._told) >= _TOLD_AT_ONCE:
            await self._tell()

    async def _tell(self) -> None:
        told, self._told = self._told, []
        if told:
            message = als_pb2.StreamAccessLogsMessage.FromString(access_log([each[:2] for each in told]))
            for entry, (_, _, left) in zip(message.http_logs.log_entry, told, strict=True):
                if left:
                    entry.common_properties.response_flags.downstream_connection_termination = True
                    entry.response.response_code.value = 0
            call = self.channels[0].stream_unary("/" + "/".join(wire.ACCESS_LOG_METHOD))()
            await call.write(message.SerializeToString())
            await call.done_writing()
            await call


@asynccontextmanager
async def driving(port: int, channels: int = 4) -> AsyncIterator[Driver]:
    """As many connections as Envoy has threads."""
    made = [grpc.aio.insecure_channel(f"127.0.0.1:{port}", (("extproc.n", n),)) for n in range(channels)]
    try:
        yield Driver(made)
    finally:
        await asyncio.gather(*(channel.close() for channel in made))


@dataclass
class Fleet:
    """Records of instances, as agents would publish them: four that stay, one that restarts, and one after another."""

    registry: Registry
    published: int = 0
    restarts: int = 0
    guests: int = 0

    async def live(self, period_s: float = 0.1) -> None:
        """Publish until cancelled: a report each time; every 20th a restart, and a guest that takes another's place."""
        for turn in itertools.count():
            if turn % 20 == 0:
                self.restarts += 1
                if self.guests:
                    await self._leaves(self.guests, turn)
                self.guests += 1
            for name in ("a", "b", "c", "d"):
                await self._publish(name, turn)
            await self._publish("restarted", turn, incarnation=str(self.restarts))
            await self._publish(_guest(self.guests), turn, incarnation=str(self.guests))
            await asyncio.sleep(period_s)

    async def _leaves(self, guest: int, turn: int) -> None:
        """It is taken from the registry, or said to have stopped; then its record runs out, and is remembered."""
        if guest % 2:
            await self.registry.remove(_guest(guest))
        else:
            await self._publish(_guest(guest), turn, incarnation=str(guest), lifecycle=Lifecycle.STOPPED)

    async def _publish(self, name: str, turn: int, **changes: object) -> None:
        load = Load(running=turn % 7, waiting=turn % 2, kv_usage=(turn % 10) / 20)
        place = {"address": f"127.0.0.1:{_port(name)}", "load": load}
        await self.registry.publish(instance(name, **place | changes), ttl_s=10.0)
        self.published += 1


def _guest(number: int) -> str:
    return f"guest-{number % GUESTS}"


def _port(name: str) -> int:
    return 10_000 + sum(map(ord, name)) * 7 % 20_000 + len(name)
