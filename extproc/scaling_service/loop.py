"""One turn after another: the leader looks, writes down, tells and acts; the others read what it has told.

What is done for a leader is written into Redis before, by its fencing number. So whoever leads next knows of it, and a
replica that only believes to lead does nothing.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, NoReturn

from extproc.errors import RegistryError
from extproc.scaling_service.acting import Action, actions, begun, kept
from extproc.scaling_service.journal import Journal, not_after
from extproc.scaling_service.log_warnings import LogWarnings
from extproc.scaling_service.remembering import Remembering
from extproc.scaling_service.webhook_news import WebhookNews
from extproc.scaling_service.word import Word, decode_word, encode_word

if TYPE_CHECKING:
    from extproc.adapters.leader import Leader
    from extproc.adapters.scaling_memory import ScalingMemory
    from extproc.core.fleet.fleet import Fleet
    from extproc.core.pricing.classes import ClassPolicy
    from extproc.core.scaling.recommendation import Recommendation
    from extproc.core.scaling.rules import ScalingRules
    from extproc.core.scaling.scaler import Scaler
    from extproc.observe.scaling_metrics import ScalingMetrics
    from extproc.scaling_service.doing import Doing
    from extproc.scaling_service.scaling_webhook import ScalingWebhook
    from extproc.scaling_service.sights import Seen, Sights

SETTLE_S = 10.0  # after an outage, or a change of leader: agents publish anew within a few seconds
SILENT_S = 5.0  # without a word of the registry, what is known of the fleet is too old to act on
_PATIENCE_S = 10.0  # for Redis, in one turn

log = logging.getLogger("extproc.autoscale")


class Role(StrEnum):
    """What this replica does."""

    LEADER = "leader"
    FOLLOWER = "follower"
    WATCHER = "watcher"  # looks and does nothing (--dry-run)


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What the loop works with. Without a `leader` it never leads, and looks for itself alone."""

    rules: ScalingRules  # to begin with
    classes: ClassPolicy
    sights: Sights
    new_scaler: Callable[[ScalingRules, ClassPolicy], Scaler]
    fleet: Fleet
    memory: ScalingMemory
    leader: Leader | None
    doing: Doing
    webhook: ScalingWebhook | None
    metrics: ScalingMetrics
    acts: bool  # whether anything is done to instances


