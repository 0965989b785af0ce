"""What `Link.follow` gives: the messages of a subscription, while it is one to the server that has the fleet."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Self

from extproc.adapters.redis_client import Message
from extproc.adapters.redis_places import CHECK_EVERY_S
from extproc.adapters.redis_settings import Kind
from extproc.errors import RegistryError

if TYPE_CHECKING:
    from extproc.adapters.redis_client import Subscription
    from extproc.adapters.redis_link import Link
    from extproc.adapters.redis_settings import Address

_PING_EVERY_S = 0.4  # of silence on a subscription
_MOST_IN_TURN = 32  # messages of a burst, without letting others through: about 2 ms of agents' reports
_UNANSWERED_PINGS = 3  # then the server is taken for dead: noticed 1.2 to 1.6 s after its last word


class Following:
    """An endless iterator over messages and signs of life.

    `async for message in following` yields a Message, or None when a silent server has answered a ping: then
    nothing was sent up to now. Raises RegistryError once the connection ends, the server has fallen silent, or
    another has taken its place; messages may be missing from then on.
    """

    def __init__(
        self, link: Link, address: Address | None, subscription: Subscription, channel: str, gather_s: float
    ) -> None:
        self._link = link
        self._address = address
        self._subscription = subscription
        self._channel = channel
        self._gather_s = gather_s
        self._unanswered = 0
        self._in_turn = 0  # messages, of those that were read together
        self._checked_at_s = time.monotonic()

    def __aiter__(self) -> Self:
        """Return itself."""
        return self

    async def __anext__(self) -> Message | None:
        """Wait for a message or a sign of life."""
        self._in_turn += 1
        if self._gather_s and await self._subscription.rest(self._gather_s):
            self._in_turn = 0
        elif self._in_turn >= _MOST_IN_TURN:
            self._in_turn = 0
            await asyncio.sleep(0)
        while True:
            got = await self._subscription.receive(_PING_EVERY_S)
            if got:
                self._unanswered = 0
                await self._check()
                return got if isinstance(got, Message) else None
            if self._unanswered == _UNANSWERED_PINGS:
                raise RegistryError(f"Redis at {self._link.where} has fallen silent")
            self._unanswered += 1
            await self._subscription.ping()

    async def _check(self) -> None:
        if self._link.settings.kind is Kind.STANDALONE or time.monotonic() - self._checked_at_s < CHECK_EVERY_S:
            return
        self._checked_at_s = time.monotonic()
        if await self._link.settle(self._channel) != self._address:
            raise RegistryError(f"another server of {self._link.where} has taken over")
