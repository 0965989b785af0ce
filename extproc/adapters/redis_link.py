"""The link to Redis or Valkey as an operator has it: commands, scripts, channels and streams, with readable errors.

The only importer of `redis`. What is written and where is the business of the link's users: the registry, the KV log …
All keys that one link's scripts touch lie in one slot of a cluster (the same text in braces).
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import urlsplit

import redis.asyncio as aioredis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import (
    AuthenticationError,
    BusyLoadingError,
    MovedError,
    NoScriptError,
    ReadOnlyError,
    RedisError,
)
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from extproc.errors import ConfigError, RegistryError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
    from importlib.resources.abc import Traversable

    from redis.asyncio.client import PubSub

DEFAULT_URL = "redis://127.0.0.1:6379/0"

_PING_EVERY_S = 0.4  # of silence on the subscription
_UNANSWERED_PINGS = 3  # then the server is taken for dead: noticed 1.2 to 1.6 s after its last word


@dataclass(frozen=True, slots=True)
class Message:
    """What came over a channel."""

    channel: str
    payload: bytes


class Script:
    """One of the Lua scripts in redis/, by its file's name. Raises FileNotFoundError if it is not installed."""

    def __init__(self, name: str) -> None:
        self.text = _text(name)
        self.sha1 = hashlib.sha1(self.text.encode(), usedforsecurity=False).hexdigest()


class Link:
    """One server. Every method raises RegistryError, one readable line, when it cannot be reached or refuses.

    No call takes much longer than `timeout_s`. Raises ConfigError for a URL that is none.
    """

    def __init__(self, url: str = DEFAULT_URL, *, timeout_s: float = 1.0) -> None:
        self.where = _without_password(url)
        """The server as it is told to people: never with a password."""
        self.timeout_s = timeout_s
        try:
            self._redis = aioredis.Redis.from_url(
                url,
                protocol=2,
                socket_timeout=timeout_s,
                socket_connect_timeout=timeout_s,
                retry=Retry(NoBackoff(), 1, supported_errors=(RedisConnectionError,)),
            )
        except ValueError as error:
            raise ConfigError(f"{self.where!r} is not a Redis URL: {error}") from error

    async def __aenter__(self) -> Self:
        """Return itself; leaving the context closes all connections."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close all connections."""
        await self.aclose()

    async def aclose(self) -> None:
        """Close all connections; the link can be used again after that."""
        await self._redis.aclose()

    async def command(self, *words: str | bytes | float) -> Any:
        """Run one command and return its reply as RESP2 has it: bytes, int, None or lists of them."""
        try:
            return await self._reach(self._redis.execute_command(*words))  # type: ignore[no-untyped-call]
        except RegistryError as error:
            if isinstance(error.__cause__, ReadOnlyError):  # behind the same name there may be a new primary
                await self._redis.connection_pool.disconnect()
            raise

    async def run(self, script: Script, keys: Sequence[str], arguments: Sequence[str | bytes | float]) -> Any:
        """Run a script in one step of the server, and return its reply."""
        words = (len(keys), *keys, *arguments)
        try:
            return await self.command("EVALSHA", script.sha1, *words)
        except RegistryError as error:
            if not isinstance(error.__cause__, NoScriptError):
                raise
        return await self.command("EVAL", script.text, *words)

    async def publish(self, channel: str, payload: bytes) -> int:
        """Send a message to everyone who follows the channel now; returns to how many on this server."""
        return int(await self.command("PUBLISH", channel, payload))

    @asynccontextmanager
    async def follow(self, *channels: str) -> AsyncIterator[Subscription]:
        """Subscribe over a connection of its own; within the context nothing is missed without an error."""
        pubsub = self._redis.pubsub()
        try:
            subscription = Subscription(self, pubsub)
            await subscription.begin(channels)
            yield subscription
        finally:
            await pubsub.aclose()  # type: ignore[no-untyped-call]

    async def append(self, stream: str, payload: bytes, maxlen: int) -> str:
        """Append to a stream, which is kept at about `maxlen` entries; returns the entry's id."""
        entry_id: bytes = await self.command("XADD", stream, "MAXLEN", "~", maxlen, "*", "d", payload)
        return entry_id.decode()

    async def read_streams(self, after: Mapping[str, str], count: int = 1000) -> dict[str, list[tuple[str, bytes]]]:
        """Read what was appended after the given entry id of each stream ("0-0" for all); at most `count` of each."""
        if not after:
            return {}
        reply = await self.command("XREAD", "COUNT", count, "STREAMS", *after.keys(), *after.values())
        return _entries(reply)

    async def _reach(self, call: Awaitable[Any]) -> Any:
        """Await a call of the library; its errors become RegistryError, here and nowhere else."""
        task = asyncio.current_task()
        asked = task.cancelling() if task else 0
        try:
            return await call
        except (RedisError, OSError) as error:
            raise RegistryError(_readable(error, self.where, self.timeout_s)) from error
        finally:
            # The library sends under asyncio.wait_for, which before Python 3.12 can lose a cancellation.
            if task and task.cancelling() > asked:
                raise asyncio.CancelledError


