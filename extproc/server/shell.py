"""What the service needs from outside: the state, who watches, the clock and chance, and whoever runs its errands."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from extproc.adapters.body_reader import Renames, Salts
from extproc.api.reading import Unread
from extproc.core.router import Router
from extproc.core.tokens.tokens import ExactCount
from extproc.observe.observer import Observer
from extproc.server.charges import Charges
from extproc.server.cold_waits import ColdWaits
from extproc.server.siblings import Siblings
from extproc.stream.errands import CountTokens, TakePlace
from extproc.stream.rules import Rules


class Places(Protocol):
    """Counts open requests over all routers."""

    async def take(self, wish: TakePlace) -> int | None:
        """Number of the place that was taken, None if none was left."""

    def release(self, request_id: str) -> None:
        """The request has ended; unknown ids are ignored."""


@dataclass(frozen=True, slots=True)
class Shell:
    """All of it, as one value: a running service is given another to go by other rules."""

    router: Router
    observer: Observer
    clock: Callable[[], float]
    draw: Callable[[], float]
    cluster_header: str
    rules: Rules
    count: Callable[[CountTokens], Awaitable[ExactCount | None]] | None = None  # needed for `rules.counted_models`
    places: Places | None = None  # needed for `rules.strict`
    max_streams: int = 20_000  # requests under way at once
    charges: Charges | None = None  # needed for `rules.limits`
    cold_waits: ColdWaits | None = None  # needed for models that are waited for
    siblings: Siblings | None = None  # of one among several workers
    read: Callable[[Unread, Salts, Renames], Awaitable[object]] | None = None  # needed for `rules.read_apart_bytes`
