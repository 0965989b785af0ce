"""Keeps what follows the server going for ever: one log line an outage or fault, and pauses that grow a little."""

from __future__ import annotations

import asyncio
import logging
import random
from typing import TYPE_CHECKING, NoReturn

from extproc.errors import RegistryError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

_LONGEST_PAUSE_S = 1.0  # between two attempts

log = logging.getLogger("extproc.registry")


async def persist(
    what: str, where: str, live: Callable[[Callable[[], None]], Awaitable[None]], lost: Callable[[], None]
) -> NoReturn:
    """Run `live` again and again until cancelled; never raises, whatever becomes of the server.

    `live(in_touch)` follows over one connection until something breaks, and calls `in_touch` whenever the server
    has said something. `lost()` is called each time `live` has ended. `what` begins the log lines; `where` names
    the server in them.
    """
    failures, fault = 0, ""

    def in_touch() -> None:
        nonlocal failures, fault
        if failures:
            log.warning("%s: in touch with %s again", what, where)
        failures, fault = 0, ""

    while True:
        try:
            await live(in_touch)
        except RegistryError as error:
            if not failures:
                log.warning("%s: %s; going on with what is known", what, error)
        except Exception as error:
            if repr(error) != fault:
                log.exception("%s: following failed; starting anew", what)
            fault = repr(error)
        lost()
        failures += 1
        pause_s = min(_LONGEST_PAUSE_S, 0.05 * 2.0 ** min(failures, 8))
        await asyncio.sleep(pause_s * random.uniform(0.5, 1.0))
