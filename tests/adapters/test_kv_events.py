"""Following publishers of KV events over real sockets: joins, gaps, restarts, ranks, and a clean end."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import uvloop
import zmq
import zmq.asyncio

from extproc.adapters.kv_events import KvEventsSettings, follow, open_publisher, rank_endpoint
from extproc.adapters.kv_frames import END_OF_REPLAY, read_frame
from extproc.core.prefixes.kv_delta import KvDelta
from extproc.core.prefixes.kv_fold import KvFold
from extproc.core.prefixes.kv_sequence import KvSequence
from extproc.demo.ports import free_port
from extproc.errors import ConfigError
from tests.adapters.kv_recording import MODEL, held_after_each, parts, payloads
from tests.core.kv_parts import Router

RECORDED = payloads()
TRUTH = held_after_each(RECORDED)


async def until(condition: Callable[[], bool]) -> None:
    """Wait as long as a very slow machine may need."""
    async with asyncio.timeout(60):
        while True:
            if condition():
                return
            await asyncio.sleep(0.005)


@asynccontextmanager
async def following(settings: KvEventsSettings, router: Router, fold: KvFold | None = None) -> AsyncIterator[None]:
    """Follow in the background; on exit it is cancelled and must end as cancelled."""

    async def apply(delta: KvDelta) -> None:
        router.apply(delta)

    task = asyncio.create_task(follow(settings, KvFold(MODEL) if fold is None else fold, apply))
    try:
        yield
    finally:
        task.cancel()
        (result,) = await asyncio.gather(task, return_exceptions=True)
    assert isinstance(result, asyncio.CancelledError), result


class RawEngine:
    """A publisher made of bare sockets, so that frames can be lost on purpose."""

    def __init__(self, place: Path, *, replay: bool = True) -> None:
        self.context = zmq.asyncio.Context()
        self.pub = self.context.socket(zmq.PUB)
        self.pub.bind(f"ipc://{place}/pub")
        self.buffer: list[tuple[int, bytes]] = []
        self.settings = KvEventsSettings(
            endpoint=f"ipc://{place}/pub",
            replay_endpoint=f"ipc://{place}/replay" if replay else None,
            batch_s=0.0,
            replay_timeout_s=0.2,
        )
        self.asked: list[int] = []
        self.topic_in_answers = False  # as TensorRT-LLM has it
        self.router = self.context.socket(zmq.ROUTER)
        self.router.bind(f"ipc://{place}/replay")
        self.answering = asyncio.create_task(self.answer())

    async def send(self, *numbers: int, lost: bool = False) -> None:
        """Publish recorded frames by number."""
        for seq in numbers:
            self.buffer.append((seq, RECORDED[seq]))
            if not lost:
                await self.pub.send_multipart(parts(seq, RECORDED[seq]))

    async def answer(self) -> None:
        """The replay endpoint, written after vLLM's."""
        topic = [b""] if self.topic_in_answers else []
        while True:
            client, _, start = await self.router.recv_multipart()
            self.asked.append(int.from_bytes(start, "big"))
            for seq, payload in self.buffer:
                if seq >= self.asked[-1]:
                    await self.router.send_multipart([client, b"", *topic, seq.to_bytes(8, "big"), payload])
            await self.router.send_multipart([client, b"", *topic, END_OF_REPLAY, b""])

    async def close(self) -> None:
        self.answering.cancel()
        await asyncio.gather(self.answering, return_exceptions=True)
        self.context.destroy(linger=0)


@asynccontextmanager
async def raw_engine(place: Path, *, replay: bool = True) -> AsyncIterator[RawEngine]:
    engine = RawEngine(place, replay=replay)
    try:
        yield engine
    finally:
        await engine.close()


async def test_a_listener_that_joins_late_and_loses_frames_ends_with_the_exact_set(tmp_path: Path) -> None:
    """The start comes by a replay at connection, the gap by another, the rest live."""
    async with raw_engine(tmp_path) as engine:
        await engine.send(*range(40))
        router = Router()
        async with following(engine.settings, router):
            await until(lambda: set(router.tiers) == TRUTH[39])
            await engine.send(*range(40, 60), lost=True)
            await engine.send(60)
            await until(lambda: set(router.tiers) == TRUTH[60])
            await engine.send(*range(61, 99))
            await until(lambda: set(router.tiers) == TRUTH[98])
        assert engine.asked == [0, 39]


async def test_answers_with_a_topic_before_the_number_are_understood(tmp_path: Path) -> None:
    """TensorRT-LLM's replays have one part more."""
    async with raw_engine(tmp_path) as engine:
        engine.topic_in_answers = True
        await engine.send(*range(40))
        router = Router()
        async with following(engine.settings, router):
            await until(lambda: set(router.tiers) == TRUTH[39])


