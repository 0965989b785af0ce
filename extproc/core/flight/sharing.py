"""One router's part in telling all routers of every choice: bytes in, bytes out, times as arguments.

The shell calls `receive` for what arrives, the outbox' `batches` when its `due_at_s` has come, which `on_pending` tells
to be now, and `expire` several times within a lease, whether or not anything arrives.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from extproc.core.flight.bookings import decode
from extproc.core.flight.outbox import Outbox
from extproc.core.flight.peers import Peers

if TYPE_CHECKING:
    from extproc.core.flight.ledger import Ledger

HEARTBEAT_S = 1.0
LEASE_S = 3 * HEARTBEAT_S  # a router not heard for this long is dead or frozen


class Sharing:
    """Tells peers of the ledger's own reservations, and keeps theirs in the same ledger.

    `name` must differ for every start of a router.
    """

    def __init__(
        self, name: str, ledger: Ledger, *, heartbeat_s: float = HEARTBEAT_S, lease_s: float = LEASE_S
    ) -> None:
        self.outbox = Outbox(name, ledger, heartbeat_s)
        self.peers = Peers(name, ledger, lease_s, self.outbox.ask, self.outbox.asked)

    def receive(self, data: bytes, now: float) -> None:
        """Take what arrived at `now`. Raises ValueError, in one readable line, if it is no batch."""
        self.peers.take(decode(data), now)
        self.outbox.listened = self.peers.number > 0

    def expire(self, now: float) -> None:
        """Drop what routers told that are not heard any more."""
        self.peers.expire(now)
        self.outbox.listened = self.peers.number > 0
