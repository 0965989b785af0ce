"""Columns decide as one instance after the other would, whatever happened to fleet, work, beliefs and prefixes."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from extproc.core.admission.bounds import Bounds
from extproc.core.column_tables import MOST_TABLES
from extproc.core.columns import Columns
from extproc.core.decide import decide
from extproc.core.fleet.events import Removed
from extproc.core.fleet.zones import Crossing, Zones
from extproc.core.flight.work import Reservation
from extproc.core.prefixes.kv_delta import KvDelta, KvTier
from extproc.core.pricing.classes import DEFAULT_CLASSES, ClassPolicy, ClassWeights
from extproc.core.router import Router
from extproc.core.snapshot import Policy
from extproc.core.values.decision import CacheSource, Cost, Decision, Reason
from extproc.core.values.instance import Capability, Host, Lifecycle, Load, Role
from extproc.core.values.placement import parse_placement
from extproc.core.values.request import KvLayout, Request, RequestClass
from tests.core.builders import MODEL, blocks, instance, publish, request, router
from tests.core.measured import Truth
from tests.core.one_by_one import decide_one_by_one

NAMES = ("a", "b", "c", "d", "e")
ZONES = Zones(own="here", crossings={("here", "far"): Crossing(rtt_s=0.05, price_per_gb=0.1, bytes_s=1e8)})
TOLD = {KvLayout(16, MODEL): blocks(7, 60), KvLayout(24, MODEL): blocks(8, 40)}
STEPS = (
    *("publish", "remove", "ask", "ask", "ask", "end", "peer", "fail", "push_back", "tell", "tell", "doubt"),
    *("finish", "wait", "wait", "look back", "hear"),
)
CLASSES = ClassPolicy(
    classes={**DEFAULT_CLASSES, RequestClass.BATCH: ClassWeights(ttft=0.5, value_per_hour=5.0, queue_share=0.5)}
)

# What may differ from the plain instance, request and policy of `builders`.
INSTANCE: dict[str, tuple[Any, ...]] = {
    "incarnation": ("2",),
    "models": ((MODEL, "lora"), ("other",), ()),
    "loras": (("lora",),),
    "loras_active": (("lora",), ("x",), ("x", "y", "z")),
    "loras_running": ((), ("x",)),
    "max_loras": (1, 2),
    "lora_load_s": (0.3,),
    "lifecycle": (Lifecycle.LOADING, Lifecycle.DRAINING),
    "hardware": ("l40s", ""),
    "zone": ("here", "far", "elsewhere"),
    "capabilities": ((), (Capability.TOOLS,)),
    "max_model_len_tokens": (None, 2000),
    "block_size_tokens": (None, 24),
    "kv_blocks": (None, 60, 200),
    "max_num_seqs": (None, 1, 2),
    "step_tokens": (None, 64, 1000),
    "data_parallel": (2, 4),
    "price_per_hour": (1.0, 9.0),
    "role": (Role.DECODE,),
    "host": (Host(cpu_pressure=0.4, network_bytes_s=5e5),),
    "network_limit_bytes_s": (1e6,),
    "tags": (
        {"max_in_flight": "1"},
        {"max_queued": "0", "max_in_flight": "none"},
        {"max_kv_share": "0.2"},
        {"max_kv_share": "none"},
    ),
    "load": tuple(Load(running=3, waiting=each, kv_usage=used) for each in (None, 2) for used in (None, 0.5, 0.9)),
}
REQUEST: dict[str, tuple[Any, ...]] = {
    "model": ("lora", "x", "y", "z", "other", "nobody has it"),
    "prompt_tokens": (1, 300, 9000, 30_000),
    "prefix": (blocks(1, 1), blocks(1, 14), blocks(2, 14)),
    "max_output_tokens": (5, 3000),
    "expected_output_tokens": (0, 1, 2000),
    "needs": (frozenset({Capability.TOOLS}),),
    "placement": (parse_placement("zone=far"),),
    "priority": (-2, 2),
    "request_class": (RequestClass.BATCH, RequestClass.LONG_CONTEXT),
    "body_bytes": (5000, 1_000_000),
    "chains": (TOLD, {KvLayout(16, MODEL): blocks(7, 9), KvLayout(24, MODEL): ()}),
}
POLICY: dict[str, tuple[Any, ...]] = {
    "max_in_flight": (3,),
    "max_queued": (0, 1),
    "max_kv_share": (0.01, 0.05, 1.0),
    "near_tie_share": (0.0, 0.5),
    "near_tie_s": (1.0,),
    "alternatives": (0, 4),
    "zones": (ZONES,),
    "classes": (CLASSES,),
    "draining_continuation_tokens": (150, 2000),
    "draining_continuation_s": (3.0,),
}
# On half of the fleets adapters come and go everywhere.
ADAPTERS = ("lora", "x", "y", "z")
WITH_ADAPTERS: dict[str, Any] = {"models": (MODEL, *ADAPTERS), "loras": ADAPTERS, "max_loras": 2}
# Asked after every step: what it changed shows at the latest here.
PROBES: tuple[dict[str, Any], ...] = (
    {"prefix": blocks(1, 14)},
    {"prefix": blocks(2, 14), "chains": TOLD},
    {"model": "lora", "chains": {KvLayout(16, "lora"): blocks(7, 60)}},
)
BOUNDS_BROKEN = (Reason.TTFT_BEYOND_BOUND, Reason.TPOT_BEYOND_BOUND, Reason.DEADLINE_UNREACHABLE)


def some(chance: random.Random, choices: dict[str, tuple[Any, ...]], share: float) -> dict[str, Any]:
    """A few of the differences."""
    return {name: chance.choice(values) for name, values in choices.items() if chance.random() < share}


class Scene:
    """A router to which things happen, each at its time."""

    def __init__(self, policy: Policy, usual: dict[str, Any] | None = None) -> None:
        self.router = Router(policy)
        self.usual = usual or {}
        self.now = 0.0
        self.asked: list[str] = []

    def step(self, chance: random.Random, share: float) -> None:
        """Something happens."""
        name = chance.choice(NAMES)
        match chance.choice(STEPS):
            case "publish":
                self.publish(name, some(chance, INSTANCE, share))
            case "remove" | "fail" | "push_back" as what:
                getattr(self, what)(name)
            case "ask":
                full = {name} if chance.random() < 0.2 else set()
                self.ask(some(chance, REQUEST, 0.2), chance.random(), full)
            case "end":
                self.end(chance.randrange(10))
            case "peer":
                self.peer(name, chance.uniform(0.0, 3.0))
            case "tell":
                tier = chance.choice((KvTier.GPU, KvTier.GPU, KvTier.CPU))
                self.tell(name, chance.randint(1, 60), tier, chance.choice((16, 16, 24)))
            case "doubt":
                self.doubt(name, chance.choice(list(CacheSource)), chance.choice((0, 100, 500)))
            case "finish":
                self.finish(name, chance.uniform(0.3, 5.0), chance.choice((1, 1, 5)))
            case "wait":
                self.now += chance.choice((0.003, 0.03, 0.3, 3.0, 10.0))
            case "look back":
                self.now = max(0.0, self.now - 0.05)
            case "hear":
                self.hear()

    def publish(self, name: str, changes: dict[str, Any]) -> None:
        publish(self.router, instance(name, **(self.usual | changes)), self.now)

    def remove(self, name: str) -> None:
        self.router.take(self.router.fleet.apply(Removed(id=name), self.now))

    def ask(self, changes: dict[str, Any], draw: float, full: set[str]) -> None:
        asked = request(f"r{len(self.asked)}", **changes)
        self.asked.append(asked.id)
        keys = {f"{name}@1" for name in full}
        agree(asked, self.router, self.now, draw, keys)
        agree(asked, self.router, self.now, draw, keys, chance_bounds(random.Random(draw)))
        self.router.choose(asked, self.now, draw, keys)

    def end(self, number: int) -> None:
        self.router.release(f"r{number}", self.now)

    def peer(self, name: str, ago_s: float) -> None:
        reservation = Reservation(f"p{self.now}", self.now - ago_s, 0.5, 500, 50, 400, router="peer")
        self.router.ledger.reserve(f"{name}@1", reservation, self.now)

    def fail(self, name: str) -> None:
        self.router.cooldowns.fail(f"{name}@1", self.now, self.now)

    def push_back(self, name: str) -> None:
        self.router.backpressure.push_back(f"{name}@1", self.now, self.now)

    def tell(self, name: str, count: int, tier: KvTier, size_tokens: int) -> None:
        """Its engine does; of one that is not there, news comes late."""
        member = self.router.fleet.get(name)
        told = blocks(7 if size_tokens == 16 else 8, count)
        key = f"{name}@1" if member is None else member.instance.key
        self.router.kv.apply(key, KvDelta(size_tokens, **{tier.name.lower(): told}))

    def doubt(self, name: str, source: CacheSource, true_tokens: int) -> None:
        for _ in range(12):
            self.router.trust.check(f"{name}@1", MODEL, source, 900, true_tokens)

    def finish(self, name: str, scale: float, count: int) -> None:
        member = self.router.fleet.get(name)
        if member is not None:
            truth = Truth(scale=scale, now=self.now)
            for _ in range(count):
                truth.finish(self.router.beliefs.speeds, member.instance)

    def hear(self) -> None:
        self.router.take(self.router.fleet.heard(self.now))


def chance_bounds(chance: random.Random) -> Bounds:
    """Bounds that some keep and others do not."""
    return Bounds(
        chance.choice((0.02, 0.2, 1.0, 5.0)),
        chance.choice((0.005, 0.012, 0.05)),
        chance.choice((0.0, 0.11, 0.93)),
        own_prompt=chance.random() < 0.7,
        ahead_s=chance.choice((float("inf"), float("inf"), 0.03)),
        leaves_places=chance.random() < 0.3,
        keeps_prefix=chance.random() < 0.3,
        harm_share=chance.choice((1.0, 1.0, 0.3, 0.0)),
        deadline_in_s=chance.choice((None, None, 0.5, 3.0)),
    )


def agree(
    asked: Request, router: Router, now: float, draw: float, full: set[str], bounds: Bounds | None = None
) -> None:
    """Both ways to decide come to the same."""
    plain = decide_one_by_one(asked, router.snapshot(), now, draw, full, bounds)
    made = decide(asked, router.snapshot(), now, draw, full, bounds)
    assert [(each.instance_id, each.reason) for each in made.rejected] == [
        (each.instance_id, each.reason) for each in plain.rejected
    ]
    for rejection, other_one in zip(made.rejected, plain.rejected, strict=True):
        if rejection.reason in BOUNDS_BROKEN:
            assert (rejection.needs, rejection.has) == pytest.approx((other_one.needs, other_one.has), rel=1e-9)
        else:
            assert rejection == other_one
    assert shown(made) == shown(plain)
    for one, other in zip(made.candidates, plain.candidates, strict=True):
        assert one.tpot_s == pytest.approx(other.tpot_s, rel=1e-9)
        for name in Cost.__struct_fields__:
            assert getattr(one.cost, name) == pytest.approx(getattr(other.cost, name), rel=1e-9, abs=1e-9), name


def shown(decision: Decision) -> list[tuple[Any, ...]]:
    return [(each.instance, each.cached_tokens, each.claims) for each in decision.candidates]


@pytest.mark.parametrize("seed", range(60))
def test_columns_decide_as_one_after_the_other_would(seed: int) -> None:
    """The same choice and alternatives in the same order, each term within 1e-9, and the same rejections."""
    chance = random.Random(seed)
    scene = Scene(Policy(**({"alternatives": 4} | some(chance, POLICY, 0.2))), WITH_ADAPTERS if seed % 2 else None)
    share = chance.choice((0.0, 0.05, 0.2))
    for name in NAMES[: chance.randint(1, len(NAMES))]:
        scene.publish(name, some(chance, INSTANCE, share))
    for _ in range(40):
        scene.step(chance, share)
        for number, probe in enumerate(PROBES):
            asked = request(f"probe {number}", **probe)
            agree(asked, scene.router, scene.now, chance.random(), set())
        bounded = request("bounded", **chance.choice(PROBES))
        agree(bounded, scene.router, scene.now, chance.random(), set(), chance_bounds(chance))


@pytest.mark.parametrize("later_s", [399.0, 401.0, 5000.0])
def test_rates_fade_right_however_long_nothing_comes(later_s: float) -> None:
    """They are kept as of one moment, which moves on before numbers become too small or too large."""
    made = router(instance("a"), instance("b", hardware="l40s"))
    for number in range(30):
        made.choose(request(f"r{number}"), number / 10, 0.0)
    for now in (3.0, 3.0 + later_s, 4.0 + later_s):
        agree(request("x"), made, now, 0.0, set())
        made.choose(request(f"at {now}"), now, 0.5)
        agree(request("x"), made, now + 0.1, 0.0, set())


def test_no_instance_is_no_error() -> None:
    """Nor is one that has left."""
    scene = Scene(Policy())
    for _ in range(2):
        agree(request(), scene.router, 0.0, 0.5, set())
        scene.publish("a", {})
        agree(request(prefix=blocks(1, 3)), scene.router, 0.0, 0.5, set())
        scene.remove("a")
        agree(request(prefix=blocks(1, 3)), scene.router, 0.0, 0.5, set())


def test_what_one_answer_teaches_of_its_instance_alone_shows_at_once() -> None:
    """Without the other instances' speeds being made anew."""
    scene = Scene(Policy())
    for name in ("a", "b"):
        scene.publish(name, {})
    speeds, truth = scene.router.beliefs.speeds, Truth(factors={"b": 1.5})
    members = scene.router.fleet.members()
    alone = 0
    for number in range(300):
        made_anew = speeds.made_anew
        truth.finish(speeds, members[number % 2].instance)
        alone += made_anew == speeds.made_anew
        agree(request(), scene.router, truth.now, 0.0, set())
    assert alone > 10


