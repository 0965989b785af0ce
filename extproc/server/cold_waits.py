"""Requests that are held until an instance of their model is Ready: a change of the fleet wakes them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from extproc.core.values.instance import Lifecycle

if TYPE_CHECKING:
    from extproc.core.fleet.fleet import Change
    from extproc.core.router import Router
    from extproc.stream.errands import AwaitModel

# The control plane hears of an instance when we do, and then tells Envoy; until then Envoy sends elsewhere what is
# meant for it. Those who were held would all come at that very moment.
ENVOY_LAG_S = 0.2


class ColdWaits:
    """Those of one router. `take` is to be called with each change of its fleet, in place of the router's."""

    def __init__(self, router: Router, lag_s: float = ENVOY_LAG_S, clock: Callable[[], float] = time.monotonic) -> None:
        """`lag_s`: how long after us Envoy may hear of a new instance. `clock` is the router's."""
        self._router = router
        self._clock = clock
        self._lag_s = lag_s
        self._served: dict[str, asyncio.Event] = {}  # by model, while anybody waits for it
        self._closed = False

    async def until_served(self, errand: AwaitModel) -> bool:
        """Wait as long as the errand allows; whether the model is served then."""
        if self._closed:
            return False
        wishes = self._router.cold.wishes
        served = self._served.setdefault(errand.model, asyncio.Event())
        wishes.hold(errand.model)
        try:
            async with asyncio.timeout(max(0.0, errand.until_s - self._clock())):
                await served.wait()
                if not self._closed:
                    await asyncio.sleep(self._lag_s)
        except TimeoutError:
            return False
        finally:
            wishes.let_go(errand.model)
            if errand.model not in wishes.waiting and self._served.get(errand.model) is served:
                del self._served[errand.model]
        return not self._closed

    def close(self) -> None:
        """Nobody waits any longer, nor does anybody from now on."""
        self._closed = True
        for served in self._served.values():
            served.set()

    def take(self, change: Change) -> None:
        """The fleet has changed: the router takes it in, and those go on whose models are served by now."""
        self._router.take(change)
        if not self._served:
            return
        ready = [m.instance for m in self._router.fleet.members() if m.instance.lifecycle is Lifecycle.READY]
        for model in [model for model in self._served if any(model in instance.models for instance in ready)]:
            self._served.pop(model).set()
