"""KV events over ZeroMQ: follows an engine's publishers, and publishes as an engine does.

An engine's rank publishes on a PUB socket and answers replay requests on a ROUTER socket: ("", number as 8 bytes) asks
for all frames from that number on that it still has; each comes as ("", number, batch), and a number of all ones ends
the answer; vLLM from 0.26 on and TensorRT-LLM put the topic before the number. Rank n uses the ports of rank 0 plus n.
Source: ZmqEventPublisher in vLLM's vllm/distributed/kv_events.py, which SGLang shares.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

import zmq
import zmq.asyncio
from zmq.utils.monitor import parse_monitor_message

from extproc.adapters.kv_frames import END_OF_REPLAY, SEQ_BYTES, KvEventsError, read_frame, read_seq
from extproc.core.prefixes.kv_delta import KvDelta
from extproc.core.prefixes.kv_fold import KvFold
from extproc.core.prefixes.kv_sequence import KvSequence
from extproc.errors import ConfigError

# The monitor's event for "the other side is there (again)", whichever side connected.
_UP = zmq.EVENT_HANDSHAKE_SUCCEEDED
_IDLE_S = 1.0  # how long `KvFold.resync` may wait for its delta while the engine says nothing
_MAX_FRAMES_AT_ONCE = 256
_RECONNECT_MS, _RECONNECT_MAX_MS = 100, 5000

OnDelta = Callable[[KvDelta], Awaitable[None]]
OnSequence = Callable[[KvSequence], None]


@dataclass(frozen=True, kw_only=True)
class KvEventsSettings:
    """Where an engine's KV events are, for its rank 0."""

    endpoint: str  # such as tcp://10.0.0.1:5557
    bind: bool = False  # the engine connects to us; so it is too where the endpoint has a `*` for its address
    replay_endpoint: str | None = None  # without it, lost frames cost the index of that rank
    topic: str = ""  # beginning of the topics to listen to
    ranks: int = 1  # data-parallel ranks of the instance
    batch_s: float = 0.02  # how long events are gathered before they are told
    check_s: float = 10.0  # silence after which the replay endpoint is asked whether that is all
    replay_timeout_s: float = 5.0  # silence after which a replay counts as failed
    max_queued_frames: int = 20_000  # beyond, frames are lost (and asked for again)

    def __post_init__(self) -> None:
        """Raise ConfigError for endpoints that have no place for a rank."""
        for endpoint in (self.endpoint, self.replay_endpoint):
            if endpoint is not None:
                rank_endpoint(endpoint, self.ranks - 1)


def rank_endpoint(endpoint: str, rank: int) -> str:
    """The endpoint of a rank: port plus rank, or for inproc a suffix. Raises ConfigError."""
    scheme, _, rest = endpoint.partition("://")
    host, _, port = rest.rpartition(":")
    if scheme == "tcp" and host and port.isdecimal() and 0 < int(port) + rank <= 65535:
        return f"tcp://{host}:{int(port) + rank}"
    if scheme in ("ipc", "inproc") and rest:
        return f"{endpoint}_dp{rank}" if rank else endpoint
    raise ConfigError(f"{endpoint!r} is no endpoint of KV events for rank {rank}: use tcp://HOST:PORT")


async def follow(
    settings: KvEventsSettings, fold: KvFold, on_delta: OnDelta, on_sequence: OnSequence = lambda sequence: None
) -> None:
    """Fold one incarnation's events and await `on_delta` for every change, in order, until cancelled.

    While `on_delta` waits, frames queue up; `fold` is empty at the start and belongs to this call. `on_sequence` gets
    each rank's sequence, at the start, for those who count what went wrong with it. Raises ConfigError if an endpoint
    cannot be used, and what `on_delta` raises.
    """
    order = asyncio.Lock()

    async def tell() -> None:
        async with order:
            while (delta := fold.take()) is not None:
                await on_delta(delta)

    context = zmq.asyncio.Context()
    listeners = [_Listener(context, settings, fold, rank) for rank in range(settings.ranks)]
    for listener in listeners:
        on_sequence(listener.sequence)
    try:
        async with asyncio.TaskGroup() as ranks:
            for listener in listeners:
                ranks.create_task(listener.run(tell))
    except ExceptionGroup as group:  # ranks fail alike, and the first one ended the others
        raise group.exceptions[0] from None
    finally:
        context.destroy(linger=0)


