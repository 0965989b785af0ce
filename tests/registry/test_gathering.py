"""A connection that rests after each message: nothing is lost or late for good, and whatever ends it is noticed."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from extproc.adapters.redis_link import Following, Link, Message
from extproc.errors import RegistryError
from tests.redis_server import RedisServer

pytestmark = pytest.mark.parametrize("kind", ["valkey"])
CHANNEL = "extproc:{default}:events"
REST_S = 1.0  # ample for five messages on a busy machine


def reads(following: Following) -> bool:
    connection = following._subscription._pubsub.connection
    assert connection is not None
    assert connection._writer is not None
    return bool(connection._writer.transport.is_reading())


async def until_it_rests(following: Following) -> None:
    while reads(following):  # noqa: ASYNC110 -- nothing tells
        await asyncio.sleep(0.001)


async def test_what_comes_while_the_connection_rests_is_read_in_one_go(server: RedisServer) -> None:
    """The first one, after a silence, at once; those that come during the rest without another turn of waiting."""
    async with Link(server.url) as link, link.follow(CHANNEL, gather_s=REST_S) as following:
        got = asyncio.create_task(anext(following))
        await until_it_rests(following)
        await link.publish(CHANNEL, b"0")
        assert await got == Message(CHANNEL, b"0")
        got = asyncio.create_task(anext(following))
        await until_it_rests(following)
        for number in range(1, 6):
            await link.publish(CHANNEL, b"%d" % number)
        assert await got == Message(CHANNEL, b"1")
        for number in range(2, 6):
            step = anext(following)
            with pytest.raises(StopIteration) as ended:  # it has nothing to wait for
                step.send(None)
            assert ended.value.value == Message(CHANNEL, b"%d" % number)


async def test_a_rest_that_is_broken_off_leaves_the_connection_reading(server: RedisServer) -> None:
    """The next to ask hears what came."""
    async with Link(server.url) as link, link.follow(CHANNEL, gather_s=60.0) as following:
        got = asyncio.create_task(anext(following))
        await until_it_rests(following)
        await link.publish(CHANNEL, b"0")
        got.cancel()
        with suppress(asyncio.CancelledError):
            await got
        assert reads(following)


async def test_a_server_that_ends_while_the_connection_rests_is_noticed(server: RedisServer) -> None:
    """As it is while one listens: an error, and no silence."""
    async with Link(server.url) as link, link.follow(CHANNEL, gather_s=REST_S) as following:
        got = asyncio.create_task(anext(following))
        await until_it_rests(following)
        server.stop()
        with pytest.raises(RegistryError):
            await got
