"""The autoscaler from look to look, on fleets that do as they are told."""

from __future__ import annotations

import math
from bisect import bisect
from collections.abc import Sequence
from random import Random
from typing import Any

import pytest

from extproc.core.pricing.classes import DEFAULT_CLASSES, ClassPolicy, ClassWeights
from extproc.core.pricing.slo import Slo
from extproc.core.scaling.recommendation import Recommendation, Signal
from extproc.core.scaling.rules import ScalingRules
from extproc.core.scaling.scaler import Scaler
from extproc.core.scaling.sight import Counts, Sight
from extproc.core.values.instance import Instance, Lifecycle, Load
from extproc.core.values.request import RequestClass
from tests.core.builders import MODEL, instance
from tests.core.scaling.play import CARRIES_RPS, PROMPT, Fleet, pool, turns

HOUR_S = 3600.0


def fleet(load: Any, begin: int = 1, hours: float = 0.0, **changes: Any) -> Fleet:
    """One pool under a load, in instances that it fills, over seconds; `changes` are the pool's rules."""
    rules = ScalingRules(pools=(pool(**changes),), period_s=2 * HOUR_S, tick_s=20.0)
    made = Fleet(
        rules,
        {"h100": CARRIES_RPS},
        (lambda at_s: load(at_s) * CARRIES_RPS) if callable(load) else (lambda at_s: load * CARRIES_RPS),
        {"h100": 120.0},
        {"h100": begin},
    )
    made.play(hours * HOUR_S)
    return made


def looked(scaler: Scaler, at_s: float, *instances: Instance, requests: float = 0.0, **changes: Any) -> Any:
    counts = {MODEL: Counts(requests=requests, prompt_tokens=1000.0 * requests)}
    (made,) = scaler.look(Sight(at_s=at_s, instances=instances, counts=counts, **changes))
    return made


def scaler(**changes: Any) -> Scaler:
    return Scaler(ScalingRules(pools=(pool(**changes),)), ClassPolicy())


def test_a_noisy_steady_load_turns_at_most_twice_an_hour() -> None:
    """At the edge between two counts too, and no answer is late once they are there."""
    for load in (3.4, 4.25):
        played = fleet(load, begin=5, hours=3.0)
        assert turns(played.desired("h100")[int(HOUR_S / 20.0) :]) <= 4, load
        assert played.late <= 0.002 * played.served, load


def test_a_swing_that_comes_again_is_met_before_it_rises() -> None:
    """In its third period hardly an answer is late, at clearly fewer instance-hours than the peak would take."""
    played = fleet(lambda at_s: 4.0 - 3.0 * math.cos(2 * math.pi * at_s / (2 * HOUR_S)), hours=4.0)
    late, served, hours = played.late, played.served, played.hours
    played.play(2 * HOUR_S)
    assert played.late - late <= 0.005 * (played.served - served)
    assert played.hours - hours <= 0.75 * 2 * 8.5


def test_long_prompts_are_sized_by_the_slo_of_their_class() -> None:
    """Where it is as strict as that of the others, the same requests fill more."""
    loads = []
    for slo in (Slo(ttft_s=10.0, tpot_s=0.1), Slo(ttft_s=2.0, tpot_s=0.05)):
        long = {RequestClass.LONG_CONTEXT: ClassWeights(slo=slo)}
        scaler = Scaler(ScalingRules(pools=(pool(),)), ClassPolicy(classes={**DEFAULT_CLASSES, **long}))
        for look in range(60):
            asked = Counts(
                requests=20.0 * look,
                prompt_tokens=20.0 * look * 12_000.0,
                computed_squares=20.0 * look * 2.7 * 12_000.0**2,
                answers=20.0 * look,
                output_tokens=20.0 * look * 300.0,
            )
            [made] = scaler.look(Sight(at_s=5.0 * look, instances=(instance("a"),), counts={MODEL: asked}))
        assert made.forecast is not None
        loads.append(made.forecast.now)
    assert 0.0 < loads[0] < 0.95 * loads[1]


