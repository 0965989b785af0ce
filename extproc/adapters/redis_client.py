"""Connections to one server that speaks the Redis protocol; the only importer of `redis`.

Every error of the library becomes a ServerError here: one readable line, and what it means for the caller.
"""

from __future__ import annotations

import asyncio
import os
import re
import ssl
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import redis.asyncio as aioredis
from redis.asyncio.connection import Connection, SSLConnection, UnixDomainSocketConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import (
    AskError,
    AuthenticationError,
    AuthorizationError,
    BusyLoadingError,
    ClusterDownError,
    MovedError,
    NoPermissionError,
    NoScriptError,
    ReadOnlyError,
    RedisError,
)
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from extproc.adapters.redis_settings import Address, Login, RedisSettings
from extproc.errors import RegistryError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Sequence

    from redis.asyncio.client import PubSub

Word = str | bytes | int | float

# An agent of hundreds of backends publishes in bursts: they share these connections, rather than open hundreds.
# One connection does thousands of publishes a second.
_CONNECTIONS = 8

_PONG = "pong"

# What a script is told when its user may not do something, in Valkey and in Redis; the library knows neither. Redis
# 6.2 puts where it happened before what happened, so these words stand anywhere in the answer.
_NO_PERMISSION = ("ACL failure in script", "The user executing the script")
_READ_ONLY = "-READONLY "
_NUMBER = re.compile(r"Error (\d+) connecting to ")


class ServerError(RegistryError):
    """A server did not do what was asked; the text is for people, the fields are for the link."""

    def __init__(
        self,
        text: str,
        *,
        lost: bool = False,
        moved_to: Address | None = None,
        ask: Address | None = None,
        no_script: bool = False,
        read_only: bool = False,
    ) -> None:
        super().__init__(text)
        self.lost = lost
        """The server is unreachable, silent or not fit to serve: look whether another has taken its place."""
        self.moved_to = moved_to
        """The keys live on this node of the cluster."""
        self.ask = ask
        """These keys, this once, are on this node of the cluster."""
        self.no_script = no_script
        self.read_only = read_only


@dataclass(frozen=True, slots=True)
class Message:
    """What came over a channel."""

    channel: str
    payload: bytes


class Client:
    """A small pool of connections to one address. Methods raise ServerError within `settings.timeout_s` or so."""

    def __init__(
        self,
        settings: RedisSettings,
        address: Address | None,
        *,
        login: Login | None = None,
        connections: int = _CONNECTIONS,
        patience_s: float = 0.0,
    ) -> None:
        """`address` None is the Unix socket of the settings; `patience_s` is how long a command may block by itself."""
        self.address = address
        self.name = f"{address[0]}:{address[1]}" if address else settings.path
        self._timeout_s = settings.timeout_s
        pool = aioredis.BlockingConnectionPool(
            max_connections=connections,
            timeout=settings.timeout_s,  # for a free connection
            protocol=2,  # RESP3 begins with HELLO, one more command to allow, and gives us nothing
            driver_info=None,  # CLIENT SETINFO: two more commands to allow, on every connection
            socket_timeout=settings.timeout_s + patience_s,
            socket_connect_timeout=settings.timeout_s,
            # Once, at once: a pooled connection may have been closed by a server that was restarted. Whoever calls
            # tries again by itself, and knows better how long to wait; the library's own ten retries take seconds.
            # Never while blocking: whoever follows must learn that the connection ended, and look what was missed.
            retry=Retry(NoBackoff(), 0 if patience_s else 1, supported_errors=(RedisConnectionError,)),
            **_arguments(settings, address, login or settings.login),
        )
        self._redis = aioredis.Redis.from_pool(pool)
        self._redis.response_callbacks.clear()  # replies as the protocol has them

    async def aclose(self) -> None:
        """Close all connections, to the end though whoever calls is cancelled meanwhile."""
        # The library closes them in tasks of its own, which a cancellation stops before they have begun.
        closing = asyncio.ensure_future(self._redis.aclose())
        try:
            await asyncio.shield(closing)
        except asyncio.CancelledError:
            await asyncio.gather(closing, return_exceptions=True)
            raise

    async def command(self, *words: Word) -> Any:
        """Run one command and return its reply as RESP2 has it: bytes, int, None or lists of them."""
        return await self._reach(self._redis.execute_command(*words))  # type: ignore[no-untyped-call]

    async def asking(self, *words: Word) -> Any:
        """Run one command on keys that are on their way to this node of a cluster."""
        pipeline = self._redis.pipeline(transaction=False)
        pipeline.execute_command("ASKING")
        pipeline.execute_command(*words)
        return (await self._reach(pipeline.execute()))[1]

    def subscription(self) -> Subscription:
        """Return a subscription to nothing yet; close it before the client."""
        return Subscription(self, self._redis.pubsub())

    async def _reach(self, call: Awaitable[Any]) -> Any:
        """Await a call of the library; its errors become ServerError, here and nowhere else."""
        task = asyncio.current_task()
        asked = task.cancelling() if task else 0
        try:
            return await call
        except (RedisError, OSError) as error:
            raise self._server_error(error) from error
        finally:
            # The library sends under asyncio.wait_for, which before Python 3.12 can lose a cancellation.
            if task and task.cancelling() > asked:
                raise asyncio.CancelledError

    def _server_error(self, error: RedisError | OSError) -> ServerError:
        at = f"Redis at {self.name}"
        match error:
            case AuthenticationError() | AuthorizationError():
                return ServerError(f"{at} refused the login: {error}", lost=True)
            case _ if isinstance(error, NoPermissionError) or any(words in str(error) for words in _NO_PERMISSION):
                return ServerError(f"{at} does not let this user do that: {error}; see redis/users.acl")
            case BusyLoadingError():
                return ServerError(f"{at} is still loading its data", lost=True)
            case RedisTimeoutError():
                return ServerError(f"{at} did not answer within {self._timeout_s:g} s", lost=True)
            case RedisConnectionError() | OSError():
                return ServerError(f"cannot reach {at} ({_cause(error)}): start it, or name another", lost=True)
            case MovedError():
                where = self._beside(error.host, error.port)
                text = f"{at} is one of a cluster, and {where[0]}:{where[1]} has these keys: write redis+cluster://"
                return ServerError(text, moved_to=where)
            case AskError():
                return ServerError(f"{at} is handing over these keys", ask=self._beside(error.host, error.port))
            case ClusterDownError():
                return ServerError(f"{at} says that its cluster is down: {error}", lost=True)
            case _ if isinstance(error, ReadOnlyError) or _READ_ONLY in str(error):
                return ServerError(f"{at} is a read-only replica; name the primary", lost=True, read_only=True)
        return ServerError(f"{at} answered: {error}", no_script=isinstance(error, NoScriptError))

    def _beside(self, host: str, port: int) -> Address:
        """Return another node's address; an empty host is the one that was asked."""
        return host or (self.address[0] if self.address else ""), port


