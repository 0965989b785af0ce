"""Puts other settings in force in a service that runs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from extproc.adapters.rate_limits import RateLimits
from extproc.config import ServeSettings
from extproc.core.limits.rules import Limits
from extproc.core.router import Router
from extproc.core.scaling.tally import Tally
from extproc.server.service import Service
from extproc.server.tasks import begin
from extproc.stream.rules import Rules


class LiveSettings:
    """Those of one process, and the parts of it that go by them."""

    def __init__(
        self,
        settings: ServeSettings,
        router: Router,
        tally: Tally,
        own: Callable[[Rules], Rules],
        new_charges: Callable[[Limits], RateLimits],
    ) -> None:
        """`own` adds to rules what this process knows beside the settings.

        `new_charges` makes what counts over all routers, as soon as anything is limited.
        """
        self.settings = settings
        self.rules = own(settings.rules)
        self.charges = new_charges(self.rules.limits) if self.rules.limits.rules else None
        self.service: Service | None = None  # there is one before any others are taken
        self.tasks: list[asyncio.Task[Any]] = []
        self._router, self._tally = router, tally
        self._own, self._new_charges = own, new_charges

    def take(self, settings: ServeSettings) -> None:
        """Go by these from now on; they differ from those before in nothing that cannot be changed."""
        self._router.use(settings.policy)
        self._tally.use(settings.policy.classes)
        self.settings = settings
        self.rules = self._own(settings.rules)
        if self.charges is not None:
            self.charges.use(self.rules.limits)
        elif self.rules.limits.rules:
            self.charges = self._new_charges(self.rules.limits)
            self.tasks.append(begin("limits", self.charges.run()))
        if self.service is not None:
            self.service.use(self.rules, settings.max_streams, self.charges)
            self.service.holding.stir()