def test_who_waits_for_the_first_instance_is_not_late_by_what_it_carries() -> None:
    """Two minutes of a cold start end in late answers; that there was none to give them says nothing of capacity."""
    scaler = Scaler(ScalingRules(pools=(pool(least=0),)), ClassPolicy())
    came = answers = late = 0.0
    for look in range(72):
        at_s = 5.0 * look
        came += 5.0
        if there := at_s >= 120.0:
            late += min(came, 125.0) - answers if at_s == 120.0 else 0.0
            answers = came
        asked = Counts(
            requests=came,
            prompt_tokens=came * PROMPT,
            answers=answers,
            output_tokens=answers * 200.0,
            judged=answers,
            late=late,
        )
        scaler.look(Sight(at_s=at_s, instances=(instance("a"),) if there else (), counts={MODEL: asked}))
    assert late > 100.0
    assert scaler._correction.factor("h100") == 1.0


def test_a_burst_is_answered_at_once() -> None:
    """Within two looks more are called for than serve, and the words name what came."""
    played = fleet(lambda at_s: 2.0 if at_s < HOUR_S else 6.0, begin=3, hours=1.0, most=60)
    before = played.desired("h100")[-1]
    played.step()
    (made,) = played.step()
    assert made.desired >= max(before + 2, 5)
    assert made.drivers[0].signal in {Signal.LOAD, Signal.BACKLOG, Signal.FORECAST}
    assert made.without <= made.desired


def test_an_unused_fleet_goes_to_zero_and_wakes_for_the_first_request() -> None:
    """After `idle_s` the last one is told to drain; a request that is held calls for one at once."""
    lonely = scaler(least=0, idle_s=100.0, dwell_s=50.0)
    ready = instance("a")
    assert looked(lonely, 0.0, ready, requests=5.0).desired == 1
    assert looked(lonely, 90.0, ready, requests=5.0).desired == 1
    gone = looked(lonely, 110.0, ready, requests=5.0)
    assert (gone.desired, gone.drain, gone.drivers[0].signal) == (0, ("a",), Signal.IDLE)
    assert looked(lonely, 200.0, requests=5.0).desired == 0
    woken = looked(lonely, 205.0, requests=5.0, held={MODEL: 1})
    assert (woken.desired, woken.drivers[0].signal) == (1, Signal.WANTED)
    assert woken.without <= 1


def test_a_wanted_model_wakes_its_pool() -> None:
    """An intent in the registry is enough: no router needs to have counted the request."""
    assert looked(scaler(least=0), 0.0, wanted=frozenset({MODEL})).desired == 1


def test_the_bounds_hold_and_are_told() -> None:
    """Never below `least`, and never above `most`, whose driver tells what was called for."""
    (made,) = scaler(least=3).look(Sight(at_s=0.0, instances=()))
    assert (made.desired, made.drivers[0].signal, made.without) == (3, Signal.LEAST, 0)
    crowded = fleet(6.0, begin=4, hours=0.1, most=4).log[-1][0]
    assert (crowded.desired, crowded.drivers[0].signal) == (4, Signal.MOST)
    assert crowded.without >= 7


def test_a_spare_instance_stands_beside_what_is_needed_and_decides_nothing() -> None:
    """What it stands beside is told as what decided: an operator's rule that always holds explains no number."""
    made = fleet(1.5, begin=4, hours=0.3, spare=1).log[-1][0]
    bare = fleet(1.5, begin=4, hours=0.3).log[-1][0]
    assert made.desired == bare.desired + 1
    decided, least = made.drivers[0], next(each for each in made.drivers if each.signal is Signal.LEAST)
    assert (decided.signal, decided.instances) == (bare.drivers[0].signal, bare.drivers[0].instances + 1)
    assert [each.instances for each in made.drivers if each.signal is Signal.SPARE] == [1]
    assert made.without == max([each.instances for each in made.drivers[1:]] + [least.instances])