class Loop:
    """The turns of one replica. `name` and `about` tell who it is."""

    def __init__(
        self,
        parts: Parts,
        name: str,
        about: str = "",
        *,
        settle_s: float = SETTLE_S,
    ) -> None:
        self._parts = parts
        self._name = name
        self._about = about
        self._settle_s = settle_s
        self.changed: Callable[[], None] = lambda: None
        """Called after each turn."""
        self._rules, self._classes = parts.rules, parts.classes
        self._new: tuple[ScalingRules, ClassPolicy] | None = None  # from the next turn on
        self._scaler = parts.new_scaler(parts.rules, parts.classes)
        self._journal = Journal()
        self._remembering = Remembering(parts.memory)
        self._warnings = LogWarnings()
        self._news = None if parts.webhook is None else WebhookNews(parts.webhook)
        self._fence: int | None = None  # under which we led in the last turn
        self._settled_at_s = float("inf")
        self.role = Role.WATCHER if parts.leader is None else Role.FOLLOWER
        self.word: Word | None = None
        """What was recommended last, by us or by the leader."""
        self._word_at_s = float("-inf")  # when it was said, on our monotonic clock
        self.trouble = ""
        """Why the last turn came to nothing; "" if it did not."""
        self.due_at_s = time.monotonic()
        """When the next turn begins at the latest, on the monotonic clock; in the past while one is under way."""

    @property
    def tick_s(self) -> float:
        """Seconds between two turns."""
        return self._rules.tick_s

    def use(self, rules: ScalingRules, classes: ClassPolicy) -> None:
        """Go by other rules from the next turn on: one that is under way has looked by those of before."""
        self._new = rules, classes

    def latest(self) -> Mapping[str, Recommendation]:
        """What was recommended last, by pool."""
        return {each.pool: each for each in self.word.recommendations} if self.word else {}

    def age_s(self) -> float | None:
        """How old `word` is. Another replica's is as old as it has lain in Redis, whatever the time of day here."""
        return None if self.word is None else time.monotonic() - self._word_at_s

    def now_s(self) -> float:
        """What time it is on the clock of who has said `word`."""
        return 0.0 if self.word is None else self.word.at_s + time.monotonic() - self._word_at_s

    async def run(self) -> NoReturn:
        """Turn every `tick_s` until cancelled; what goes wrong is logged when it begins and when it is over."""
        while True:
            began_s = time.monotonic()
            await self.try_turn()
            await asyncio.sleep(max(0.05, began_s + self.tick_s - time.monotonic()))

    async def try_turn(self) -> None:
        """One turn as `turn` has it; nothing is done where it fails."""
        trouble = ""
        try:
            async with asyncio.timeout(_PATIENCE_S):
                await self.turn()
        except (RegistryError, TimeoutError) as error:
            trouble = str(error) or "Redis is too slow"
            self._settled_at_s = float("inf")
        except Exception as error:
            trouble = f"{type(error).__name__}: {error}"
            if trouble != self.trouble:
                log.exception("a turn failed")
        if trouble and not self.trouble:
            log.warning("nothing is done, and what was recommended stands: %s", trouble)
        elif self.trouble and not trouble:
            log.info("looking again")
        self.trouble = trouble
        self.due_at_s = time.monotonic() + self.tick_s
        self.changed()

    async def turn(self) -> None:
        """Look and act, or read what the leader has told. Raises RegistryError."""
        self._renew()
        leader = self._parts.leader
        fence = None if leader is None else leader.fence
        if leader is not None and fence is None:
            self._fence, self.role = None, Role.FOLLOWER
            await self._follow()
            return
        silent_s = time.monotonic() - self._parts.fleet.contact_at_s
        if silent_s > SILENT_S:
            raise RegistryError("Redis has been silent for too long to know the fleet")
        if fence is None:
            await self.look()
            return
        if fence != self._fence:
            await self.recall()
            self._fence, self.role = fence, Role.LEADER
            self._settled_at_s = float("inf")
            self._remembering.hasten()
        await self._lead(fence)

    def _renew(self) -> None:
        if self._new is None:
            return
        (self._rules, self._classes), self._new = self._new, None
        self._warnings.renew()
        self._parts.sights.use(self._rules)
        self._scaler.use(self._rules, self._classes)

    async def look(self) -> Word:
        """Look once, and do nothing about it. Raises RegistryError."""
        _, word = await self._looked()
        return word

    async def recall(self) -> None:
        """Go on from what the last leader has left. Raises RegistryError."""
        memory = await self._remembering.recall()
        if memory is None:
            return
        now_s = time.time()
        self._journal = not_after(memory.journal, now_s)
        self._scaler = self._parts.new_scaler(self._rules, self._classes)
        if memory.scaler:
            self._scaler.load(memory.scaler, now_s)

    async def end(self) -> None:
        """Write down what is remembered, if we lead. Raises RegistryError."""
        leader = self._parts.leader
        fence = None if leader is None else leader.fence
        if fence is not None and fence == self._fence:
            journal = self._parts.doing.settled(self._journal)
            await self._remembering.write(journal, self._scaler.dump(), fence)

    async def _follow(self) -> None:
        told = await self._parts.memory.told()
        word = None if told is None else decode_word(told.data)
        if told is not None and word is not None:
            self.word, self._word_at_s = word, time.monotonic() - told.age_s

    async def _looked(self) -> tuple[Seen, Word]:
        began_s = time.monotonic()
        seen = await self._parts.sights.look(self._journal)
        made = self._scaler.look(seen.sight)
        if not seen.sight.routers:
            made = tuple(kept(each, "no router tells how many requests come: nothing is taken away") for each in made)
        self._parts.metrics.looked(time.monotonic() - began_s)
        self._warnings.look(seen, self._rules)
        pending = {name: len(seen.journal.pending(name)) for name in seen.pools}
        word = Word(
            at_s=seen.sight.at_s,
            name=self._name,
            about=self._about,
            recommendations=made,
            pending=pending,
            outside=seen.outside,
        )
        self.word, self._word_at_s = word, time.monotonic()
        return seen, word

    async def _lead(self, fence: int) -> None:
        parts = self._parts
        self._journal = parts.doing.settled(self._journal)
        before = self._journal
        seen, word = await self._looked()
        journal = parts.doing.still_stopping(seen.journal, word.at_s)
        parts.doing.note_starts(before, journal, seen.ready)
        if self._news is not None:
            journal = self._news.noted(journal)
        self._journal = journal  # noted once, whatever becomes of the rest of this turn
        begin = self._to_do(seen, word, journal)
        journal = begun(journal, begin, seen.members, word.at_s)
        remembering = self._remembering
        if remembering.is_due(journal) and not await remembering.write(journal, self._scaler.dump(), fence):
            raise RegistryError("another replica leads by now")
        self._journal = journal
        by_id = {each.id: each for each in seen.sight.instances if each.address}
        await parts.doing.do(begin, seen.pools, by_id, lambda: self._leads(fence), fence=fence)
        gone = [each for each in journal.drained if each not in by_id]
        self._journal = journal.without_drains(await parts.doing.take_back(gone, fence))
        if self._news is not None and time.monotonic() >= self._settled_at_s:
            self._news.tell(seen, word, self._journal, begin, fence)
        if not await parts.memory.tell(encode_word(word), fence):
            raise RegistryError("another replica leads by now")

    def _to_do(self, seen: Seen, word: Word, journal: Journal) -> tuple[Action, ...]:
        """What to do now; nothing until the fleet is surely known."""
        now_s = time.monotonic()
        if self._settled_at_s == float("inf"):
            self._settled_at_s = now_s + self._settle_s
        if now_s < self._settled_at_s or not self._parts.acts:
            return ()
        doing = self._parts.doing
        found: list[Action] = []
        ordered = self._parts.fleet.ordered()
        astray = {launch.pool for launch in journal.launches if launch.id in seen.outside}
        for each in word.recommendations:
            starting = doing.may_start(each.pool) and each.pool not in astray
            members, new = seen.members[each.pool], partial(new_id, each.pool)
            most = seen.pools[each.pool].most
            found += actions(each, journal, members, word.at_s, new, most=most, ordered=ordered, starting=starting)
        return tuple(found)

    def _leads(self, fence: int) -> bool:
        return self._parts.leader is not None and self._parts.leader.fence == fence


def new_id(pool: str) -> str:
    """An id for an instance that is to start, of characters that the registry takes."""
    return f"{pool}-{secrets.token_hex(4)}"
