"""A single turn, where what is seen and what is made of it are given."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from extproc.adapters.registry import Registry
from extproc.adapters.scaling_memory import ScalingMemory, Written
from extproc.core.fleet.fleet import Fleet
from extproc.core.pricing.classes import ClassPolicy
from extproc.core.scaling.recommendation import Driver, Recommendation, Signal
from extproc.core.scaling.rules import PoolRules, ScalingRules
from extproc.core.scaling.sight import Sight
from extproc.core.values.instance import Lifecycle
from extproc.errors import RegistryError
from extproc.observe.scaling_metrics import ScalingGauges, ScalingMetrics
from extproc.scaling_service.acting import Action, ActionKind
from extproc.scaling_service.doing import Doing
from extproc.scaling_service.instance_command import InstanceCommand
from extproc.scaling_service.journal import Journal, Launch, Stop
from extproc.scaling_service.loop import Loop, Parts, Role
from extproc.scaling_service.pages import age_s, alive, fresh
from extproc.scaling_service.sights import Seen
from extproc.scaling_service.word import Memory, Word, decode_memory, encode_memory, encode_word
from tests.core.builders import MODEL
from tests.scaling_service.world import write_script

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
    journal: Journal | None = None  # what the fleet shows of it
    rules: ScalingRules | None = None

    def use(self, rules: ScalingRules) -> None:
        self.rules = rules

    async def look(self, journal: Journal) -> Seen:
        shown = journal if self.journal is None else self.journal
        return Seen(Sight(at_s=1.0, instances=(), routers=self.routers), {"p": POOL}, {"p": ()}, shown, ())


class Made:
    def __init__(self, *used: object) -> None:
        self.used = [used]

    def use(self, *rules: object) -> None:
        self.used.append(rules)

    def look(self, _sight: Sight) -> tuple[Recommendation, ...]:
        return (LESS,)

    def load(self, data: bytes, at_s: float) -> None:
        """Nothing to go on from."""

    def dump(self) -> bytes:
        return b""


@dataclass
class Kept:
    """In place of `ScalingMemory`."""

    data: bytes
    word: Written = field(default_factory=lambda: Written(b"", 0.0))

    async def read(self) -> bytes:
        return self.data

    async def write(self, data: bytes, _fence: int) -> bool:
        self.data = data
        return True

    async def told(self) -> Written:
        return self.word

    async def tell(self, _data: bytes, _fence: int) -> bool:
        return True


@dataclass
class Refuses(Kept):
    """Redis is full: it tells what it has, and takes nothing more."""

    full: bool = True

    async def write(self, data: bytes, fence: int) -> bool:
        if self.full:
            raise RegistryError("no memory left")
        return await super().write(data, fence)


@dataclass
class Orders:
    """In place of `Registry`, as far as orders go; `lost` of them do not arrive."""

    lost: int
    taken_back: list[str] = field(default_factory=list)

    async def order(self, instance_id: str, lifecycle: Lifecycle | None, _fence: int) -> bool:
        assert lifecycle is None
        if self.lost:
            self.lost -= 1
            raise RegistryError("Redis did not answer")
        self.taken_back.append(instance_id)
        return True


@dataclass
class Leads:
    """In place of `Leader`."""

    fence: int | None


@dataclass
class Told:
    """In place of `ScalingWebhook`, which was told of all that is desired."""

    untaken: set[str]
    taken: dict[str, int]
    pools: list[str]
    broken: dict[str, int] = field(default_factory=dict)

    def tell(self, _recommendation: Recommendation, pool: PoolRules, _stop: object, _fence: int) -> bool:
        self.pools.append(pool.name)
        return True


def loop(routers: int, **others: Any) -> Loop:
    registry = Registry("redis://127.0.0.1:1/0")
    heard = Fleet()
    heard.contact_at_s = time.monotonic()
    values: dict[str, Any] = {
        "rules": RULES,
        "fleet": heard,
        "sights": Given(routers),
        "memory": ScalingMemory(registry.link, registry.base),
        "leader": None,
        "webhook": None,
        "doing": Doing(registry, None),
    }
    made: Any = Made
    parts = Parts(
        classes=ClassPolicy(),
        new_scaler=made,
        **(values | others),
        metrics=ScalingMetrics(lambda: ScalingGauges(recommendations=(), fresh=False, age_s=None)),
        acts=False,
    )
    return Loop(parts, "me", settle_s=0.0)


async def test_less_is_recommended_only_where_routers_tell_how_many_requests_come() -> None:
    """Counts that nobody adds to stand still, and look like no load."""
    assert (await loop(routers=1).look()).recommendations == (LESS,)
    (held,) = (await loop(routers=0).look()).recommendations
    assert (held.desired, held.without, held.drain) == (3, 1, ())
    assert "no router tells" in held.drivers[0].why


async def test_a_turn_without_redis_changes_nothing_and_says_why() -> None:
    """What was recommended before stands."""
    one = loop(routers=1, fleet=Fleet())
    word = await one.look()
    turned: list[bool] = []
    one.changed = lambda: turned.append(True)
    await one.try_turn()
    assert "silent" in one.trouble
    assert (one.word, one.role, turned) == (word, Role.WATCHER, [True])
    assert one.latest() == {"p": LESS}


async def test_other_rules_count_from_the_next_turn_on() -> None:
    """One that is under way has looked by those of before: its pools are not those of the new ones."""
    sights = Given(1)
    one, rules, classes = loop(1, sights=sights), replace(RULES, tick_s=RULES.tick_s + 1.0), ClassPolicy()
    one.use(rules, classes)
    assert (sights.rules, one.tick_s) == (None, RULES.tick_s)
    await one.turn()
    assert (sights.rules, one.tick_s) == (rules, rules.tick_s)
    scaler: Any = one._scaler
    assert scaler.used == [(RULES, classes), (rules, classes)]


async def test_a_loop_that_is_to_turn_more_often_is_alive_in_its_first_turn_after_a_long_pause(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And is taken for dead if that turn does not end."""
    one = loop(1, rules=replace(RULES, tick_s=3600.0))
    await one.try_turn()
    ended_s = time.monotonic()
    one.use(RULES, ClassPolicy())
    one._renew()
    for later_s, lives in ((3590.0, True), (3700.0, False)):
        clock = SimpleNamespace(monotonic=lambda at_s=ended_s + later_s: at_s)
        monkeypatch.setattr("extproc.scaling_service.pages.time", clock)
        assert alive(one) == lives