@pytest.mark.parametrize("replay", [False, True], ids=["no replay endpoint", "replay endpoint silent"])
async def test_after_a_gap_that_cannot_be_filled_only_what_is_proven_since_is_known(
    tmp_path: Path, replay: bool
) -> None:
    """Known fault C2: the index is emptied. What is stored next is known, and with it what it was computed behind."""
    async with raw_engine(tmp_path, replay=replay) as engine:
        engine.answering.cancel()
        router, cleared = Router(), []

        async def apply(delta: KvDelta) -> None:
            cleared.append(delta.cleared)
            router.apply(delta)

        task = asyncio.create_task(follow(engine.settings, KvFold(MODEL), apply))
        await until(lambda: bool(cleared))
        while not router.tiers:  # until the subscription has reached the publisher
            await engine.pub.send_multipart(parts(0, RECORDED[0]))
            await asyncio.sleep(0.01)
        assert set(router.tiers) == TRUTH[0]
        await engine.send(30)
        await until(lambda: sum(cleared) >= 2 and bool(router.tiers))
        assert set(router.tiers) < TRUTH[30]
        await engine.pub.send_multipart(parts(31, RECORDED[0]))
        await until(lambda: set(router.tiers) >= TRUTH[0])
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def test_whatever_frames_of_a_real_engine_are_lost_nothing_is_known_that_is_not_held() -> None:
    """Blocks leave this small cache all the time; still most of what is held is proven again within 20 frames."""
    proven, held = 0, 0
    for first in range(1, 90, 4):
        for lost in (1, 3, 8):
            fold, router = KvFold(MODEL), Router()
            sequence = KvSequence(fold, 0, can_replay=False)
            for number, payload in enumerate(RECORDED):
                if first <= number < first + lost:
                    continue
                sequence.live(read_frame(parts(number, payload)))
                router.apply(fold.take())
                assert set(router.tiers) <= TRUTH[number], (first, lost, number)
                if number == first + lost + 20:
                    proven, held = proven + len(router.tiers), held + len(TRUTH[number])
    assert proven > held / 2


async def test_an_engine_that_restarts_at_the_same_place_starts_an_empty_index(tmp_path: Path) -> None:
    """Known fault C1: noticed by the connection alone, though the new process has published nothing yet."""
    router = Router()
    async with raw_engine(tmp_path) as engine:
        await engine.send(*range(40))
        settings = engine.settings
        listening = following(settings, router)
        await listening.__aenter__()
        await until(lambda: set(router.tiers) == TRUTH[39])
    async with raw_engine(tmp_path):
        await until(lambda: not router.tiers)
    await listening.__aexit__(None, None, None)


async def test_frames_lost_at_the_end_are_found_when_the_engine_has_been_silent_for_a_while(tmp_path: Path) -> None:
    """No later number shows the gap, so it is asked for."""
    async with raw_engine(tmp_path) as engine:
        await engine.send(*range(40))
        router = Router()
        async with following(replace(engine.settings, check_s=0.1), router):
            await until(lambda: set(router.tiers) == TRUTH[39])
            await engine.send(*range(40, 60), lost=True)
            await until(lambda: set(router.tiers) == TRUTH[59])
            engine.answering.cancel()
            for _ in range(2):  # the second comes after the first has failed
                await engine.router.recv_multipart()
            assert set(router.tiers) == TRUTH[59]


async def test_damaged_messages_end_nothing(tmp_path: Path) -> None:
    """A frame that cannot be read empties the index, junk without a number is nobody's."""
    async with raw_engine(tmp_path) as engine:
        await engine.send(*range(10))
        router = Router()
        async with following(engine.settings, router):
            await until(lambda: set(router.tiers) == TRUTH[9])
            await engine.send(10)
            await engine.pub.send_multipart([b"junk"])
            await engine.pub.send_multipart([b"other topic", (3).to_bytes(8, "big"), RECORDED[3]])
            await engine.send(11)
            await until(lambda: set(router.tiers) == TRUTH[11])
            await engine.pub.send_multipart(parts(12, b"\xc1"))
            await until(lambda: not router.tiers)


async def test_all_ranks_are_followed_at_their_own_endpoints(tmp_path: Path) -> None:
    """Two ranks hold the same: the block goes when the second lets it go."""
    place = f"ipc://{tmp_path}/pub"
    replay = f"ipc://{tmp_path}/replay"
    settings = KvEventsSettings(endpoint=place, replay_endpoint=replay, ranks=2, batch_s=0.0)
    async with (
        open_publisher(place, replay) as first,
        open_publisher(rank_endpoint(place, 1), rank_endpoint(replay, 1)) as second,
    ):
        first.publish(RECORDED[0])
        for payload in RECORDED:
            second.publish(payload)
        router = Router()
        async with following(settings, router):
            await until(lambda: set(router.tiers) == TRUTH[0] | TRUTH[98])
            for payload in RECORDED[1:]:
                first.publish(payload)
            await until(lambda: set(router.tiers) == TRUTH[98])


