"""The link to Redis or Valkey as an operator has it: one server, sentinels or a cluster, behind one set of calls.

What is written and where is the business of the link's users: the registry, the KV log … All keys of one link lie in
one slot of a cluster (the same text in braces), and so on one server at a time.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from extproc.adapters.redis_client import Client, ServerError, Word
from extproc.adapters.redis_following import Following
from extproc.adapters.redis_places import CHECK_EVERY_S, living_node, primary
from extproc.adapters.redis_settings import Address, Kind, RedisSettings, parse
from extproc.errors import RegistryError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping, Sequence

    from extproc.adapters.redis_scripts import Script

_HOPS = 4  # servers that one command is sent to, following the cluster's or the sentinels' word


@dataclass(frozen=True, slots=True)
class StreamEntry:
    """One entry of a stream."""

    entry_id: str
    payload: bytes
    before: str  # id of the entry before it, as its writer saw it; "" if that does not tell


class Link:
    """One deployment. Every method raises RegistryError, one readable line, when it cannot be reached or refuses.

    A link that waits in blocking commands is made by `apart`: they need connections of their own.
    """

    def __init__(self, settings: RedisSettings | str, *, patience_s: float = 0.0) -> None:
        """Connect to nothing yet. `patience_s` is how long a command may block. Raises ConfigError for a wrong URL."""
        self.settings = parse(settings) if isinstance(settings, str) else settings
        self.on_command: Callable[[str, float, bool], None] | None = None
        """Told of each command: its name, the seconds until it was answered or given up, whether it failed."""
        self._patience_s = patience_s
        self._nodes = self.settings.nodes  # of a cluster; those we were told of, and those we heard of
        self._server: _Server | None = None
        self._finding: asyncio.Task[_Server] | None = None
        self._found_at_s = float("-inf")

    @property
    def where(self) -> str:
        """The deployment as it is told to people: never with a password."""
        return self.settings.where

    @property
    def timeout_s(self) -> float:
        """How long a connection or an answer may take."""
        return self.settings.timeout_s

    async def __aenter__(self) -> Self:
        """Return itself; leaving the context closes all connections."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close all connections."""
        await self.aclose()

    async def aclose(self) -> None:
        """Close all connections but those of a `follow` that still goes on; the link can be used again."""
        if self._finding is not None:
            self._finding.cancel()
            await asyncio.gather(self._finding, return_exceptions=True)
        if self._server is not None:
            await self._retire(self._server)

    def apart(self, patience_s: float) -> Link:
        """Return a second link to the same place, whose commands may block for `patience_s`; close it yourself."""
        return Link(self.settings, patience_s=patience_s)

    async def command(self, *words: Word) -> Any:
        """Run one command and return its reply as RESP2 has it: bytes, int, None or lists of them."""
        if self.on_command is None:
            return await self._command(*words)
        began_s, failed = time.monotonic(), False
        try:
            return await self._command(*words)
        except RegistryError as error:
            failed = not (isinstance(error, ServerError) and error.no_script)  # then it is run in another form
            raise
        finally:
            self.on_command(str(words[0]), time.monotonic() - began_s, failed)

    async def _command(self, *words: Word) -> Any:
        for hop in range(_HOPS):
            server = await self._current()
            try:
                return await server.command(*words)
            except ServerError as error:
                if error.ask is not None and self.settings.kind is Kind.CLUSTER:
                    return await self._ask(error.ask, words)
                elsewhere = await self._elsewhere(server, error)
                if hop == _HOPS - 1 or not elsewhere:
                    raise
        raise AssertionError("the last hop returns or raises")

    async def run(self, script: Script, keys: Sequence[str], arguments: Sequence[Word]) -> Any:
        """Run a script in one step of the server, and return its reply."""
        words = (len(keys), *keys, *arguments)
        try:
            return await self.command("EVALSHA", script.sha1, *words)
        except ServerError as error:
            if not error.no_script:
                raise
        return await self.command("EVAL", script.text, *words)

    async def publish(self, channel: str, payload: bytes) -> int:
        """Send a message to everyone who follows the channel now; returns to how many on this server."""
        return int(await self.command("PUBLISH", channel, payload))

    async def takes_writes(self) -> bool:
        """Ask whether the server is a primary; one that does not let us ask is taken for one."""
        try:
            role = await self.command("ROLE")
        except ServerError as error:
            if error.lost:
                raise
            return True
        return bool(role[0] == b"master")

    async def read_streams(
        self, after: Mapping[str, str], *, count: int = 1000, block_s: float | None = None
    ) -> dict[str, list[StreamEntry]]:
        """Read what was appended after an entry id of each stream ("0-0" for all), at most `count` of each.

        With `block_s`, wait that long for something to come; only on a link made by `apart`. Streams with nothing
        new are not in the result.
        """
        if not after:
            return {}
        block: tuple[Word, ...] = () if block_s is None else ("BLOCK", max(1, round(block_s * 1000)))
        reply = await self.command("XREAD", "COUNT", count, *block, "STREAMS", *after.keys(), *after.values())
        return {
            stream.decode(): [_entry(entry_id, fields) for entry_id, fields in entries if fields]
            for stream, entries in reply or ()
        }

    @asynccontextmanager
    async def follow(self, *channels: str, gather_s: float = 0.0) -> AsyncIterator[Following]:
        """Subscribe over a connection of its own; within the context nothing is missed without an error.

        After each message the connection rests for `gather_s`: what came meanwhile is read in one go.
        """
        await self.settle(channels[0])
        server = await self._current()
        client = Client(self.settings, server.client.address, connections=1)
        subscription = client.subscription()
        try:
            await subscription.begin(channels, self.timeout_s)
            yield Following(self, client.address, subscription, channels[0], gather_s)
        finally:
            await subscription.aclose()
            await client.aclose()

    async def settle(self, key: str) -> Address | None:
        """Make sure which server has the fleet, and return its address; None is the Unix socket."""
        if self.settings.kind is Kind.CLUSTER:
            await self.command("EXISTS", key)  # wherever the key ought to be: there, or we are told where
        return (await self._current()).client.address

    async def _current(self) -> _Server:
        """Return the server to talk to; whoever comes while it is looked for waits for the one search."""
        server = self._server
        if server is not None and not self._to_check():
            return server
        if self._finding is None:
            self._finding = asyncio.create_task(self._find())
            self._finding.add_done_callback(self._search_ended)
        try:
            return await asyncio.shield(self._finding)
        except RegistryError:
            if server is None:
                raise
            return server  # what has worked goes on without the sentinels

    def _search_ended(self, finding: asyncio.Task[_Server]) -> None:
        self._finding = None
        if not finding.cancelled():
            finding.exception()  # whoever waited may have been cancelled: then nobody else takes it

    def _to_check(self) -> bool:
        return self.settings.kind is Kind.SENTINEL and time.monotonic() - self._found_at_s > CHECK_EVERY_S

    async def _find(self) -> _Server:
        self._found_at_s = time.monotonic()
        address: Address | None = None
        match self.settings.kind:
            case Kind.STANDALONE:
                address = self.settings.nodes[0] if self.settings.nodes else None
            case Kind.SENTINEL:
                address = await primary(self.settings)
            case Kind.CLUSTER:
                address, nodes = await living_node(self.settings, self._nodes)
                self._nodes = tuple(dict.fromkeys((*self.settings.nodes, *nodes)))
        return await self._switch(address)

    async def _switch(self, address: Address | None) -> _Server:
        before = self._server
        if before is not None and before.client.address == address:
            return before
        server = self._server = _Server(Client(self.settings, address, patience_s=self._patience_s))
        if before is not None:
            await before.retire()
        return server

    async def _elsewhere(self, server: _Server, error: ServerError) -> bool:
        """Note what an error tells of a server; True if the command has a chance with another one right now."""
        if error.moved_to is not None and self.settings.kind is Kind.CLUSTER:
            if self._server is server:
                await self._switch(error.moved_to)
            return True
        if error.lost:
            await self._retire(server)
        return error.read_only and self.settings.kind is Kind.SENTINEL

    async def _retire(self, server: _Server) -> None:
        if self._server is server:
            self._server = None
        await server.retire()

    async def _ask(self, address: Address, words: Sequence[Word]) -> Any:
        client = Client(self.settings, address, connections=1, patience_s=self._patience_s)
        try:
            return await client.asking(*words)
        finally:
            await client.aclose()


class _Server:
    """A client that closes itself once it is retired and its last command has ended."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self._running = 0
        self._retired = False

    async def command(self, *words: Word) -> Any:
        self._running += 1
        try:
            return await self.client.command(*words)
        finally:
            self._running -= 1
            await self._close_if_over()

    async def retire(self) -> None:
        self._retired = True
        await self._close_if_over()

    async def _close_if_over(self) -> None:
        if self._retired and not self._running:
            await self.client.aclose()


def _entry(entry_id: bytes, fields: list[bytes]) -> StreamEntry:
    named = dict(zip(fields[::2], fields[1::2], strict=True))
    return StreamEntry(entry_id.decode(), named.get(b"d", b""), named.get(b"p", b"").decode())