async def test_an_old_copy_of_what_was_written_down_is_not_gone_on_from() -> None:
    """Redis came back with what a leader of before had written; we have led since, and know what we did."""
    old = encode_memory(Memory(fence=3, journal=Journal(launches=(Launch(id="x", pool="p", at_s=0.0),))))
    sights, kept, leads = Given(routers=1), Kept(old), Leads(5)
    one = loop(1, sights=sights, memory=kept, leader=leads)

    async def written(fence: int) -> int:
        leads.fence = fence
        await one.turn()
        memory = decode_memory(kept.data)
        assert memory is not None
        assert memory.fence == fence
        return len(memory.journal.launches)

    assert await written(5) == 1
    sights.journal = Journal()
    assert await written(5) == 0, "an instance has come of it"
    sights.journal, kept.data = None, old
    assert await written(8) == 0
    kept.data = encode_memory(Memory(fence=9, journal=Journal(launches=(Launch(id="y", pool="p", at_s=0.0),))))
    assert await written(10) == 1, "another has led"


async def test_what_a_leader_with_a_clock_that_is_ahead_has_begun_is_as_old_as_now() -> None:
    """Its successor would reckon with that start for as long as the clocks differ, and three starts more."""
    ahead = Journal(launches=(Launch(id="x", pool="p", at_s=time.time() + 86_400.0),))
    kept = Kept(encode_memory(Memory(fence=3, journal=ahead)))
    await loop(1, memory=kept, leader=Leads(5)).turn()
    memory = decode_memory(kept.data)
    assert memory is not None
    (launch,) = memory.journal.launches
    assert launch.at_s <= time.time()


async def test_what_a_turn_has_seen_is_noted_once_though_it_cannot_be_written_down() -> None:
    """Else a pool would rest for twice as long after each turn of an outage, and up to an hour when it is over."""
    begun = Journal(launches=(Launch(id="x", pool="p", at_s=0.0),))
    kept, doing = Refuses(encode_memory(Memory(fence=3, journal=begun))), Doing(Registry("redis://127.0.0.1:1/0"), None)
    one = loop(1, sights=Given(1, Journal()), memory=kept, leader=Leads(5), doing=doing)
    for _ in range(3):
        await one.try_turn()
        assert "no memory" in one.trouble
        assert doing.done == {("start", "p", "given_up"): 1}
    kept.full = False
    await one.try_turn()
    assert (one.trouble, doing.done) == ("", {("start", "p", "given_up"): 1})
    assert decode_memory(kept.data) == Memory(fence=5, journal=Journal())


