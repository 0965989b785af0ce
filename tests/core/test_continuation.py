"""What an instance that drains still takes: the next turn of a session of its own, if that is short."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from extproc.core.eligibility.counting import wish_for
from extproc.core.fleet.events import Ordered, Record, State
from extproc.core.prefixes.kv_delta import KvDelta
from extproc.core.reasons.explanation import Explanation, explain, material
from extproc.core.reasons.explanation_text import as_line, as_text
from extproc.core.reasons.retry_after import retry_after_s
from extproc.core.router import Router
from extproc.core.snapshot import Policy
from extproc.core.values.decision import Decision, NoContinuation, Reason, Why
from extproc.core.values.instance import Lifecycle, Load, Role
from extproc.core.values.request import KvLayout
from tests.core.builders import MODEL, blocks, instance, publish, request, router
from tests.core.test_columns import INSTANCE, NAMES, Scene, agree, some
from tests.core.test_replay import replays

DRAINED_AT_S = 10.0
NOW = 20.0
SETTING = Policy(draining_continuation_tokens=500, draining_continuation_s=60.0)
TURN = {"prompt_tokens": 5000, "prefix": blocks(1, 78), "expected_output_tokens": 100}  # 78 blocks are 4,992 tokens
SECOND = {"prompt_tokens": 5200, "prefix": (*blocks(1, 78), *blocks(2, 3)), "expected_output_tokens": 100}
RUNNING = Load(running=2, waiting=0, kv_usage=0.01)
BUSY = Load(running=60, waiting=20, kv_usage=0.5)


def drained(
    policy: Policy = SETTING, home: dict[str, Any] | None = None, others: tuple[dict[str, Any], ...] = ({},)
) -> Router:
    """`home` has computed a turn and then drains, with requests of others; others are Ready."""
    first = instance("home", **({"load": RUNNING} | (home or {})))
    made = router(first, policy=policy)
    assert made.choose(request("first", **TURN), 1.0, 0.0).chosen is not None
    made.release("first", 5.0)
    publish(made, first, 6.0)
    made.take(made.fleet.apply(Ordered(id="home", lifecycle=Lifecycle.DRAINING), DRAINED_AT_S))
    publish(made, first, DRAINED_AT_S + 1.0)
    for number, changes in enumerate(others):
        publish(made, instance(f"other-{number}", **({"load": RUNNING} | changes)), DRAINED_AT_S + 1.0)
    return made


def asked(made: Router, now: float = NOW, **changes: Any) -> Decision:
    wanted = request("next", **(SECOND | changes))
    agree(wanted, made, now, 0.0, set())
    return replays(made, wanted, now, 0.0)


def chosen(decision: Decision) -> str | None:
    return None if decision.chosen is None else decision.chosen.instance.id


def why_not(decision: Decision) -> NoContinuation | None:
    found = next(each for each in decision.rejected if each.instance_id == "home")
    assert (found.reason, found.needs, found.has) == (Reason.NOT_READY, "Ready", "Draining")
    return found.continuation


def told(made: Router, now: float = NOW, **changes: Any) -> Explanation:
    wanted = request("next", **(SECOND | changes))
    return explain(material(wanted, asked(made, now, **changes), made.snapshot(), now))


def test_a_session_goes_on_where_its_prefix_is_though_that_instance_drains() -> None:
    made = drained()
    decision = asked(made)
    assert chosen(decision) == "home"
    assert [each.instance.id for each in decision.alternatives] == ["other-0"]
    assert decision.rejected == ()
    assert decision.waived is None


NEW = {"prefix": (*blocks(1, 39), *blocks(3, 39))}  # shares 2,496 tokens
WHY_NOT: tuple[tuple[str, dict[str, Any], float, NoContinuation], ...] = (
    ("another session", {"prefix": blocks(3, 78)}, NOW, NoContinuation(Why.PREFIX_TOO_SHORT, 2600.0, 0.0)),
    ("less than half of it", NEW, NOW, NoContinuation(Why.PREFIX_TOO_SHORT, 2600.0, 2496.0)),
    ("a long question", {"prompt_tokens": 5500}, NOW, NoContinuation(Why.TOO_MUCH_WORK, 608.0, 500.0)),
    ("a long answer", {"expected_output_tokens": 300}, NOW, NoContinuation(Why.TOO_MUCH_WORK, 508.0, 500.0)),
    ("too late", {}, 70.0, NoContinuation(Why.DRAINS_TOO_LONG, 60.0, 60.0)),
    ("much too late", {}, 85.0, NoContinuation(Why.DRAINS_TOO_LONG, 60.0, 75.0)),
)


@pytest.mark.parametrize(
    ("changes", "now", "lacking"), [each[1:] for each in WHY_NOT], ids=[each[0] for each in WHY_NOT]
)
def test_anything_else_is_refused_by_its_lifecycle_and_told_which_rule_it_fails(
    changes: dict[str, Any], now: float, lacking: NoContinuation
) -> None:
    decision = asked(drained(), now, **changes)
    assert chosen(decision) == "other-0"
    assert why_not(decision) == lacking


@pytest.mark.parametrize("now", [NOW, 69.9])
def test_as_many_tokens_as_are_allowed_and_as_long_as_it_is_allowed(now: float) -> None:
    """292 of the prompt and 208 of the answer are 500."""
    assert chosen(asked(drained(), now, prompt_tokens=5284, expected_output_tokens=208)) == "home"


def test_one_that_has_nothing_left_to_do_takes_nothing_more() -> None:
    """Whoever stops those that are idle may do so at any moment."""
    made = drained(home={"load": Load(running=0, waiting=0, kv_usage=0.0)})
    assert why_not(asked(made)) == NoContinuation(Why.IDLE, 1, 0)
    text = told(made).rejected[0].text
    assert (
        text == "is Draining, not Ready, and has nothing left to do: it takes continuations only beside other requests"
    )


def test_sessions_that_go_on_for_ever_move_before_their_instance_is_stopped() -> None:
    """Each turn overlaps the one before: beside each other they never leave it idle."""
    made, now, last_s = drained(others=({"hardware": "l40s"},)), DRAINED_AT_S + 1.0, 0.0
    prefix = TURN["prefix"]
    for turn in range(200):
        prefix = (*prefix, *blocks(10 + turn, 1))
        wanted = request(f"turn {turn}", prefix=prefix, prompt_tokens=64 * len(prefix) + 32, expected_output_tokens=100)
        decision = made.choose(wanted, now, 0.0)
        if chosen(decision) == "home":
            last_s = now
        made.release(f"turn {turn - 2}", now)
        now += 1.0
    assert last_s == DRAINED_AT_S + SETTING.draining_continuation_s - 1.0


def test_by_default_it_takes_nothing_and_nothing_is_said_of_continuations() -> None:
    decision = asked(drained(Policy()))
    assert chosen(decision) == "other-0"
    assert why_not(decision) is None


def test_a_prefix_that_a_ready_one_holds_too_makes_no_continuation() -> None:
    """A system prompt that all share: whoever is new goes elsewhere, however much of the prompt that is."""
    made = drained(others=({"load": BUSY},))
    assert chosen(asked(made)) == "home"
    member = made.fleet.get("other-0")
    assert member is not None
    made.prefixes.insert(member.instance.key, TURN["prefix"][:50], 1000)
    decision = asked(made)
    assert chosen(decision) == "other-0"
    assert why_not(decision) == NoContinuation(Why.PREFIX_TOO_SHORT, 2600.0, 78 * 64 - 50 * 64)


def test_one_that_is_ready_and_does_not_serve_the_model_holds_nothing_of_its_prompts() -> None:
    made = drained(others=({}, {"models": ("another",)}))
    member = made.fleet.get("other-1")
    assert member is not None
    made.prefixes.insert(member.instance.key, TURN["prefix"], 1000)
    assert chosen(asked(made)) == "home"


@pytest.mark.parametrize("tells", [78, 10])
def test_what_its_engine_tells_goes_before_what_was_learned(tells: int) -> None:
    """Blocks of it may be gone."""
    made = drained()
    layout = KvLayout(64, MODEL)
    made.kv.apply("home@1", KvDelta(64, gpu=blocks(1, tells)))
    chains = {layout: SECOND["prefix"]}
    decision = asked(made, chains=chains)
    assert chosen(decision) == ("home" if tells == 78 else "other-0")


def test_a_full_one_takes_no_continuation_either() -> None:
    """All other constraints hold as for any instance, with their own reasons."""
    made = drained(others=({"tags": {"max_in_flight": "none"}},), policy=replace(SETTING, max_in_flight=3))
    asked_first = made.choose(request("running", **SECOND), NOW, 0.0)
    assert chosen(asked_first) == "home"
    decision = asked(made)
    assert chosen(decision) == "other-0"
    assert [each.reason for each in decision.rejected] == [Reason.AT_CONCURRENCY_LIMIT]
    assert [each.reason for each in asked(made, prefix=()).rejected] == [Reason.NOT_READY]


def test_the_cheapest_is_taken_and_the_one_that_drains_is_the_second_choice_of_a_retry() -> None:
    made = drained(home={"load": BUSY, "hardware": "l40s"})
    decision = asked(made)
    assert [chosen(decision), *(each.instance.id for each in decision.alternatives)] == ["other-0", "home"]
    assert [each.instance.id for each in asked(made, prefix=()).alternatives] == []


def test_where_nobody_is_ready_only_a_continuation_is_served() -> None:
    """`Retry-After` is what it would be without the setting."""
    made, without = drained(others=()), drained(Policy(), others=())
    assert chosen(asked(made)) == "home"
    new = request("new", **(SECOND | {"prefix": ()}))
    for each in (made, without):
        decision = asked(each, prefix=())
        assert decision.reason is Reason.NOT_READY
        assert retry_after_s(new, decision, each.snapshot(), NOW, 0.0) == 1
    miss = told(made, prefix=()).miss
    assert miss is not None
    assert (
        miss.text
        == "home is Draining, not Ready, no continuation: it alone holds 0 tokens of the prompt, 2,600 are needed"
    )


def test_a_start_is_nearer_than_one_that_drains_and_tells_when_to_come_again() -> None:
    coming = {"lifecycle": Lifecycle.LOADING, "models": (), "ready_in_s": 34.0}
    miss = told(drained(others=(coming,)), prefix=()).miss
    assert miss is not None
    assert (miss.instance, miss.wait_s) == ("other-0", 25.0)


def test_the_explanation_says_why_it_was_taken_and_why_not() -> None:
    taken = told(drained())
    assert (
        "home is Draining, and takes a continuation: it holds 4,992 of 5,200 tokens of the prompt, 308 are to be"
        in (" ".join(as_text(taken).split()))
    )
    assert "instance=home (Draining, a continuation); " in as_line(taken)
    late = told(drained(), 85.0)
    assert late.rejected[0].text == "is Draining, not Ready, for 75 s: it took continuations for 60 s"
    assert late.rejected[0].continuation == NoContinuation(Why.DRAINS_TOO_LONG, 60.0, 75.0)
    long = told(drained(), expected_output_tokens=1300).rejected[0].text
    assert long == ("is Draining, not Ready, too much for a continuation: 1,508 tokens are to be computed, 500 may be")


def test_one_that_drained_when_the_router_first_looked_takes_nothing() -> None:
    """For how long it had is not known."""
    made = Router(SETTING)
    record = Record(instance("home", lifecycle=Lifecycle.DRAINING), 0.0, 10.0)
    made.take(made.fleet.resync(State(seq=1, records=(record,), orders={}), 0.0))
    made.prefixes.insert("home@1", TURN["prefix"], 1000)
    assert why_not(asked(made, 1.0)) == NoContinuation(Why.DRAINS_TOO_LONG, 60.0, 60.0)


def test_the_time_counts_from_the_begin_of_the_drain_however_often_it_reports() -> None:
    made = drained()
    since_s = made.fleet.members()[0].draining_since_s
    assert since_s == DRAINED_AT_S
    made.take(made.fleet.apply(Ordered(id="home", lifecycle=None), 15.0))
    assert made.fleet.members()[0].draining_since_s is None
    made.take(made.fleet.apply(Ordered(id="home", lifecycle=Lifecycle.DRAINING), 18.0))
    assert chosen(asked(made, 77.0)) == "home"


def test_silence_of_its_agent_gives_no_more_time() -> None:
    """Its record ran out and came again: it may have drained all the while."""
    made = drained()
    drains = made.fleet.members()[0].instance
    made.take(made.fleet.heard(30.0))
    assert made.fleet.get("home") is None
    publish(made, drains, 31.0)
    publish(made, instance("other-1"), 31.0)
    assert why_not(asked(made, 31.0)) == NoContinuation(Why.DRAINS_TOO_LONG, 60.0, 60.0)


def test_one_that_takes_half_requests_takes_no_continuation() -> None:
    made = drained(others=({},))
    publish(made, instance("half", role=Role.DECODE, lifecycle=Lifecycle.DRAINING), 11.0)
    made.prefixes.insert("half@1", TURN["prefix"], 1000)
    found = next(each for each in asked(made).rejected if each.instance_id == "half")
    assert found.reason is Reason.ROLE_TAKES_HALF


@pytest.mark.parametrize(("policy", "counts"), [(SETTING, True), (Policy(), False)])
def test_a_prompt_is_counted_where_that_tells_whether_it_is_a_continuation(policy: Policy, counts: bool) -> None:
    made = drained(policy)
    made.kv.apply("home@1", KvDelta(64, gpu=blocks(1, 2)))
    assert (wish_for(request(), made.snapshot(), 0.5) is not None) is counts


@pytest.mark.parametrize("seed", range(20))
def test_columns_decide_of_continuations_as_one_after_the_other_would(seed: int) -> None:
    """And a record makes each decision again. Instances drain and come back; some continuations are taken."""
    chance = random.Random(seed)
    scene = Scene(Policy(draining_continuation_tokens=chance.choice((250, 2000)), draining_continuation_s=8.0))
    taken = 0
    for name in NAMES:
        scene.publish(name, {})
    for number in range(40):
        scene.step(chance, 0.02)
        turn = request(f"turn {number}", prefix=blocks(chance.randint(10, 13), 14))
        home = scene.router.choose(turn, scene.now, 0.0).chosen
        scene.router.release(f"turn {number - 5}", scene.now)
        if home is not None:
            lifecycle = chance.choice((Lifecycle.DRAINING, Lifecycle.DRAINING, Lifecycle.READY))
            scene.publish(home.instance.id, some(chance, INSTANCE, 0.02) | {"lifecycle": lifecycle})
        scene.now += chance.choice((0.1, 1.0))
        scene.publish(chance.choice(NAMES), {})
        agree(turn, scene.router, scene.now, chance.random(), set())
        decision = replays(scene.router, turn, scene.now, chance.random())
        taken += any(each.instance.lifecycle is Lifecycle.DRAINING for each in decision.candidates)
    assert taken