@pytest.mark.parametrize(("glance", "desired"), [(False, (1, 1)), (True, (6, 15))])
def test_a_glance_tells_what_its_two_looks_call_for(glance: bool, desired: tuple[int, int]) -> None:
    """Else it would say that one will do, as the service does until it knows more. What is not known is not 0."""
    scaler = Scaler(ScalingRules(pools=(pool(most=60),), tick_s=5.0), ClassPolicy(), glance=glance)
    made: list[Recommendation] = []
    for at_s in (0.0, 5.0):
        came = at_s * 5.0 * CARRIES_RPS
        counts = Counts(requests=came, prompt_tokens=PROMPT * came, answers=came, output_tokens=100.0 * came)
        made += scaler.look(Sight(at_s=at_s, instances=(instance("a"),), counts={MODEL: counts}))
    assert desired[0] <= made[-1].desired <= desired[1]
    first, second = (each.measured for each in made)
    assert first
    assert second
    assert (made[0].forecast, first.requests_s, first.uncached_tokens_s) == (None, None, None)
    assert made[1].forecast
    assert (second.requests_s, second.prompt_tokens_s) == pytest.approx((5.0 * CARRIES_RPS, 5.0 * CARRIES_RPS * PROMPT))
    assert second.output_tokens_s == pytest.approx(500.0 * CARRIES_RPS)


def test_who_is_on_the_way_counts_and_who_is_stuck_does_not() -> None:
    """A start that takes three times what starts take is not waited for any longer."""
    patient = scaler(least=2, start_s=60.0)
    loading = instance("b", lifecycle=Lifecycle.LOADING, load=Load())
    assert (
        looked(patient, 0.0, instance("a"), loading).coming,
        looked(patient, 170.0, instance("a"), loading).coming,
    ) == (1, 1)
    stuck = looked(patient, 190.0, instance("a"), loading)
    assert (stuck.desired, stuck.ready, stuck.coming, stuck.stop) == (2, 1, 0, ())


def test_who_is_asleep_is_not_on_the_way_until_somebody_wakes_it() -> None:
    """Its agent calls it Loading. It is let alone."""
    patient = scaler(least=2, start_s=60.0)
    asleep = instance("b", lifecycle=Lifecycle.LOADING, load=Load(), asleep=True)
    for at_s in (0.0, 100.0, 200.0):
        made = looked(patient, at_s, instance("a"), asleep)
        assert (made.desired, made.ready, made.coming, made.stop) == (2, 1, 0, ())
    woken = instance("b", lifecycle=Lifecycle.LOADING, load=Load(), asleep=False)
    assert looked(patient, 300.0, instance("a"), woken).coming == 1


def test_one_that_has_failed_at_work_does_not_keep_the_others_for_ever() -> None:
    """What it had to do is told by a report of before."""
    lonely = scaler(least=0, idle_s=100.0, dwell_s=50.0)
    failed = instance("b", lifecycle=Lifecycle.UNHEALTHY, load=Load(running=3, waiting=1))
    ready = instance("a", load=Load(running=0, waiting=0))
    made = [looked(lonely, 5.0 * step, ready, failed, requests=5.0, routers=1).desired for step in range(40)]
    assert (made[0], made[-1]) == (1, 0)


def test_one_that_drains_is_resumed_before_another_starts() -> None:
    """If it was told to drain by the autoscaler."""
    calm = scaler(least=1, dwell_s=10.0, idle_s=1e6)
    pair = [instance("a"), instance("b")]
    last = [looked(calm, 5.0 * step, *pair, requests=1.0) for step in range(40)][-1]
    assert (last.desired, last.drain) == (1, ("a",))
    leaving = [instance("a", lifecycle=Lifecycle.DRAINING), pair[1]]
    assert looked(calm, 200.0, *leaving, requests=1.0).resume == ()
    assert looked(calm, 205.0, *leaving, requests=2000.0).resume == ()  # one look may be chance
    assert looked(calm, 210.0, *leaving, requests=4000.0).resume == ("a",)