async def test_an_order_to_drain_is_ours_until_it_was_taken_back_from_an_instance_that_is_gone() -> None:
    """Whatever comes under the same id would else drain for good, as if a person had ordered it."""
    orders: Any = Orders(lost=1)
    kept = Kept(encode_memory(Memory(fence=3, journal=Journal(drained=("a",)))))
    one = loop(1, memory=kept, leader=Leads(5), doing=Doing(orders, None))

    async def written() -> tuple[str, ...]:
        await one.turn()
        memory = decode_memory(kept.data)
        assert memory is not None
        return memory.journal.drained

    assert (await written(), orders.taken_back) == (("a",), [])
    assert (await written(), orders.taken_back) == (("a",), ["a"])
    assert (await written(), orders.taken_back) == ((), ["a"])


async def test_a_stop_whose_call_is_not_over_is_written_down_as_new(tmp_path: Path) -> None:
    """So that neither we nor whoever leads next ask for it again at once."""
    go = tmp_path / "go"
    script, _ = write_script(tmp_path, f"while [ ! -e {go} ]; do sleep 0.02; done")
    doing = Doing(Registry("redis://127.0.0.1:1/0"), InstanceCommand((str(script),), "f"))
    await doing.do([Action(ActionKind.STOP, "x", LESS)], {"p": POOL}, {}, lambda: True, fence=5)
    journal = Journal(stops=(Stop(id="x", at_s=-600.0), Stop(id="y", at_s=-600.0)))
    kept = Kept(b"")
    await loop(1, sights=Given(1, journal), memory=kept, leader=Leads(5), doing=doing).turn()
    go.touch()
    await doing.end(30.0)
    memory = decode_memory(kept.data)
    assert memory is not None
    assert {stop.id: stop.at_s for stop in memory.journal.stops} == {"x": 1.0, "y": -600.0}


async def test_prices_that_are_missing_are_told_to_the_log_once_and_again_with_other_rules(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """All pools of those models cost the same then."""
    dear, *others = (replace(POOL, name=name) for name in ("p", "q", "r"))
    unpriced = replace(RULES, pools=(replace(dear, price_per_hour=4.0), *others))
    one = loop(1, rules=unpriced)

    async def warned() -> list[str]:
        caplog.clear()
        await one.turn()
        await one.turn()
        return [each.getMessage() for each in caplog.records if "price" in each.getMessage()]

    (line,) = await warned()
    assert line.startswith("no price_per_hour of q, r is known")
    assert await warned() == []
    one.use(unpriced, ClassPolicy())
    assert len(await warned()) == 1
    one.use(RULES, ClassPolicy())
    assert await warned() == []


async def test_a_pool_is_told_of_again_where_the_last_message_was_not_taken() -> None:
    """Though the desired number is known: instances that may be stopped need not be."""
    journal = Journal(told={"p": LESS.desired})
    webhook = Told(untaken=set(), taken={}, pools=[])
    one = loop(1, sights=Given(1, journal), memory=Kept(b""), leader=Leads(5), webhook=webhook)
    await one.turn()
    assert webhook.pools == []
    webhook.untaken.add("p")
    await one.turn()
    assert webhook.pools == ["p"]


async def test_a_pool_is_told_of_again_where_others_are_broken_than_were_told() -> None:
    """Also by the next leader, which knows what the last one has told; what was taken is written down."""
    kept = Kept(b"")
    webhook = Told(untaken=set(), taken={}, pools=[])
    told = Journal(told={"p": LESS.desired}, told_broken={"p": 2})
    await loop(1, sights=Given(1, told), memory=kept, leader=Leads(5), webhook=webhook).turn()
    assert webhook.pools == ["p"], "none is broken any more"
    webhook = Told(untaken=set(), taken={"p": LESS.desired}, broken={"p": 0}, pools=[])
    await loop(1, sights=Given(1, told), memory=kept, leader=Leads(6), webhook=webhook).turn()
    assert (webhook.pools, webhook.taken, webhook.broken) == ([], {}, {})
    memory = decode_memory(kept.data)
    assert memory is not None
    assert (memory.journal.told, memory.journal.told_broken) == ({"p": 1}, {"p": 0})


async def test_how_old_a_leaders_word_is_is_told_by_the_clock_of_redis() -> None:
    """The clock of the machine that said it may be years away; that of who follows is not asked."""
    said = encode_word(Word(at_s=1.0, name="other", about="", recommendations=(LESS,), pending={}))
    for lain_s, young in ((1.0, True), (61.0, False)):
        one = loop(1, memory=Kept(b"", Written(said, lain_s)), leader=Leads(None))
        assert (age_s(one), fresh(one)) == (None, False)
        await one.turn()
        age = age_s(one)
        assert age is not None
        assert age >= lain_s
        assert one.now_s() - LESS.at_s >= lain_s
        assert fresh(one) is young
