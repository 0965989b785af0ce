"""A connection that rests after each message: nothing is lost or late for good, and whatever ends it is noticed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest
import uvloop

from extproc.adapters import redis_client
from extproc.adapters.redis_client import Message
from extproc.adapters.redis_following import Following
from extproc.adapters.redis_link import Link
from extproc.adapters.redis_settings import RedisSettings, parse
from extproc.demo.ports import free_port
from extproc.errors import RegistryError
from tests.redis_server import RedisServer, binary
from tests.registry.deployments import certificates

pytestmark = pytest.mark.parametrize("kind", ["valkey"])
CHANNEL = "extproc:{default}:events"
MESSAGES = 300
TLS_FILES = {"cert": "server.pem", "key": "server.key", "ca-cert": "ca.pem"}


class Rests:
    """Stands for the time of a rest: it ends when the test says so."""

    def __init__(self) -> None:
        self.begun, self.over = asyncio.Event(), asyncio.Event()

    async def sleep(self, _for_s: float) -> None:
        self.begun.set()
        await self.over.wait()
        self.begun.clear()
        self.over.clear()


@pytest.fixture
def rests(monkeypatch: pytest.MonkeyPatch) -> Rests:
    made = Rests()
    monkeypatch.setattr(redis_client, "asyncio", SimpleNamespace(**{**vars(asyncio), "sleep": made.sleep}))
    return made


def reads(following: Following) -> bool:
    connection = following._subscription._pubsub.connection
    assert connection is not None
    assert connection._writer is not None
    return bool(connection._writer.transport.is_reading())


async def test_a_server_that_ends_while_a_command_is_under_way_is_told_in_the_systems_own_words(
    server: RedisServer,
) -> None:
    """Not in the library's, which are a sentence and a number more."""
    settings = parse(server.url)
    client, other = (redis_client.Client(settings, settings.nodes[0]) for _ in range(2))
    blocked = asyncio.create_task(client.command("BLPOP", "nothing", "60"))
    while b"cmd=blpop" not in await other.command("CLIENT", "LIST"):
        pass
    server.stop()
    with pytest.raises(RegistryError, match=r"\(connection refused\): start it, or name another"):
        await blocked
    await client.aclose()
    await other.aclose()


async def test_what_comes_while_the_connection_rests_is_read_in_one_go(server: RedisServer, rests: Rests) -> None:
    """The first one, and those that came with it without another turn of waiting."""
    async with Link(server.url) as link, link.follow(CHANNEL, gather_s=1.0) as following:
        for first in (0, 6):
            got = asyncio.create_task(anext(following))
            await rests.begun.wait()
            assert not reads(following)
            for number in range(first, first + 6):
                await link.publish(CHANNEL, b"%d" % number)
            assert not got.done()
            rests.over.set()
            assert await got == Message(CHANNEL, b"%d" % first)
            for number in range(first + 1, first + 6):
                step = anext(following)
                with pytest.raises(StopIteration) as ended:  # it has nothing to wait for
                    step.send(None)
                assert ended.value.value == Message(CHANNEL, b"%d" % number)


async def test_a_burst_that_is_read_in_one_go_lets_others_through(server: RedisServer, rests: Rests) -> None:
    """Hundreds of agents' reports would hold all requests up."""
    async with Link(server.url) as link, link.follow(CHANNEL, gather_s=1.0) as following:
        got = asyncio.create_task(anext(following))
        await rests.begun.wait()
        for number in range(200):
            await link.publish(CHANNEL, b"%d" % number)
        rests.over.set()
        await got
        turns, heard = 0, 1
        while heard < 200:
            step = anext(following)
            try:
                while True:
                    step.send(None)
                    turns += 1
            except StopIteration:
                heard += 1
        assert 200 // 40 <= turns <= 200 // 20


async def test_a_rest_that_is_broken_off_leaves_the_connection_reading(server: RedisServer, rests: Rests) -> None:
    """The next to ask hears what came."""
    async with Link(server.url) as link, link.follow(CHANNEL, gather_s=1.0) as following:
        got = asyncio.create_task(anext(following))
        await rests.begun.wait()
        await link.publish(CHANNEL, b"0")
        got.cancel()
        with suppress(asyncio.CancelledError):
            await got
        assert reads(following)
        rests.over.set()
        assert await anext(following) == Message(CHANNEL, b"0")


async def test_a_server_that_ends_while_the_connection_rests_is_noticed(server: RedisServer, rests: Rests) -> None:
    """As it is while one listens: an error, and no silence."""
    async with Link(server.url) as link, link.follow(CHANNEL, gather_s=1.0) as following:
        got = asyncio.create_task(anext(following))
        await rests.begun.wait()
        server.stop()
        rests.over.set()
        with pytest.raises(RegistryError):
            await got


async def test_a_connection_that_was_given_up_is_told_as_such(server: RedisServer) -> None:
    """In our own words, and not in those of the library."""
    async with Link(server.url) as link, link.follow(CHANNEL, gather_s=1.0) as following:
        connection = following._subscription._pubsub.connection
        assert connection is not None
        connection._parser.on_disconnect()
        with pytest.raises(RegistryError):
            await anext(following)


@pytest.mark.parametrize("by", ["tcp", "unix", "tls"])
@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def test_all_is_heard_and_the_end_is_noticed_on_either_loop(
    kind: str, by: str, new_loop: Callable[[], asyncio.AbstractEventLoop], tmp_path: Path
) -> None:
    """Each pauses its sockets in its own way, and TLS has buffers between. Uneven rests meet packets at any moment."""
    server, settings = reached(kind, by, tmp_path)

    async def follow() -> list[bytes]:
        async with Link(settings) as link, link.follow(CHANNEL, gather_s=0.003) as following:
            telling = asyncio.create_task(tell(link))
            heard: list[bytes] = []
            while len(heard) < MESSAGES:
                message = await anext(following)
                heard += [message.payload] if message else []
            await telling
            server.stop()
            with pytest.raises(RegistryError):
                await asyncio.wait_for(nothing_more(following), 60.0)
            return heard

    async def nothing_more(following: Following) -> None:
        async for message in following:
            assert message is None

    async def tell(link: Link) -> None:
        for number in range(MESSAGES):
            await link.publish(CHANNEL, told(number))
            if number % 7 == 0:
                await asyncio.sleep(0.001 * (number % 5))

    with server, asyncio.Runner(loop_factory=new_loop) as runner:
        assert runner.run(follow()) == [told(number) for number in range(MESSAGES)]


def told(number: int) -> bytes:
    """Now and then more than one packet holds, and than a buffer does."""
    return b"%d" % number * (30_000 if number % 50 == 49 else 1)


def reached(kind: str, by: str, folder: Path) -> tuple[RedisServer, RedisSettings]:
    """A server that is not started yet, and the way to it."""
    if by == "unix":
        door = folder / "door"
        return RedisServer(kind, folder, "--unixsocket", str(door)), parse(f"unix://{door}")
    if by == "tcp":
        server = RedisServer(kind, folder)
        return server, parse(server.url)
    if binary("redis") is None:
        pytest.skip("redis, which has TLS, is not installed")
    certificates(folder)
    port = free_port()
    files = {f"--tls-{name}-file": str(folder / file) for name, file in TLS_FILES.items()}
    options = [word for pair in files.items() for word in pair]
    server = RedisServer("redis", folder, "--tls-port", str(port), "--tls-auth-clients", "no", *options)
    return server, parse(f"rediss://127.0.0.1:{port}", ca_file=str(folder / "ca.pem"))