def test_a_successor_goes_on_where_the_last_one_was() -> None:
    """Targets, the dwell and forecasts are in the dump: the same sight gives the same recommendation."""
    played = fleet(3.0, begin=4, hours=0.5)
    successor = Scaler(played.rules, ClassPolicy())
    successor.load(played.scaler.dump(), played.at_s)
    sight = played.passed()
    (ours,), (theirs,) = played.scaler.look(sight), successor.look(sight)
    assert theirs.desired == ours.desired
    assert theirs.forecast is not None
    assert ours.forecast is not None
    assert theirs.forecast.planned == pytest.approx(ours.forecast.planned, rel=0.1)


@pytest.mark.parametrize("ahead_s", [0.0, HOUR_S, 24 * HOUR_S, -24 * HOUR_S])
def test_a_successor_of_one_whose_clock_was_ahead_answers_a_burst_as_soon(ahead_s: float) -> None:
    """What was needed at a time to come would have it wait that long until it knows what has been needed."""
    first, second, requests = scaler(), scaler(), 0.0

    def desired(played: Scaler, since_s: float, until_s: float, rps: float) -> list[int]:
        nonlocal requests
        found = []
        for at_s in range(int(since_s), int(until_s), 5):
            requests += 5.0 * rps
            load = Load(running=4, waiting=0, kv_usage=0.3)
            found.append(looked(played, at_s, instance("a", load=load), requests=requests, routers=1).desired)
        return found

    begin_s = 1.8e9
    assert desired(first, begin_s + ahead_s, begin_s + ahead_s + 900.0, 5.0)[-1] == 1
    second.load(first.dump(), begin_s + 900.0)
    assert desired(second, begin_s + 900.0, begin_s + 1200.0, 5.0)[-1] == 1
    assert max(desired(second, begin_s + 1200.0, begin_s + 1230.0, 80.0)) > 4


@pytest.mark.parametrize("data", [b"", b"\xc1", b"\x80", b"nonsense"])
def test_a_dump_that_cannot_be_read_is_left_alone(data: bytes) -> None:
    """The scaler begins anew then."""
    begun = scaler()
    begun.load(data, 0.0)
    assert looked(begun, 0.0, instance("a")).desired == 1


def test_two_kinds_of_hardware_are_one_group_and_the_cheaper_one_grows() -> None:
    """A pool of cheap A100s beside H100s: what is missing is started where it costs less for what it carries."""
    pools = (
        pool("h100", price_per_hour=4.0, least=1),
        pool("a100", hardware="a100_sxm", price_per_hour=0.5, least=0),
    )
    rules = ScalingRules(pools=pools, period_s=2 * HOUR_S, tick_s=20.0)
    played = Fleet(
        rules,
        {"h100": CARRIES_RPS, "a100": 0.4 * CARRIES_RPS},
        lambda _: 2.0 * CARRIES_RPS,
        {"h100": 120.0, "a100": 120.0},
        {"h100": 1},
    )
    played.play(900.0)
    last = {each.pool: each for each in played.log[-1]}
    assert last["h100"].desired == 1
    assert last["a100"].desired >= 3


def test_a_swing_over_two_kinds_of_hardware_costs_less_than_over_either_and_late_answers_are_few() -> None:
    """Small ones by night, a big one by day: each change is paid for, and nobody is without an instance meanwhile."""
    small = pool("small", hardware="a100_sxm", price_per_hour=1.0, least=0)
    big = pool("big", price_per_hour=3.0, least=0)
    carries = {"small": 0.37 * CARRIES_RPS, "big": CARRIES_RPS}

    def swing(at_s: float) -> float:
        return (0.9 - 0.5 * math.cos(2 * math.pi * at_s / (2 * HOUR_S))) * CARRIES_RPS

    costs = {}
    for pools in ((small, big), (small,), (big,)):
        rules = ScalingRules(pools=pools, period_s=2 * HOUR_S, tick_s=20.0)
        starts_s = {"small": 120.0, "big": 120.0}
        played = Fleet(rules, carries, swing, starts_s, {pools[0].name: 2})
        played.play(2 * HOUR_S)
        assert played.late <= 0.005 * played.served, pools
        costs["+".join(each.name for each in pools)] = sum(
            played.hours_of[each.name] * (each.price_per_hour or 0.0) for each in pools
        )
    assert costs["small+big"] <= 1.05 * min(costs["small"], costs["big"]), costs


