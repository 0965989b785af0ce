"""A decision that is made again from its record comes to the same, whatever happened before."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from extproc.core.admission.bounds import Bounds
from extproc.core.decide import decide
from extproc.core.fleet.zones import Crossing, Zones
from extproc.core.models.joint import choose_option
from extproc.core.pairs.hand_over import HandOver
from extproc.core.pairs.paired import paired
from extproc.core.reasons.explanation import explain, material
from extproc.core.replay.look import look
from extproc.core.replay.replayed import policy_of, replay
from extproc.core.router import Router
from extproc.core.snapshot import Policy
from extproc.core.values.decision import Cost, Decision
from extproc.core.values.instance import Load, Role
from extproc.core.values.option import Option
from extproc.core.values.request import Request
from extproc.observe.record_lines import (
    DecisionLine,
    PolicyLine,
    WrittenLine,
    decided_of,
    decoded,
    encoded,
    policy_line,
)
from extproc.observe.record_parts import Packer, unpacked
from tests.core.builders import blocks, instance, request, router
from tests.core.test_columns import (
    INSTANCE,
    NAMES,
    POLICY,
    PROBES,
    WITH_ADAPTERS,
    Scene,
    chance_bounds,
    some,
)


def replays(made: Router, asked: Request, now: float, draw: float, bounds: Bounds | None = None) -> Decision:
    """Decide, write down, read and decide again; both must agree in all that an explanation tells."""
    option, snapshot = Option(asked), made.snapshot()
    seen = look((option,), snapshot, now, draw, frozenset(), bounds)

    def decided(each: Option) -> Decision:
        first = decide(each.request, snapshot, now, draw, frozenset(), bounds)
        return paired(first, each.request, snapshot, now, draw, frozenset(), bounds)

    choice = choose_option((option,), decided, made.policy, draw)
    rules = policy_line(made.policy)
    line = DecisionLine(asked.id, "", "", rules.policy, seen, decided_of(choice), "routed", None)
    told = decoded(encoded(rules))
    assert isinstance(told, PolicyLine)
    read = read_back(line)
    again = replay(read.seen, policy_of(told.rules))
    before = explain(material(asked, choice.decision, snapshot, now))
    alike(explain(again.material), before)
    for one, other in zip(again.choice.decision.candidates, choice.decision.candidates, strict=True):
        assert one.claims == other.claims
        for name in Cost.__struct_fields__:
            assert getattr(one.cost, name) == pytest.approx(getattr(other.cost, name), rel=1e-9, abs=1e-9), name
    return choice.decision


def read_back(line: DecisionLine) -> DecisionLine:
    """Taken apart, written, read and put together."""
    packer = Packer()
    packer.begin(0)
    *parts, written = [decoded(encoded(each)) for each in packer.packed(line)]
    assert isinstance(written, WrittenLine)
    known = {each.number: each for each in parts if not isinstance(each, PolicyLine | WrittenLine)}
    return unpacked(written, known)


def alike(one: Any, other: Any) -> None:
    """The same plain values, numbers within 1e-9; texts apart, which round numbers."""
    one, other = (msgspec.to_builtins(each) for each in (one, other))
    same(one, other)


def same(one: Any, other: Any) -> None:
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for name in one.keys() - {"text", "decided_by"}:
            same(one[name], other[name])
    elif isinstance(one, list | tuple):
        assert len(one) == len(other)
        for pair in zip(one, other, strict=True):
            same(*pair)
    elif isinstance(one, float):
        assert one == pytest.approx(other, rel=1e-9, abs=1e-9)
    else:
        assert one == other


@pytest.mark.parametrize("seed", range(16))
def test_a_decision_made_again_from_its_record_is_the_same(seed: int) -> None:
    """Choice, order of the next best, every term of cost, claims, rejections with their numbers, the nearest miss."""
    chance = random.Random(seed)
    scene = Scene(Policy(**({"alternatives": 4} | some(chance, POLICY, 0.2))), WITH_ADAPTERS if seed % 2 else None)
    for name in NAMES[: chance.randint(1, len(NAMES))]:
        scene.publish(name, some(chance, INSTANCE, 0.1))
    for _ in range(30):
        scene.step(chance, 0.1)
        asked = request("probe", **chance.choice(PROBES))
        replays(scene.router, asked, scene.now, chance.random())
        replays(scene.router, asked, scene.now, chance.random(), chance_bounds(chance))


def test_a_pair_and_a_table_of_zones_are_made_again() -> None:
    """Rules whose keys are no names, and a decision of two instances."""
    zones = Zones(own="a", crossings={("a", "b"): Crossing(rtt_s=0.02, price_per_gb=0.1)})
    ib = {"kv_domain": "d", "fabric": "ib", "zone": "b"}
    made = router(
        instance("p", role=Role.PREFILL, **ib),
        instance("d", role=Role.DECODE, **ib),
        instance("both", load=Load(running=200, waiting=50)),
        policy=Policy(hand_over=HandOver.LLM_D, zones=zones),
    )
    decision = replays(made, request(prompt_tokens=16_000, prefix=blocks(1, 250)), 0.0, 0.0)
    assert decision.partner is not None


def test_another_policy_may_choose_another() -> None:
    """What would have been: the very record, decided upon by other rules."""
    made = router(instance("near", zone="a", hardware="l40s"), instance("far", zone="b"))
    seen = look((Option(request(prompt_tokens=8000)),), made.snapshot(), 0.0, 0.0)
    by_speed = replay(seen, made.policy).choice.decision.chosen
    far_away = Zones(own="a", crossings={("a", "b"): Crossing(rtt_s=5.0)})
    by_way = replay(seen, replace(made.policy, zones=far_away)).choice.decision.chosen
    assert by_speed is not None
    assert by_way is not None
    assert (by_speed.instance.id, by_way.instance.id) == ("far", "near")


def test_what_is_seen_holds_neither_hashes_nor_counts_of_the_prompt() -> None:
    """Only how long it is, and how much of it is held where."""
    made = router(instance("a"))
    asked = request(prefix=blocks(7, 40), token_counts=(123_456_789,))
    made.choose(asked, 0.0, 0.0)
    written = msgspec.json.encode(look((Option(asked),), made.snapshot(), 1.0, 0.0)).decode()
    assert '"prefix_blocks":40' in written
    assert "123456789" not in written
    assert not any(str(block) in written for block in asked.prefix if block > 10_000)
