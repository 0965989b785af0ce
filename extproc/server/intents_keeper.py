"""Writes down which cold models are wanted, tells the operator's webhook of them, and remembers what starts took.

All of it in the background, at most once per interval: a request only leaves its wish (`core.models.wishes`).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from typing import TYPE_CHECKING, NoReturn

import msgspec

from extproc.adapters.webhook import Fate, fate
from extproc.core.models.cold import typical_s
from extproc.core.models.wishes import Wish
from extproc.core.values.instance import Lifecycle
from extproc.errors import RegistryError
from extproc.observe.cold_metrics import ColdCounts

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Set

    from extproc.adapters.intents import Intents
    from extproc.adapters.start_memory import StartMemory, Starts
    from extproc.adapters.webhook import Webhook
    from extproc.core.router import Router

INTERVAL_S = 1.0
BUDGET_S = 2.0
TELL_AGAIN_S = 300.0  # while a model is still cold: whoever was told may have lost it
_REMEMBER_EVERY_S = 60.0
_SHORTEST_WAIT_S = 2.0  # no model is loaded so fast: another router had only not heard yet that it is there
_NO_WISH = Wish(0, 0.0, False)
_LIVES_PER_WAIT = 2.0  # who is told to come again after some time must find the intent still there

log = logging.getLogger("extproc.serve")


class _Told(msgspec.Struct, frozen=True, kw_only=True):
    """What the webhook is told."""

    event: str
    fleet: str
    model: str
    wanted_for_s: float  # since it was first asked for
    requests: int  # that have asked for it
    waiting: int  # that this router holds for it
    expected_start_s: float


class IntentsKeeper:
    """Keeps the intents of one router. `budget_s` is how long a turn may wait for Redis; `clock` is the time of day."""

    def __init__(
        self,
        router: Router,
        intents: Intents,
        memory: StartMemory,
        fleet: str,
        webhook: Webhook | None = None,
        *,
        interval_s: float = INTERVAL_S,
        budget_s: float = BUDGET_S,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._router = router
        self._cold = router.cold
        self._intents = intents
        self._memory = memory
        self._fleet = fleet
        self._webhook = webhook
        self._interval_s = interval_s
        self._budget_s = budget_s
        self._clock = clock
        self._known: dict[str, Starts] = {}
        self._open: frozenset[str] = frozenset()  # models with an intent, as last read
        self._waits: dict[str, dict[str, float]] = {}  # by model and when they began: not yet written
        self._remember_at_s = 0.0
        self._stated: frozenset[str] = frozenset()  # models that we have said requests wait for
        self._written: frozenset[str] = frozenset()  # instances whose starts are remembered
        self._messages: dict[str, asyncio.Task[None]] = {}  # to the webhook, by model
        self._untold: set[str] = set()  # models of which it could not be told
        self.told: Counter[str] = Counter()
        """Messages to the webhook by what became of them: `taken`, `refused`, `failed`."""

    def counts(self) -> ColdCounts:
        """What a scrape reads."""
        wishes = self._cold.wishes
        starts_s = {model: typical_s(durations_s) for model, durations_s in self._cold.starts_s.items()}
        return ColdCounts(
            asked=dict(wishes.asked),
            waiting=dict(wishes.waiting),
            wanted=self._open,
            start_s={model: start_s for model, start_s in starts_s.items() if start_s is not None},
            told=dict(self.told),
        )

    async def run(self) -> NoReturn:
        """Remember, then write until cancelled; an outage costs nothing but the delay."""
        await self._try("models served before this start are not known yet", self._recall)
        try:
            while True:
                await asyncio.sleep(self._interval_s)
                await self.try_turn()
        finally:
            for message in [*self._messages.values()]:
                message.cancel()

    async def try_turn(self) -> None:
        """One turn as `turn` has it; what goes wrong is logged and nothing else."""
        await self._try("load intents were not written", self.turn)

    async def turn(self) -> None:
        """Write what is wanted, take back what is served by now, remember. Raises RegistryError."""
        served = self._served()
        await self._write(served.keys())
        self._open = frozenset(await self._intents.models())
        for model in self._open & served.keys():
            await self._fulfil(model)
        if self._has_news(served):
            await self._remember(served)

    async def _write(self, served: Set[str]) -> None:
        """What was wished since the last time, and how many wait now, also where nobody else has come since."""
        wishes, waiting = self._cold.wishes.take(), self._cold.wishes.waiting
        left = {model: wish for model, wish in wishes.items() if model not in served}
        waited_for = {model: count for model, count in waiting.items() if model not in served}
        over = self._stated - waited_for.keys() - served
        try:
            for model in (*left, *((waited_for.keys() | over) - left.keys())):
                await self._want(model, left.get(model, _NO_WISH), waiting.get(model, 0))
                left.pop(model, None)
            self._stated = frozenset(waited_for)
        finally:
            self._cold.wishes.give_back(left)

    async def _want(self, model: str, wish: Wish, waiting: int) -> None:
        webhook = self._webhook
        claim_s = TELL_AGAIN_S if webhook is not None and wish.requests and not wish.loading else 0.0
        life_s = _LIVES_PER_WAIT * wish.wait_s
        wanted = await self._intents.want(
            model, wish.requests, waiting, life_s, cold=not wish.loading and wish.requests > 0, claim_s=claim_s
        )
        if webhook is None or model in self._messages or not (wanted.tell or (claim_s and model in self._untold)):
            return
        self._untold.discard(model)
        told = _Told(
            event="model_wanted",
            fleet=self._fleet,
            model=model,
            wanted_for_s=wanted.age_s,
            requests=wanted.requests,
            waiting=waiting,
            expected_start_s=wish.wait_s,
        )
        self._messages[model] = asyncio.create_task(self._tell(webhook, told), name=f"webhook for {model}")

    async def _tell(self, webhook: Webhook, told: _Told) -> None:
        try:
            said = await webhook.tell(msgspec.json.encode(told), f"{told.fleet}/{told.model}/{round(self._clock())}")
        finally:
            self._messages.pop(told.model, None)
        became = fate(said)
        self.told[became.value] += 1
        if became is Fate.TAKEN:
            log.info("the webhook was told that the model %s is wanted", told.model)
            return
        self._untold.add(told.model)  # the claim is ours for a while: the next request tries again
        log.warning("the webhook was not told that the model %s is wanted: %s", told.model, said)

    async def _fulfil(self, model: str) -> None:
        stood_s = await self._intents.fulfil(model)
        if stood_s is None:
            return
        log.info("the model %s is served, %.1f s after it was first asked for", model, stood_s)
        if stood_s >= _SHORTEST_WAIT_S:
            self._waits.setdefault(model, {})[f"{self._clock():.3f}"] = round(stood_s, 3)

    def _served(self) -> dict[str, dict[str, float]]:
        """Models that are served now, each with what starts of its instances took, by `Instance.key`."""
        served: dict[str, dict[str, float]] = {}
        for member in self._router.fleet.members():
            instance = member.instance
            if instance.lifecycle is not Lifecycle.READY:
                continue
            for model in instance.models:
                starts = served.setdefault(model, {})
                if instance.start_s is not None and model not in instance.loras:
                    starts[instance.key] = instance.start_s
        return served

    def _has_news(self, served: Mapping[str, Mapping[str, float]]) -> bool:
        """Whether there is something to write, or it is time to say again what is served."""
        if self._waits or asyncio.get_running_loop().time() >= self._remember_at_s:
            return True
        return any(model not in self._known or starts.keys() - self._written for model, starts in served.items())

    async def _recall(self) -> None:
        policy = self._cold.policy
        if policy is not None:
            self._known = await self._memory.read(policy.remember_s)
            self._cold.starts_s = {model: starts.durations_s for model, starts in self._known.items()}

    async def _remember(self, served: Mapping[str, Mapping[str, float]]) -> None:
        await self._recall()  # what the other routers have seen
        self._known = await self._memory.write(self._known, served, served, self._waits)
        self._waits = {}
        self._written = frozenset(key for starts in served.values() for key in starts)
        self._cold.starts_s = {model: starts.durations_s for model, starts in self._known.items()}
        self._remember_at_s = asyncio.get_running_loop().time() + _REMEMBER_EVERY_S

    async def _try(self, trouble: str, what: Callable[[], Awaitable[None]]) -> None:
        try:
            async with asyncio.timeout(self._budget_s):
                await what()
        except (RegistryError, TimeoutError) as error:
            log.debug("%s: %s", trouble, error or "Redis is too slow")
        except Exception:
            log.exception("%s", trouble)