def test_a_fleet_without_rules_is_told_about_too() -> None:
    """Pools are made from what is there."""
    (made,) = Scaler(ScalingRules(), ClassPolicy()).look(Sight(at_s=0.0, instances=(instance("a"), instance("b"))))
    assert (made.ready, made.desired) == (2, 2)


def watched(load: float, tick_s: float, words_s: Sequence[float], *, told: bool) -> int:
    """The most that is desired once a load is known of which a router tells at these times.

    `told`: it is known by when all had come that it has counted.
    """
    rules = ScalingRules(pools=(pool(most=40),), period_s=600.0, tick_s=tick_s)
    watching, most = Scaler(rules, ClassPolicy()), 0
    for number in range(1, round(words_s[-1] / tick_s)):
        at_s = number * tick_s + 0.02
        word_s = words_s[bisect(words_s, at_s) - 1]
        came = load * CARRIES_RPS * word_s
        (made,) = watching.look(
            Sight(
                at_s=at_s,
                instances=(instance("a"), instance("b")),
                counts={MODEL: Counts(requests=came, prompt_tokens=PROMPT * came, answers=came)},
                counted_at_s=word_s if told else None,
            )
        )
        most = max(most, made.desired if at_s > 0.3 * words_s[-1] else 0)
    return most


def words(jitter_s: float, phase_s: float = 0.5) -> list[float]:
    """Times at which a router tells, about once a second."""
    chance = Random(5)
    return [number + phase_s * (number > 0) + chance.uniform(0.0, jitter_s) * (number > 0) for number in range(400)]


@pytest.mark.parametrize(("tick_s", "told", "more"), [(1.0, False, 1), (1.0, True, 0), (2.5, True, 0)])
def test_looks_that_hold_now_more_and_now_fewer_of_the_routers_words_see_no_swing(
    tick_s: float, told: bool, more: int
) -> None:
    """None, one or two within a second. What falls between two looks is no load, and no burst."""
    even = watched(1.8, tick_s, [0.01 * number for number in range(40_000)], told=True)
    assert watched(1.8, tick_s, words(0.98), told=told) <= even + more


@pytest.mark.parametrize("gap", [False, True])
def test_a_time_without_any_routers_word_is_no_time_without_load(gap: bool) -> None:
    """Nor is one in which nothing could be read at all. Counts that stand while routers are alive are real zeros."""
    served = Scaler(ScalingRules(pools=(pool(most=9),), period_s=600.0, tick_s=5.0), ClassPolicy())
    expected: dict[str, list[float]] = {}
    came = 0.0
    for number in range(330):
        state = ("before", "blind", "after", "zero")[bisect((240, 280, 300), number)]
        came += 5.0 * 1.8 * CARRIES_RPS if state in {"before", "after"} else 0.0
        if gap and state == "blind":
            continue
        sight = Sight(
            at_s=5.0 * number,
            instances=(instance("a"), instance("b")),
            counts={MODEL: Counts(requests=came, prompt_tokens=PROMPT * came, answers=came)},
            routers=0 if state == "blind" else 1,
        )
        (made,) = served.look(sight)
        if number:  # nothing was counted yet at the first look
            assert made.forecast
            expected.setdefault(state, []).append(made.forecast.expected)
    usual = expected["before"][-1]
    for each in (*expected.get("blind", []), *expected["after"]):
        assert each == pytest.approx(usual, rel=0.1)
    assert expected["zero"][-1] < 0.3 * usual


