"""A single turn, where what is seen and what is made of it are given."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from extproc.adapters.registry import Registry
from extproc.adapters.scaling_memory import ScalingMemory
from extproc.core.fleet.fleet import Fleet
from extproc.core.scaling.recommendation import Driver, Recommendation, Signal
from extproc.core.scaling.rules import PoolRules, ScalingRules
from extproc.core.scaling.sight import Sight
from extproc.observe.scaling_metrics import ScalingGauges, ScalingMetrics
from extproc.scaling_service.doing import Doing
from extproc.scaling_service.journal import Journal
from extproc.scaling_service.loop import Loop, Parts, Role
from extproc.scaling_service.sights import Seen
from tests.core.builders import MODEL

POOL = PoolRules(name="p", models=(MODEL,))
RULES = ScalingRules(pools=(POOL,))
LESS = Recommendation(
    pool="p",
    at_s=1.0,
    desired=1,
    ready=3,
    coming=0,
    leaving=0,
    drivers=(Driver(Signal.LOAD, 1, "load 0"),),
    without=1,
    drain=("a",),
)


@dataclass
class Given:
    """In place of `Sights` and of `Scaler`."""

    routers: int

    async def look(self, journal: Journal) -> Seen:
        return Seen(Sight(at_s=1.0, instances=(), routers=self.routers), {"p": POOL}, {"p": ()}, journal, ())


class Made:
    def look(self, _sight: Sight) -> tuple[Recommendation, ...]:
        return (LESS,)


def loop(routers: int) -> Loop:
    registry = Registry("redis://127.0.0.1:1/0")
    given: Any = Given(routers)
    made: Any = Made
    parts = Parts(
        rules=RULES,
        sights=given,
        new_scaler=made,
        fleet=Fleet(),
        memory=ScalingMemory(registry.link, registry.base),
        leader=None,
        doing=Doing(registry, None),
        webhook=None,
        metrics=ScalingMetrics(lambda: ScalingGauges(recommendations=(), fresh=False, age_s=None)),
        acts=False,
    )
    return Loop(parts, "me")


async def test_less_is_recommended_only_where_routers_tell_how_many_requests_come() -> None:
    """Counts that nobody adds to stand still, and look like no load."""
    assert (await loop(routers=1).look()).recommendations == (LESS,)
    (held,) = (await loop(routers=0).look()).recommendations
    assert (held.desired, held.without, held.drain) == (3, 1, ())
    assert "no router tells" in held.drivers[0].why


async def test_a_turn_without_redis_changes_nothing_and_says_why() -> None:
    """What was recommended before stands."""
    one = loop(routers=1)
    word = await one.look()
    turned: list[bool] = []
    one.changed = lambda: turned.append(True)
    await one.try_turn()
    assert "silent" in one.trouble
    assert (one.word, one.role, turned) == (word, Role.WATCHER, [True])
    assert one.latest() == {"p": LESS}