def test_what_clients_make_up_is_not_remembered() -> None:
    """Tables of models that nobody serves are not kept, those of models that are served only up to a number."""
    made = router(instance(models=tuple(f"served-{number}" for number in range(100))))
    columns = made.snapshot().columns
    for number in range(100):
        assert made.choose(request(f"r{number}", model=f"served-{number}"), 0.0, 0.0).chosen is not None
        assert made.choose(request(f"n{number}", model=f"made-up-{number}"), 0.0, 0.0).chosen is None
    assert len(columns._standings) == len(columns._models) == MOST_TABLES
    assert not any(demand.model.startswith("made-up") for demand in columns._standings)


def test_there_is_one_reader_of_what_has_changed_in_a_ledger() -> None:
    """A second one would miss what was booked, and take from the first what is booked then."""
    made = router(instance("a"), instance("b"))
    snapshot = made.snapshot()
    decide(request("q"), snapshot, 0.0, 0.0)
    with pytest.raises(ValueError, match="one reader"):
        decide(request("q"), replace(snapshot, columns=Columns()), 0.0, 0.0)
    made.choose(request("x", prompt_tokens=20_000), 0.0, 0.0)
    first = decide(request("y"), made.snapshot(), 0.0, 0.0)
    assert first.chosen is not None
    assert first.chosen.instance.id == "b"
    assert decide(request("y"), made.snapshot(), 0.0, 0.0) == first