def test_a_clock_that_is_set_forward_makes_nothing_older() -> None:
    """Who drains has its time still, who starts is not stuck, nobody is idle, and the dwell goes on."""
    stepped = scaler(least=0, idle_s=600.0, dwell_s=50.0, most=9)
    ready = [instance(name, load=Load(running=3, waiting=0)) for name in "ab"]
    for step in range(8):
        looked(stepped, 5.0 * step, *ready, requests=500.0 * step)
    leaving = instance("c", lifecycle=Lifecycle.DRAINING, load=Load(running=3, waiting=0))
    loading = instance("d", lifecycle=Lifecycle.LOADING, load=Load())
    for step in range(8, 12):
        looked(stepped, 5.0 * step, *ready, leaving, loading, requests=500.0 * step)
    made = looked(stepped, 60.0 + HOUR_S, *ready, leaving, loading, requests=6000.0, stepped_s=HOUR_S)
    assert (made.stop, made.drain, made.coming, made.leaving) == ((), (), 1, 1)
    assert made.desired >= 1
    late = looked(stepped, 60.0 + 2 * HOUR_S, *ready, leaving, loading, requests=6000.0)
    assert late.stop == ("c",)  # so much time has passed
    assert late.coming == 0


def test_a_pool_that_joins_a_group_leaves_its_forecasts_as_they_are() -> None:
    """Loads are in instances of the first pool, whoever stands beside it."""
    played = fleet(3.0, begin=4, hours=0.5)
    more = ScalingRules(
        pools=(*played.rules.pools, pool("a100", hardware="a100_sxm", least=0)), period_s=2 * HOUR_S, tick_s=20.0
    )
    successor = Scaler(more, ClassPolicy())
    successor.load(played.scaler.dump(), played.at_s)
    sight = played.passed()
    (ours,), (theirs, new) = played.scaler.look(sight), successor.look(sight)
    assert (theirs.desired, new.desired) == (ours.desired, 0)
    assert theirs.forecast is not None
    assert ours.forecast is not None
    assert theirs.forecast.planned == pytest.approx(ours.forecast.planned, rel=0.1)


def test_nobody_leaves_for_a_dwell_after_routers_were_silent() -> None:
    """However sure the forecast is: it is of before."""
    served = Scaler(ScalingRules(pools=(pool(most=9, dwell_s=200.0),), period_s=600.0, tick_s=5.0), ClassPolicy())
    there, came = tuple(instance(name) for name in "abcd"), 0.0
    counts = []
    for number in range(400):
        blind = 300 <= number < 330
        came += 0.0 if blind else 5.0 * 0.5 * CARRIES_RPS
        sight = Sight(
            at_s=5.0 * number,
            instances=there,
            counts={MODEL: Counts(requests=came, prompt_tokens=PROMPT * came, answers=came)},
            routers=0 if blind else 1,
        )
        if number == 300:  # all four are wanted again, as if load had fallen only now
            for memory in served._memory.values():
                memory.targets["h100"] = 4
        (made,) = served.look(sight)
        counts.append(made.desired)
    assert counts[299] == 1
    assert set(counts[301:370]) == {4}
    assert counts[-1] < 4


def test_nobody_is_idle_while_no_router_tells() -> None:
    """The last instance goes `idle_s` after they tell again, if nobody has asked by then."""
    lonely = scaler(least=0, idle_s=100.0, dwell_s=50.0)
    ready = instance("a")
    for at_s in range(0, 300, 5):
        made = looked(lonely, float(at_s), ready, requests=5.0, routers=0 if at_s else 1)
        assert made.desired == 1, at_s
    assert looked(lonely, 300.0, ready, requests=5.0, routers=1).desired == 1
    assert [looked(lonely, 300.0 + 5 * step, ready, requests=5.0, routers=1) for step in range(30)][-1].desired == 0