class Subscription:
    """What `Link.follow` gives: an endless iterator over messages and signs of life.

    `async for message in subscription` yields a Message, or None when a silent server has answered a ping: then
    nothing was sent up to now. Raises RegistryError once the connection ends or the server has fallen silent;
    messages may be missing from then on.
    """

    def __init__(self, link: Link, pubsub: PubSub) -> None:
        self._link = link
        self._pubsub = pubsub
        self._unanswered = 0

    async def begin(self, channels: Sequence[str]) -> None:
        """Subscribe and see it confirmed."""
        await self._link._reach(self._pubsub.subscribe(*channels))
        for _ in channels:
            if await self._link._reach(self._pubsub.get_message(timeout=self._link.timeout_s)) is None:
                raise RegistryError(f"Redis at {self._link.where} did not confirm the subscription")

    def __aiter__(self) -> Self:
        """Return itself."""
        return self

    async def __anext__(self) -> Message | None:
        """Wait for a message or a sign of life."""
        link = self._link
        while True:
            message = await link._reach(self._pubsub.get_message(timeout=_PING_EVERY_S))
            if message is None:
                if self._unanswered == _UNANSWERED_PINGS:
                    raise RegistryError(f"Redis at {link.where} has fallen silent")
                self._unanswered += 1
                await link._reach(self._pubsub.ping())
                continue
            self._unanswered = 0
            match message["type"]:
                case "pong":
                    return None
                case "message":
                    return Message(message["channel"].decode(), message["data"])
            # The library has connected and subscribed anew by itself: messages may be missing.
            raise RegistryError(f"Redis at {link.where} ended the subscription")


def _text(name: str) -> str:
    """Return the text of a script; they lie in `extproc/_redis` of a wheel, in `redis/` of a tree."""
    package = files("extproc")
    places: tuple[Traversable, ...] = (package / "_redis" / name, package / ".." / "redis" / name)
    for place in places:
        if place.is_file():
            return place.read_text(encoding="utf-8")
    raise FileNotFoundError(f"{name} is missing from the installation of extproc")


def _entries(reply: list[Any] | None) -> dict[str, list[tuple[str, bytes]]]:
    return {
        stream.decode(): [(entry_id.decode(), fields[1]) for entry_id, fields in entries]
        for stream, entries in reply or ()
    }


def _readable(error: Exception, where: str, timeout_s: float) -> str:
    match error:
        case AuthenticationError():
            return f"Redis at {where} refused the login: {error}"
        case BusyLoadingError():
            return f"Redis at {where} is still loading its data"
        case RedisTimeoutError():
            return f"Redis at {where} did not answer within {timeout_s:g} s"
        case RedisConnectionError() | OSError():
            return f"cannot reach Redis at {where} ({_cause(error)}): start it, or name another"
        case MovedError():
            return f"Redis at {where} is one of a cluster, and {error.host}:{error.port} has this fleet"
        case ReadOnlyError():
            return f"Redis at {where} is a read-only replica; name the primary"
    return f"Redis at {where} answered: {error}"


def _cause(error: BaseException) -> str:
    """Return the system's own words for why a connection failed, where it gave any."""
    deepest = error
    while (deeper := deepest.__cause__ or deepest.__context__) is not None:
        deepest = deeper
        if isinstance(deepest, OSError) and deepest.errno is not None:
            error = deepest
    if not isinstance(error, OSError) or error.errno is None:
        return str(error)
    return (os.strerror(error.errno) if error.errno > 0 else error.strerror or str(error)).lower()


def _without_password(url: str) -> str:
    parts = urlsplit(url)
    where = parts.netloc.rpartition("@")[2] or parts.path
    return where or url
