"""Tells an operator's HTTP endpoint how many instances a pool should have, and which of them may be stopped.

One message a pool at a time, the latest word only; a message that is not taken is made again with what holds then.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from extproc.adapters.webhook import Fate, fate

if TYPE_CHECKING:
    from extproc.adapters.webhook import Webhook
    from extproc.core.scaling.recommendation import Recommendation
    from extproc.core.scaling.rules import PoolRules

_AGAIN_S = 10.0  # after a message that was not taken

log = logging.getLogger("extproc.autoscale")


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """What the webhook is told. Every message holds all that is asked of the pool: the last one counts."""

    event: str
    fleet: str
    fence: int  # of the leader: a lower one than you have seen comes from a leader of before
    pool: str
    models: tuple[str, ...]
    hardware: str
    labels: dict[str, str]
    desired: int
    ready: int
    coming: int
    leaving: int
    broken: int  # of whom nobody counts on: beside what is desired, one more machine for each lets as many serve
    signal: str
    why: str
    stop: tuple[str, ...]  # ids of instances that may be stopped: all that are still there


class ScalingWebhook:
    """Tells `webhook`. What it has taken is in `taken` and `broken`, by pool, until somebody else remembers it."""

    def __init__(self, webhook: Webhook, fleet: str) -> None:
        self._webhook = webhook
        self._fleet = fleet
        self._messages: dict[str, asyncio.Task[None]] = {}
        self._not_before_s: dict[str, float] = {}
        self.taken: dict[str, int] = {}
        """By pool: the desired number that was taken last."""
        self.broken: dict[str, int] = {}
        """By pool: how many broken ones it was taken with."""
        self.untaken: set[str] = set()
        """Pools of which the last message was not taken."""
        self.told: Counter[str] = Counter()
        """Messages by what became of them: `taken`, `refused`, `failed`."""

    def tell(self, recommendation: Recommendation, pool: PoolRules, stop: Sequence[str], fence: int) -> bool:
        """Tell of a pool; False, and nothing, while a message of it is under way, or was not taken a moment ago."""
        now_s = asyncio.get_running_loop().time()
        if pool.name in self._messages or now_s < self._not_before_s.get(pool.name, now_s):
            return False
        driver = recommendation.drivers[0] if recommendation.drivers else None
        message = Message(
            event="pool_scaled",
            fleet=self._fleet,
            fence=fence,
            pool=pool.name,
            models=pool.models,
            hardware=pool.hardware,
            labels=dict(pool.labels),
            desired=recommendation.desired,
            ready=recommendation.ready,
            coming=recommendation.coming,
            leaving=recommendation.leaving,
            broken=recommendation.broken,
            signal=driver.signal.value if driver else "",
            why=driver.why if driver else "",
            stop=tuple(stop),
        )
        key = f"{self._fleet}/{pool.name}/{fence}/{round(1000 * recommendation.at_s)}"
        self._messages[pool.name] = asyncio.create_task(self._tell(message, key), name=f"webhook for {pool.name}")
        return True

    async def end(self, within_s: float) -> None:
        """Let messages under way come to their end, within that time."""
        if self._messages:
            _, left = await asyncio.wait([*self._messages.values()], timeout=within_s)
            for message in left:
                message.cancel()

    async def _tell(self, message: Message, key: str) -> None:
        try:
            said = await self._webhook.tell(msgspec.json.encode(message), key)
        finally:
            self._messages.pop(message.pool, None)
        became = fate(said)
        self.told[became.value] += 1
        if became is Fate.TAKEN:
            self.taken[message.pool], self.broken[message.pool] = message.desired, message.broken
            self.untaken.discard(message.pool)
            return
        self.untaken.add(message.pool)
        self._not_before_s[message.pool] = asyncio.get_running_loop().time() + _AGAIN_S
        log.warning("the webhook was not told that pool %s should have %d: %s", message.pool, message.desired, said)
