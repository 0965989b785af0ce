"""Finds the server that writes go to, by asking sentinels or nodes of a cluster: all at once, the first good answer."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar

from extproc.adapters.redis_client import Client, ServerError
from extproc.adapters.redis_settings import Address, RedisSettings
from extproc.errors import RegistryError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Iterable

CHECK_EVERY_S = 3.0
"""A primary that was cut off from its sentinels or its cluster still answers, but nobody else hears it any more."""

T = TypeVar("T")


async def primary(settings: RedisSettings) -> Address:
    """Ask the sentinels for the primary that they watch, and see that it is one. Raises RegistryError."""
    return await _first((_told_by(settings, sentinel) for sentinel in settings.nodes), settings.where)


async def living_node(settings: RedisSettings, nodes: Iterable[Address]) -> tuple[Address, tuple[Address, ...]]:
    """Return the first node that says that its cluster is whole, and all nodes that it knows. Raises RegistryError."""
    return await _first((_cluster_of(settings, node) for node in nodes), settings.where)


async def _told_by(settings: RedisSettings, sentinel: Address) -> Address:
    client = Client(settings, sentinel, login=settings.sentinel_login, connections=1)
    try:
        # Read as https://redis.io/docs/latest/develop/reference/sentinel-clients/ has it.
        told = await client.command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", settings.service)
    finally:
        await client.aclose()
    if told is None:
        raise ServerError(f"the sentinel at {client.name} does not know a primary {settings.service!r}")
    address = told[0].decode(), int(told[1])
    client = Client(settings, address, connections=1)
    try:
        role = await client.command("ROLE")  # a sentinel that was cut off may name the primary of yesterday
    finally:
        await client.aclose()
    if role[0] != b"master":
        raise ServerError(f"Redis at {client.name} is not the primary that a sentinel takes it for")
    return address


async def _cluster_of(settings: RedisSettings, node: Address) -> tuple[Address, tuple[Address, ...]]:
    client = Client(settings, node, connections=1)
    try:
        info = await client.command("CLUSTER", "INFO")
        if b"cluster_state:ok" not in info:
            raise ServerError(f"Redis at {client.name} says that its cluster is down")
        return node, _nodes(await client.command("CLUSTER", "SLOTS"), node[0])
    finally:
        await client.aclose()


def _nodes(slots: list[Any], asked: str) -> tuple[Address, ...]:
    """Return the nodes in a reply to CLUSTER SLOTS; one without a name has the one that we asked by."""
    found = {
        ((host or b"").decode() or asked, int(port)): None for _, _, *servers in slots for host, port, *_ in servers
    }
    return tuple(found)


async def _first(questions: Iterable[Awaitable[T]], where: str) -> T:
    """Ask all at once and return the first answer; RegistryError with every reason if there is none."""
    tasks = [asyncio.ensure_future(question) for question in questions]
    reasons = []
    try:
        for answer in asyncio.as_completed(tasks):
            try:
                return await answer
            except RegistryError as error:
                reasons.append(str(error))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    raise RegistryError(f"nobody at {where} can serve: {'; '.join(sorted(set(reasons)))}")
