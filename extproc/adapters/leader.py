"""Which of several replicas leads: a lease in Redis with a number that rises with each change of leader.

The lease is measured by the server's clock. A replica believes that it leads only for a part of it, counted on its own
monotonic clock from before it asked, so that it has stepped down by the time that another may lead, whatever the clocks
say. One that was frozen in between may still act for a moment: what it writes must carry its number (`fence`), and is
refused where a higher one has been given (`adapters.scaling_memory`; J. Gray and D. Cheriton, "Leases", 1989, and
"fencing tokens" in M. Kleppmann, "Designing Data-Intensive Applications", 2017, chapter 8).
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

from extproc.adapters.redis_client import ServerError
from extproc.adapters.redis_scripts import Script
from extproc.errors import RegistryError

if TYPE_CHECKING:
    from collections.abc import Callable

    from extproc.adapters.redis_link import Link

LEASE_S = 9.0
_RENEWALS = 3  # that a lease has room for
_SURE_SHARE = 0.8  # of the lease that is relied on: two clocks may run at different speeds
_FAREWELL_S = 1.0

log = logging.getLogger("extproc.autoscale")


@dataclass(frozen=True, slots=True)
class Led:
    """Who leads, as Redis last told."""

    name: str  # "": nobody
    about: str  # what that one tells people of itself
    fence: int


def leader_key(base: str) -> str:
    """Where in Redis it stands who leads. `base` is `Registry.base`."""
    return f"{base}:leader"


class Leader:
    """One replica's part. `name` differs for every start; `about` is what people are told, such as host and port.

    `clock` must go on while the process is frozen.
    """

    def __init__(
        self,
        link: Link,
        base: str,
        name: str,
        about: str = "",
        *,
        lease_s: float = LEASE_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._link = link
        self._key = leader_key(base)
        self._name = name
        self._about = about
        self._lease_s = lease_s
        self._clock = clock
        self._lead = Script("lead.lua")
        self._fence: int | None = None
        self._sure_until_s = float("-inf")
        self.led: Led | None = None
        """Who leads, as last told; None as long as Redis has told nothing."""
        self.refused = ""
        """What Redis said when it last did not let us ask who leads; "" since it answers, or cannot be reached."""

    @property
    def fence(self) -> int | None:
        """Our number while we surely lead, else None; to be asked again right before each act."""
        return self._fence if self._clock() < self._sure_until_s else None

    async def run(self) -> NoReturn:
        """Lead whenever nobody else does, until cancelled; then give it up, so that another need not wait."""
        try:
            while True:
                await self.try_turn()
                await asyncio.sleep(self._lease_s / _RENEWALS)
        finally:
            await self._farewell()

    async def try_turn(self) -> None:
        """One turn as `turn` has it; an outage is logged and nothing else: our lease runs out meanwhile."""
        led, refused = self.fence is not None, ""
        try:
            async with asyncio.timeout(self._lease_s / _RENEWALS):
                await self.turn()
        except (RegistryError, TimeoutError) as error:
            if isinstance(error, ServerError) and not error.lost:  # such as missing rights: it goes on until mended
                refused = str(error)
            log.debug("who leads is not known: %s", error or "Redis is too slow")
        except Exception:  # such as an answer of another program: nobody would ever lead again, and nothing show it
            log.exception("who leads is not known")
        if refused and refused != self.refused:
            log.warning("this replica cannot lead: %s", refused)
        self.refused = refused
        leads = self.fence is not None
        if leads != led:
            log.info("this replica leads now" if leads else "this replica leads no longer")

    async def turn(self) -> bool:
        """Ask to lead, or to go on leading, and return whether we do. Raises RegistryError."""
        asked_at_s = self._clock()  # the lease begins later than that
        leads = await self._ask(round(self._lease_s * 1000))
        self._sure_until_s = asked_at_s + _SURE_SHARE * self._lease_s if leads else float("-inf")
        return self.fence is not None

    async def resign(self) -> None:
        """Lead no longer, from now on; another may at once. Raises RegistryError."""
        self._sure_until_s = float("-inf")
        await self._ask(0)

    async def _ask(self, lease_ms: int) -> bool:
        reply = await self._link.run(self._lead, (self._key,), (self._name, lease_ms, self._about))
        leads, fence, name, about, _ = reply
        self._fence = int(fence) if leads else None
        self.led = Led(name.decode(), about.decode(), int(fence))
        return bool(leads)

    async def _farewell(self) -> None:
        if self.fence is None:
            return
        try:
            async with asyncio.timeout(_FAREWELL_S):
                await self.resign()
        except (RegistryError, TimeoutError):
            log.debug("the lease was not given up; it ends by itself", exc_info=True)
