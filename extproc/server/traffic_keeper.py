"""Tells Redis once a second what this router has counted of its requests, and how many it holds."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from typing import TYPE_CHECKING, NoReturn

from extproc.core.scaling.sight import Counts
from extproc.errors import RegistryError
from extproc.observe.traffic_metrics import Judged

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from extproc.adapters.traffic_counts import TrafficCounts
    from extproc.core.scaling.tally import Tally

INTERVAL_S = 1.0
BUDGET_S = 2.0
_FAREWELL_S = 1.0

log = logging.getLogger("extproc.serve")


class TrafficKeeper:
    """Keeps the counts of one router. `held` tells how many requests wait now, by model."""

    def __init__(
        self,
        tally: Tally,
        counts: TrafficCounts,
        held: Callable[[], Mapping[str, int]],
        *,
        interval_s: float = INTERVAL_S,
        budget_s: float = BUDGET_S,
    ) -> None:
        self._tally = tally
        self._counts = counts
        self._held = held
        self._interval_s = interval_s
        self._budget_s = budget_s
        self._batch = 0
        self._unanswered: dict[str, Counts] | None = None  # the batch that may or may not have been added
        self._judged: Counter[str] = Counter()
        self._late: Counter[str] = Counter()
        self._slow: Counter[str] = Counter()
        self._paced: Counter[str] = Counter()
        self._told_at_s: float | None = None

    def judged(self) -> Judged:
        """What a scrape reads."""
        now = asyncio.get_running_loop().time()
        silent_s = None if self._told_at_s is None else now - self._told_at_s
        return Judged(dict(self._judged), dict(self._late), dict(self._paced), dict(self._slow), silent_s)

    async def run(self) -> NoReturn:
        """Tell until cancelled, then what is left; an outage costs nothing but the delay."""
        try:
            while True:
                await asyncio.sleep(self._interval_s)
                await self.try_turn(self._budget_s)
        finally:
            await self.try_turn(_FAREWELL_S)

    async def try_turn(self, budget_s: float) -> None:
        """One turn as `turn` has it; what goes wrong is logged and nothing else."""
        try:
            async with asyncio.timeout(budget_s):
                await self.turn()
        except (RegistryError, TimeoutError) as error:
            log.debug("counts of requests were not told: %s", error or "Redis is too slow")
        except Exception:
            log.exception("counts of requests were not told")

    async def turn(self) -> None:
        """Tell what is new, first what was left unanswered. Raises RegistryError."""
        if self._unanswered is not None:
            await self._tell(self._unanswered)
        await self._tell(self._taken())

    async def _tell(self, batch: dict[str, Counts]) -> None:
        if self._unanswered is None:
            self._unanswered, self._batch = batch, self._batch + 1
        await self._counts.add(self._batch, batch, self._held())
        self._unanswered = None
        self._told_at_s = asyncio.get_running_loop().time()

    def _taken(self) -> dict[str, Counts]:
        taken = self._tally.take()
        for model, counts in taken.items():
            if counts.judged or counts.paced:
                self._judged[model] += round(counts.judged)
                self._late[model] += round(counts.late)
                self._paced[model] += round(counts.paced)
                self._slow[model] += round(counts.slow)
        return taken