class _Listener:
    """One rank's SUB socket, and the DEALER sockets that ask for what was missed."""

    def __init__(self, context: zmq.asyncio.Context, settings: KvEventsSettings, fold: KvFold, rank: int) -> None:
        replay = settings.replay_endpoint
        self._context = context
        self._settings = settings
        self._endpoint = rank_endpoint(settings.endpoint, rank)
        self._replay_endpoint = rank_endpoint(replay, rank) if replay else None
        self.sequence = KvSequence(fold, rank, can_replay=replay is not None)
        self._topic: bytes | None = None

    async def run(self, tell: Callable[[], Awaitable[None]]) -> None:
        """Receive until cancelled, and call `tell` whenever something may have changed."""
        socket = self._context.socket(zmq.SUB)
        socket.set_hwm(self._settings.max_queued_frames)
        socket.setsockopt(zmq.RECONNECT_IVL, _RECONNECT_MS)
        socket.setsockopt(zmq.RECONNECT_IVL_MAX, _RECONNECT_MAX_MS)
        socket.setsockopt(zmq.TCP_KEEPALIVE, 1)
        socket.setsockopt_string(zmq.SUBSCRIBE, self._settings.topic)
        monitor = socket.get_monitor_socket(_UP)
        poller = zmq.asyncio.Poller()
        poller.register(socket, zmq.POLLIN)
        poller.register(monitor, zmq.POLLIN)
        try:
            self._open(socket)
            await tell()
            clock = asyncio.get_running_loop().time
            heard_s = clock()
            while True:
                if await poller.poll(round(1000 * min(_IDLE_S, self._settings.check_s))):
                    await asyncio.sleep(self._settings.batch_s)
                    await self._receive(socket, monitor)
                    heard_s = clock()
                elif clock() - heard_s > self._settings.check_s:
                    await self._catch_up(self.sequence.idle())
                    heard_s = clock()
                await tell()
        finally:
            socket.disable_monitor()
            socket.close(linger=0)

    def _open(self, socket: zmq.asyncio.Socket) -> None:
        try:
            if self._settings.bind or "*" in self._endpoint:
                socket.bind(self._endpoint)
            else:
                socket.connect(self._endpoint)
        except zmq.ZMQError as error:
            raise ConfigError(f"cannot listen for KV events at {self._endpoint} ({error.strerror})") from error

    async def _receive(self, socket: zmq.asyncio.Socket, monitor: zmq.asyncio.Socket) -> None:
        """Take in what has arrived; of a new connection before what came over it."""
        messages = await _drain(socket, _MAX_FRAMES_AT_ONCE)
        signals = [parse_monitor_message(message) for message in await _drain(monitor, _MAX_FRAMES_AT_ONCE)]
        if any(signal["event"] == _UP for signal in signals):
            await self._catch_up(self.sequence.connected())
        for parts in messages:
            try:
                seq = read_seq(parts)
            except KvEventsError:
                continue  # no publisher of KV events says that
            if self._topic is None:
                self._topic = parts[0]
            if parts[0] != self._topic:
                continue  # numbers count for each topic, and this listener follows one publisher
            try:
                frame = read_frame(parts)
            except KvEventsError:
                self.sequence.unreadable(seq)
            else:
                await self._catch_up(self.sequence.live(frame))

    async def _catch_up(self, start: int | None) -> None:
        while start is not None:
            start = self.sequence.replay_ended(complete=await self._replay(start))

    async def _replay(self, start: int) -> bool:
        """Ask for all frames from `start` on and take them in; False if the answer does not come to its end."""
        if self._replay_endpoint is None:
            return False
        socket = self._context.socket(zmq.DEALER)
        try:
            socket.connect(self._replay_endpoint)
            await socket.send_multipart((b"", start.to_bytes(SEQ_BYTES, "big")))
            for count in itertools.count(1):
                async with asyncio.timeout(self._settings.replay_timeout_s):
                    parts = await socket.recv_multipart()
                if len(parts) >= 2 and parts[-2] == END_OF_REPLAY:
                    break
                with contextlib.suppress(KvEventsError):  # the sequence sees that one is missing
                    if not self.sequence.replay(read_frame(parts)):
                        break
                if not count % _MAX_FRAMES_AT_ONCE:
                    await asyncio.sleep(0)  # what has arrived is received without a pause; others want to live too
        except (TimeoutError, zmq.ZMQError):
            return False
        else:
            return True
        finally:
            socket.close(linger=0)