class Subscription:
    """Channels over one connection of a client."""

    def __init__(self, client: Client, pubsub: PubSub) -> None:
        self._client = client
        self._pubsub = pubsub

    async def begin(self, channels: Sequence[str], timeout_s: float) -> None:
        """Subscribe, and see it confirmed."""
        await self._client._reach(self._pubsub.subscribe(*channels))
        for _ in channels:
            if await self._client._reach(self._pubsub.get_message(timeout=timeout_s)) is None:
                raise ServerError(f"Redis at {self._client.name} did not confirm the subscription", lost=True)

    async def ping(self) -> None:
        """Ask for a sign of life."""
        await self._client._reach(self._pubsub.ping())

    async def receive(self, timeout_s: float) -> Message | bool:
        """Wait for a message; True is the answer to a ping, False that nothing came in time."""
        got = await self._client._reach(self._pubsub.get_message(timeout=timeout_s))
        if got is None or got["type"] == _PONG:
            return got is not None
        if got["type"] == "message":
            return Message(got["channel"].decode(), got["data"])
        # The library has connected and subscribed anew by itself: messages may be missing.
        raise ServerError(f"Redis at {self._client.name} ended the subscription", lost=True)

    async def rest(self, for_s: float) -> bool:
        """Leave the socket alone for so long, unless a message is read already: what comes meanwhile is read at once.

        To wake up for a packet costs more than what is in it. False if it has not rested.
        """
        connection = self._pubsub.connection
        if connection is None or not connection.is_connected or await self._client._reach(connection.can_read()):
            return False
        writer = connection._writer  # the library has no word for it
        if writer is None or writer.is_closing():
            return False
        writer.transport.pause_reading()
        try:
            await asyncio.sleep(for_s)
        finally:
            if not writer.is_closing():
                writer.transport.resume_reading()
        return True

    async def aclose(self) -> None:
        """Give the connection up."""
        await self._pubsub.aclose()  # type: ignore[no-untyped-call]


def _arguments(settings: RedisSettings, address: Address | None, login: Login) -> dict[str, Any]:
    """Where and as whom to connect, in the library's words."""
    arguments: dict[str, Any] = {"db": settings.db}
    if login.password:
        arguments |= {"username": login.username or None, "password": login.password}
    if address is None:
        return arguments | {"connection_class": UnixDomainSocketConnection, "path": settings.path}
    arguments |= {"connection_class": Connection, "host": address[0], "port": address[1]}
    if (tls := settings.tls) is not None:
        arguments |= {
            "connection_class": SSLConnection,
            "ssl_ca_certs": tls.ca_file or None,
            "ssl_certfile": tls.cert_file or None,
            "ssl_keyfile": tls.key_file or None,
            "ssl_check_hostname": tls.check_hostname,
        }
    return arguments


def _cause(error: BaseException) -> str:
    """Return the system's own words for why a connection failed, where it gave any."""
    deepest = error
    while (deeper := deepest.__cause__ or deepest.__context__) is not None:
        deepest = deeper
        if isinstance(deepest, OSError) and deepest.errno is not None:
            error = deepest
    match error:
        case ssl.SSLCertVerificationError():
            return f"its certificate: {error.verify_message}"
        case ssl.SSLError():
            return f"TLS: {error.reason or error}".replace("_", " ").lower()
        case OSError(errno=int(number)):
            return (os.strerror(number) if number > 0 else error.strerror or str(error)).lower()
    # Of a retry while a command was under way the library loses the cause, and its own words have the number alone.
    told = _NUMBER.match(str(error))
    return os.strerror(int(told[1])).lower() if told else str(error)
