"""What the service needs of whoever holds requests against the limits of their tenants and models."""

from __future__ import annotations

from typing import Protocol

from extproc.core.limits.charge import Settlement, Verdict
from extproc.stream.errands import Charge


class Charges(Protocol):
    """Counts over all routers."""

    async def charge(self, wish: Charge) -> Verdict | None:
        """What became of it, None if nobody could tell in time."""

    def handed_over(self, request_id: str) -> None:
        """The request goes on to an engine: what it uses comes with its outcome."""

    def release(self, request_id: str) -> None:
        """The request has ended; unknown ids are ignored."""

    def settle(self, settlement: Settlement) -> None:
        """What a request used, whichever router had charged it."""