async def _drain(socket: zmq.asyncio.Socket, limit: int) -> list[list[bytes]]:
    messages: list[list[bytes]] = []
    with contextlib.suppress(zmq.Again):
        while len(messages) < limit:
            messages.append(await socket.recv_multipart(zmq.NOBLOCK))
    return messages


class KvPublisher:
    """Publishes batches as vLLM's publisher does, and answers replay requests from the last `buffer_steps` of them."""

    def __init__(self, pub: zmq.asyncio.Socket, topic: str, buffer_steps: int) -> None:
        self._pub = pub
        self._topic = topic.encode()
        self._buffer: deque[tuple[bytes, bytes]] = deque(maxlen=buffer_steps)
        self._next = 0

    def publish(self, payload: bytes) -> None:
        """Send one batch under the next number; with nobody listening, or too slowly, it is only kept for replays."""
        seq = self._next.to_bytes(SEQ_BYTES, "big")
        self._next += 1
        self._buffer.append((seq, payload))
        self._pub.send_multipart((self._topic, seq, payload))

    async def answer_replays(self, router: zmq.asyncio.Socket) -> None:
        """Serve replay requests until cancelled."""
        while True:
            request = await router.recv_multipart()
            if len(request) != 3 or len(request[2]) != SEQ_BYTES:
                continue
            for seq, payload in list(self._buffer):
                if seq >= request[2]:  # big-endian: the order of bytes is that of numbers
                    await router.send_multipart((request[0], b"", seq, payload))
            await router.send_multipart((request[0], b"", END_OF_REPLAY, b""))


@contextlib.asynccontextmanager
async def open_publisher(
    endpoint: str, replay_endpoint: str | None = None, *, topic: str = "", buffer_steps: int = 10_000
) -> AsyncIterator[KvPublisher]:
    """A publisher inside the context. Raises ConfigError.

    As vLLM's it binds to tcp://*:PORT and to ipc and inproc, and connects to any other address.
    """
    context = zmq.asyncio.Context()
    pub = context.socket(zmq.PUB)
    publisher = KvPublisher(pub, topic, buffer_steps)
    answers: asyncio.Task[None] | None = None
    try:
        try:
            if "*" in endpoint or endpoint.startswith(("ipc://", "inproc://")):
                pub.bind(endpoint)
            else:
                pub.connect(endpoint)
            if replay_endpoint:
                router = context.socket(zmq.ROUTER)
                router.bind(replay_endpoint)
                answers = asyncio.create_task(publisher.answer_replays(router))
        except zmq.ZMQError as error:
            raise ConfigError(f"cannot publish KV events at {endpoint} ({error.strerror})") from error
        yield publisher
    finally:
        if answers is not None:
            answers.cancel()
            await asyncio.gather(answers, return_exceptions=True)
        context.destroy(linger=0)
