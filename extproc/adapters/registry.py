"""The registry in Redis or Valkey: publish instances, give orders, and follow the fleet by push.

The only importer of `redis`. Keys and messages are described in redis/README.md.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import time
from importlib.resources import files
from typing import TYPE_CHECKING, Any, NoReturn, Self
from urllib.parse import urlsplit

import msgspec
import redis.asyncio as aioredis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import (
    AuthenticationError,
    BusyLoadingError,
    MovedError,
    ReadOnlyError,
    RedisError,
)
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from extproc.core.events import DEFAULT_TTL_S, Event, Record, State, Unusable, decode_event, decode_instance
from extproc.core.model import Instance, Lifecycle
from extproc.errors import ConfigError, RegistryError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from importlib.resources.abc import Traversable

    from redis.commands.core import AsyncScript

    from extproc.core.fleet import Change, Fleet

DEFAULT_URL = "redis://127.0.0.1:6379/0"

_PING_EVERY_S = 0.4  # of silence on the subscription
_UNANSWERED_PINGS = 3  # then the server is taken for dead: noticed 1.2 to 1.6 s after its last word
_LONGEST_PAUSE_S = 1.0  # between two attempts to connect

log = logging.getLogger("extproc.registry")


class Registry:
    """One fleet's records in a Redis-protocol server.

    Every method but `watch` raises RegistryError, with one readable line, when the server cannot be reached
    within `timeout_s` or refuses.
    """

    def __init__(
        self,
        url: str = DEFAULT_URL,
        fleet_name: str = "default",
        *,
        prefix: str = "extproc",
        timeout_s: float = 1.0,
    ) -> None:
        try:
            self._redis = aioredis.Redis.from_url(
                url,
                protocol=2,
                socket_timeout=timeout_s,
                socket_connect_timeout=timeout_s,
                retry=Retry(NoBackoff(), 1, supported_errors=(RedisConnectionError,)),
            )
        except ValueError as error:
            raise ConfigError(f"{_without_password(url)!r} is not a Redis URL: {error}") from error
        self._where = _without_password(url)
        self._timeout_s = timeout_s
        base = f"{prefix}:{{{fleet_name}}}"  # the braces put all keys of a fleet into one slot of a cluster
        self._record = f"{base}:instance:"
        self._ids, self._orders, self._seq = f"{base}:ids", f"{base}:orders", f"{base}:seq"
        self._channel = f"{base}:events"
        self._publish = self._redis.register_script(script("publish.lua"))
        self._order = self._redis.register_script(script("order.lua"))
        self._remove = self._redis.register_script(script("remove.lua"))
        self._state = self._redis.register_script(script("state.lua"))

    async def __aenter__(self) -> Self:
        """Return itself; leaving the context closes all connections."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close all connections."""
        await self.aclose()

    async def aclose(self) -> None:
        """Close all connections."""
        await self._redis.aclose()

    async def publish(self, instance: Instance, ttl_s: float = DEFAULT_TTL_S) -> None:
        """Write an instance's record, to live for `ttl_s`, and push it to every router."""
        keys = [self._record + instance.id, self._ids, self._seq]
        arguments = [self._channel, instance.id, msgspec.json.encode(instance), max(1, round(ttl_s * 1000))]
        await self._run(self._publish, keys, arguments)

    async def order(self, instance_id: str, lifecycle: Lifecycle | None) -> bool:
        """Let an instance count as `lifecycle`, or as what it is (None). False if it is not known."""
        keys = [self._record + instance_id, self._orders, self._seq]
        arguments = [self._channel, instance_id, lifecycle or ""]
        return bool(await self._run(self._order, keys, arguments))

    async def remove(self, instance_id: str) -> bool:
        """Delete an instance and any order for it; False if it is not known. A live agent publishes it anew."""
        keys = [self._record + instance_id, self._ids, self._orders, self._seq]
        return bool(await self._run(self._remove, keys, [self._channel, instance_id]))

    async def state(self) -> State:
        """Read the whole fleet in one step; records that cannot be used are left out with a warning."""
        keys = [self._ids, self._orders, self._seq]
        seq, records, orders = await self._run(self._state, keys, [self._record])
        return State(int(seq) if seq is not None else None, _records(records), _orders(orders))

    async def watch(
        self,
        fleet: Fleet,
        on_change: Callable[[Change], None] = lambda change: None,
        *,
        synced: asyncio.Event | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> NoReturn:
        """Keep `fleet` equal to the registry until cancelled; never raises, whatever becomes of the server.

        `on_change` is called after every step, `synced` is set once the whole state was read.
        """
        failures = 0

        def step(change: Change) -> None:
            nonlocal failures
            if failures:
                log.warning("registry: in touch with %s again", self._where)
            failures = 0
            if synced is not None:
                synced.set()
            on_change(change)

        while True:
            try:
                await self._follow(fleet, step, clock)
            except RegistryError as error:
                if not failures:
                    log.warning("registry: %s; going on with the last known fleet", error)
            except Exception:
                log.exception("registry: following the fleet failed; starting anew")
            fleet.lost()
            failures += 1
            pause_s = min(_LONGEST_PAUSE_S, 0.05 * 2.0 ** min(failures, 8))
            await asyncio.sleep(pause_s * random.uniform(0.5, 1.0))

    async def _follow(self, fleet: Fleet, step: Callable[[Change], None], clock: Callable[[], float]) -> NoReturn:
        """Live through one connection: subscribe, read the whole state, take events until something breaks."""
        subscription = self._redis.pubsub()
        try:
            await self._reach(subscription.subscribe(self._channel))
            if await self._reach(subscription.get_message(timeout=self._timeout_s)) is None:
                raise RegistryError(f"Redis at {self._where} did not confirm the subscription")
            step(fleet.resync(await self.state(), clock()))
            unanswered = 0
            while True:
                message = await self._reach(subscription.get_message(timeout=_PING_EVERY_S))
                if message is None:
                    if unanswered == _UNANSWERED_PINGS:
                        raise RegistryError(f"Redis at {self._where} has fallen silent")
                    unanswered += 1
                    await self._reach(subscription.ping())
                    continue
                unanswered = 0
                if message["type"] == "pong":
                    step(fleet.heard(clock()))
                elif message["type"] == "message":
                    change = fleet.apply(_event(message["data"]), clock())
                    step(change)
                    if change.gap:
                        log.info("registry: an event was missed; reading the whole state")
                        step(fleet.resync(await self.state(), clock()))
                else:  # the library has connected and subscribed anew by itself: events may be missing
                    raise RegistryError(f"Redis at {self._where} ended the subscription")
        finally:
            await subscription.aclose()  # type: ignore[no-untyped-call]

    async def _run(self, script: AsyncScript, keys: Sequence[str], arguments: Sequence[Any]) -> Any:
        try:
            return await self._reach(script(keys=keys, args=arguments))
        except RegistryError as error:
            if isinstance(error.__cause__, ReadOnlyError):  # behind the same name there may be a new primary
                await self._redis.connection_pool.disconnect()
            raise

    async def _reach(self, call: Awaitable[Any]) -> Any:
        """Await a call of the library; its errors become RegistryError, here and nowhere else."""
        task = asyncio.current_task()
        asked = task.cancelling() if task else 0
        try:
            return await call
        except (RedisError, OSError) as error:
            raise RegistryError(self._readable(error)) from error
        finally:
            # The library sends under asyncio.wait_for, which before Python 3.12 can lose a cancellation.
            if task and task.cancelling() > asked:
                raise asyncio.CancelledError

    def _readable(self, error: Exception) -> str:
        match error:
            case AuthenticationError():
                return f"Redis at {self._where} refused the login: {error}"
            case BusyLoadingError():
                return f"Redis at {self._where} is still loading its data"
            case RedisTimeoutError():
                return f"Redis at {self._where} did not answer within {self._timeout_s:g} s"
            case RedisConnectionError() | OSError():
                return f"cannot reach Redis at {self._where} ({_cause(error)}): start it, or name another"
            case MovedError():
                return f"Redis at {self._where} is one of a cluster, and {error.host}:{error.port} has this fleet"
            case ReadOnlyError():
                return f"Redis at {self._where} is a read-only replica; name the primary"
        return f"Redis at {self._where} answered: {error}"


def script(name: str) -> str:
    """Return the text of one of the Lua scripts, which lie in `extproc/_redis` of a wheel, `redis/` of a tree."""
    package = files("extproc")
    places: tuple[Traversable, ...] = (package / "_redis" / name, package / ".." / "redis" / name)
    for place in places:
        if place.is_file():
            return place.read_text(encoding="utf-8")
    raise FileNotFoundError(f"{name} is missing from the installation of extproc")


def _records(flat: list[Any]) -> tuple[Record, ...]:
    records = []
    for name, data, ttl_ms, age_ms in zip(*[iter(flat)] * 4, strict=True):
        try:
            instance = decode_instance(data)
        except ValueError as error:
            log.warning("registry: the record of %s cannot be used: %s", name.decode(errors="replace"), error)
            continue
        records.append(Record(instance, age_ms / 1000, ttl_ms / 1000 if ttl_ms >= 0 else float("inf")))
    return tuple(records)


def _orders(flat: list[bytes]) -> dict[str, Lifecycle]:
    orders = {}
    for name, lifecycle in zip(flat[::2], flat[1::2], strict=True):
        try:
            orders[name.decode()] = Lifecycle(lifecycle.decode())
        except ValueError as error:
            log.warning("registry: an order cannot be used: %s", error)
    return orders


def _event(data: bytes) -> Event:
    event = decode_event(data)
    if isinstance(event, Unusable):
        log.warning("registry: an event cannot be used: %s", event.why)
    return event


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