@pytest.mark.parametrize("engine_binds", [True, False])
async def test_either_side_may_bind(engine_binds: bool) -> None:
    """An engine binds with `*` for its address, and connects to a concrete one, where we then listen."""
    port, replay = free_port(), f"tcp://127.0.0.1:{free_port()}"
    engine_side = f"tcp://*:{port}" if engine_binds else f"tcp://127.0.0.1:{port}"
    settings = KvEventsSettings(
        endpoint=f"tcp://127.0.0.1:{port}", bind=not engine_binds, replay_endpoint=replay, topic="kv@", batch_s=0.0
    )
    router = Router()
    async with open_publisher(engine_side, replay, topic="kv@gpu-0@tiny") as publisher:
        for payload in RECORDED[:40]:
            publisher.publish(payload)
        async with following(settings, router):
            await until(lambda: set(router.tiers) == TRUTH[39])
            for payload in RECORDED[40:]:
                publisher.publish(payload)
            await until(lambda: set(router.tiers) == TRUTH[98])


async def test_a_resync_is_told_while_the_engine_is_silent(tmp_path: Path) -> None:
    """The agent asks for one when Redis has lost the stream; it comes in order with everything else."""
    async with raw_engine(tmp_path) as engine:
        await engine.send(*range(40))
        router, fold = Router(), KvFold(MODEL)
        async with following(engine.settings, router, fold):
            await until(lambda: set(router.tiers) == TRUTH[39])
            router.tiers.clear()
            fold.resync()
            await until(lambda: set(router.tiers) == TRUTH[39])


async def test_an_error_of_the_callback_ends_the_following(tmp_path: Path) -> None:
    """The caller decides what to do about it; nothing is lost silently."""

    async def refuse(delta: KvDelta) -> None:
        raise ConnectionResetError("Redis is gone")

    async with raw_engine(tmp_path) as engine:
        with pytest.raises(ConnectionResetError, match="Redis is gone"):
            await follow(engine.settings, KvFold(MODEL), refuse)


def test_it_runs_on_uvloop_too(tmp_path: Path) -> None:
    """The agent's event loop."""

    async def main() -> None:
        async with raw_engine(tmp_path) as engine:
            await engine.send(*range(40))
            router = Router()
            async with following(engine.settings, router):
                await until(lambda: set(router.tiers) == TRUTH[39])
                await engine.send(*range(40, 99))
                await until(lambda: set(router.tiers) == TRUTH[98])

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())


@pytest.mark.parametrize(
    ("endpoint", "rank", "expected"),
    [
        ("tcp://*:5557", 0, "tcp://*:5557"),
        ("tcp://10.0.0.1:5557", 3, "tcp://10.0.0.1:5560"),
        ("tcp://[::1]:5557", 1, "tcp://[::1]:5558"),
        ("inproc://cache", 2, "inproc://cache_dp2"),
    ],
)
def test_ranks_have_ports_in_a_row(endpoint: str, rank: int, expected: str) -> None:
    """As vLLM moves them."""
    assert rank_endpoint(endpoint, rank) == expected


@pytest.mark.parametrize(
    "endpoint", ["", "tcp://host", "tcp://host:port", "tcp://:5557", "http://h:1", "tcp://h:65535"]
)
def test_an_endpoint_that_cannot_be_used_is_a_readable_error(endpoint: str) -> None:
    """It names the endpoint and what one looks like."""
    with pytest.raises(ConfigError, match="tcp://HOST:PORT"):
        KvEventsSettings(endpoint=endpoint, ranks=2)


async def test_a_place_that_is_taken_is_a_readable_error() -> None:
    """Two listeners cannot bind one port."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        endpoint = f"tcp://127.0.0.1:{taken.getsockname()[1]}"

        async def ignore(delta: KvDelta) -> None:
            pass

        with pytest.raises(ConfigError, match="cannot listen for KV events"):
            await follow(KvEventsSettings(endpoint=endpoint, bind=True), KvFold(MODEL), ignore)
        with pytest.raises(ConfigError, match="cannot publish KV events"):
            async with open_publisher("tcp://*:1", endpoint):
                pass


def test_the_buffer_of_a_publisher_is_bounded(tmp_path: Path) -> None:
    """As vLLM's: the oldest batches go, and with them the prompts that the later ones continue."""

    async def main() -> None:
        place, replay = f"ipc://{tmp_path}/pub", f"ipc://{tmp_path}/replay"
        async with open_publisher(place, replay, buffer_steps=10) as publisher:
            for payload in [*RECORDED, RECORDED[0]]:
                publisher.publish(payload)
            router = Router()
            async with following(KvEventsSettings(endpoint=place, replay_endpoint=replay, batch_s=0.0), router):
                await until(lambda: set(router.tiers) == TRUTH[0])

    asyncio.run(main())
