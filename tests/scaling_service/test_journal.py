"""What has been begun, and what the fleet shows of it later."""

from __future__ import annotations

import itertools
from typing import Any

import msgspec
import pytest

from extproc.core.scaling.recommendation import Driver, Forecast, Recommendation, Signal
from extproc.core.scaling.rules import PoolRules
from extproc.core.values.instance import Instance, Lifecycle
from extproc.scaling_service.acting import ActionKind, actions, begun, kept, launched
from extproc.scaling_service.journal import (
    AGAIN_S,
    STARTS_KEPT,
    Journal,
    Launch,
    Stop,
    after_look,
    durations_s,
    not_after,
    set_forward,
)
from extproc.scaling_service.word import Memory, Word, decode_memory, decode_word, encode_memory, encode_word
from tests.core.builders import MODEL, instance

POOL = PoolRules(name="p", models=(MODEL,), hardware="h100_sxm", price_per_hour=2.0)
T_S = 1_000_000.0
NOTHING = Journal()


def made(**changes: object) -> Recommendation:
    values = {"desired": 0, "ready": 0, "coming": 0, "leaving": 0, "drivers": (), "without": 0}
    return Recommendation(pool="p", at_s=T_S, **(values | changes))  # type: ignore[arg-type]


def done(recommendation: Recommendation, journal: Journal = NOTHING, *instances: Instance, **changes: Any) -> list[str]:
    """Actions in words, new ids being new-0, new-1 …"""
    ids = (f"new-{number}" for number in itertools.count())
    found = actions(recommendation, journal, instances, T_S, lambda: next(ids), **({"most": 10} | changes))
    return [f"{action.kind} {action.instance}" for action in found]


def looked(journal: Journal, *instances: Instance, after_s: float = 10.0, patience_s: float = 600.0) -> Journal:
    return after_look(journal, {"p": instances}, T_S + after_s, lambda _: patience_s)


def a_launch(name: str = "new", **changes: object) -> Launch:
    return Launch(id=name, pool="p", at_s=T_S, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("here", "beside", "instance_id"),
    [
        (["new"], (), "new"),
        (["other"], (), "other"),
        (["old"], ("old",), ""),
        (["old", "another"], ("old",), "another"),
        (["other", "new"], (), "new"),
        ([], (), ""),
    ],
)
def test_a_start_is_known_by_its_id_or_by_a_new_instance(
    here: list[str], beside: tuple[str, ...], instance_id: str
) -> None:
    """Whoever starts instances may give them names of their own."""
    loading = [instance(name, lifecycle=Lifecycle.LOADING) for name in here]
    journal = looked(Journal(launches=(a_launch(beside=beside),)), *loading)
    assert [launch.instance for launch in journal.launches] == [instance_id]
    assert len(journal.pending("p")) == (not instance_id)


def test_two_starts_do_not_share_an_instance_and_one_s_own_id_is_not_taken_by_another() -> None:
    """Of two starts with one instance there, one is still pending."""
    journal = Journal(launches=(a_launch("a"), a_launch("b")))
    loading = instance("x", lifecycle=Lifecycle.LOADING)
    assert [launch.instance for launch in looked(journal, loading).launches] == ["x", ""]
    loading = instance("b", lifecycle=Lifecycle.LOADING)
    assert [launch.instance for launch in looked(journal, loading).launches] == ["", "b"]


def test_a_start_ends_when_its_instance_is_ready_and_its_time_counts_from_when_it_was_asked_for() -> None:
    """A machine may have had to boot; an instance that nobody here has started says itself what its start took."""
    journal = looked(Journal(launches=(a_launch(),)), instance("new", lifecycle=Lifecycle.LOADING), after_s=10.0)
    journal = looked(journal, instance("new", start_s=20.0), instance("other", start_s=33.0), after_s=90.0)
    assert journal.launches == ()
    assert durations_s(journal) == {"p": (90.0, 33.0)}
    again = looked(journal, instance("new", start_s=20.0), instance("other", start_s=33.0), after_s=95.0)
    assert again == journal, "each once"


def test_what_is_over_before_an_agent_can_tell_is_added_to_what_agents_have_measured_alone() -> None:
    """A start that was ordered here is measured from the order, and has it already; also when it is long over."""
    journal = Journal(launches=(a_launch(instance="new"),))
    here = (instance("new", start_s=20.0), instance("other", start_s=33.0))
    for _ in range(2):
        journal = looked(journal, *here, after_s=90.0)
        assert durations_s(journal, {"p": 240.0}) == {"p": (90.0, 273.0)}
    journal = looked(journal)
    assert durations_s(journal, {"p": 240.0}) == {"p": (90.0, 273.0)}
    assert durations_s(journal, {"q": 240.0}) == {"p": (90.0, 33.0)}


def test_of_a_start_that_its_agent_alone_could_measure_the_rest_is_added() -> None:
    """It was ordered here, and was over while nothing could be seen."""
    journal = Journal(launches=(a_launch(instance="new"),))
    for start_s, took_s in ((20.0, 30.0), (45.0, 285.0)):
        found = after_look(journal, {"p": (instance("new", start_s=start_s),)}, T_S + 630.0, lambda _: 900.0, (), 600.0)
        assert durations_s(found, {"p": 240.0}) == {"p": (took_s,)}


def test_of_starts_that_are_forgotten_it_is_forgotten_how_they_were_measured() -> None:
    """Else the journal would grow for ever."""
    many = [f"i{number}" for number in range(STARTS_KEPT + 10)]
    journal = Journal(launches=tuple(a_launch(name, instance=name) for name in many))
    journal = looked(journal, *(instance(name, start_s=1.0) for name in many))
    assert len(journal.wholes["p"]) == len(many)
    gone = looked(looked(journal))
    assert gone.wholes == {"p": tuple(gone.starts_s["p"])}
    assert len(gone.wholes["p"]) == STARTS_KEPT


@pytest.mark.parametrize(("start_s", "took_s"), [(20.0, (30.0,)), (45.0, (45.0,)), (None, ())])
def test_a_start_that_was_over_while_nothing_could_be_seen_does_not_count_that_time(
    start_s: float | None, took_s: tuple[float, ...]
) -> None:
    """It took as long as it was seen to, or as its agent has measured; where nobody has, it tells nothing."""
    journal = Journal(launches=(a_launch(instance="new"),))
    found = after_look(journal, {"p": (instance("new", start_s=start_s),)}, T_S + 630.0, lambda _: 900.0, (), 600.0)
    assert durations_s(found).get("p", ()) == took_s
    again = after_look(found, {"p": (instance("new", start_s=start_s),)}, T_S + 640.0, lambda _: 900.0)
    assert durations_s(again).get("p", ()) == took_s


def test_a_clock_that_is_set_forward_gives_no_start_up() -> None:
    """Nor is a stop asked for again."""
    journal = Journal(launches=(a_launch(),), stops=(Stop(id="a", at_s=T_S),))
    later = set_forward(journal, 3600.0)
    assert later.stopping("a", T_S + 3610.0)
    assert looked(later, after_s=3610.0).launches == later.launches
    assert looked(journal, after_s=3610.0).launches == ()


def test_what_was_begun_by_a_clock_that_is_ahead_was_begun_now_at_the_latest() -> None:
    """Else a start that nothing comes of would be reckoned with, and a stop not asked for again, for that long."""
    ahead = set_forward(Journal(launches=(a_launch(),), stops=(Stop(id="a", at_s=T_S),)), 86_400.0)
    here = not_after(ahead, T_S)
    assert looked(ahead, after_s=700.0).launches != ()
    assert looked(here, after_s=700.0).launches == ()
    assert not here.stopping("a", T_S + AGAIN_S)
    assert not_after(here, T_S + 1.0) == here


def test_a_start_that_is_over_when_it_is_first_seen_is_shown_with_its_instance_once() -> None:
    """Else it would look like one that nothing has come of."""
    journal = looked(Journal(launches=(a_launch(),)), instance("new"), after_s=30.0)
    assert [launch.instance for launch in journal.launches] == ["new"]
    assert journal.pending("p") == ()
    assert durations_s(journal) == {"p": (30.0,)}
    assert looked(journal, instance("new"), after_s=40.0).launches == ()


@pytest.mark.parametrize("lifecycle", [Lifecycle.UNHEALTHY, Lifecycle.DRAINING, Lifecycle.STOPPED, None])
def test_a_start_whose_instance_fails_or_vanishes_is_over(lifecycle: Lifecycle | None) -> None:
    """Another may be asked for."""
    journal = Journal(launches=(a_launch(instance="new"),))
    there = [] if lifecycle is None else [instance("new", lifecycle=lifecycle)]
    assert looked(journal, *there).launches == ()


def test_a_start_that_nothing_comes_of_is_given_up_in_time() -> None:
    """And not before."""
    journal = Journal(launches=(a_launch(),))
    assert looked(journal, after_s=599.0).launches == journal.launches
    assert looked(journal, after_s=600.0).launches == ()


def test_a_start_whose_instance_is_in_no_pool_stays_so_that_it_is_not_made_again_and_again() -> None:
    """The operator's script and the pool's rules do not fit: each further start would come to the same."""
    journal = Journal(launches=(a_launch(),))
    found = after_look(journal, {"p": ()}, T_S + 10_000.0, lambda _: 600.0, ("new",))
    assert found.launches == journal.launches


def test_stops_are_forgotten_with_their_instance_and_drains_with_their_effect_or_once_they_are_taken_back() -> None:
    """A Ready one has not got the order, or a person has taken it back. One that is gone has left it behind."""
    journal = Journal(stops=(Stop(id="a", at_s=T_S),), drained=("a", "b", "c"))
    seen = looked(journal, instance("a", lifecycle=Lifecycle.DRAINING), instance("b"))
    assert (seen.stops, seen.drained) == (journal.stops, ("a", "c"))
    assert looked(journal).stops == ()
    assert seen.without_drains(["c"]).drained == ("a",)


def test_durations_are_kept_of_all_that_are_here_and_of_some_that_are_gone() -> None:
    """Bounded, and none is counted again."""
    many = [instance(f"i{number}", start_s=float(number)) for number in range(STARTS_KEPT + 10)]
    journal = looked(Journal(), *many)
    assert len(journal.starts_s["p"]) == len(many)
    assert looked(journal, *many) == journal
    gone = looked(journal)
    assert durations_s(gone)["p"] == tuple(float(number) for number in range(10, STARTS_KEPT + 10))


def test_what_was_asked_for_is_seen_as_starting() -> None:
    """So that nothing is asked for twice; once an agent tells of it, it is seen as it is."""
    journal = Journal(launches=(a_launch(), a_launch("b", instance="b"), Launch(id="q", pool="q", at_s=T_S)))
    (seen,) = launched(POOL, journal)
    assert (seen.id, seen.lifecycle, seen.models) == ("new", Lifecycle.STARTING, (MODEL,))
    assert (seen.hardware, seen.price_per_hour) == ("h100_sxm", 2.0)


def test_as_many_are_started_as_are_missing_and_none_that_is_brought_back() -> None:
    """Who drains for us and is wanted again is there sooner than any start."""
    assert done(made(desired=3, ready=1, coming=1)) == ["start new-0"]
    assert done(made(desired=3, ready=1, coming=1), starting=False) == []
    assert done(made(desired=1, ready=2)) == []
    ours = Journal(drained=("a",))
    draining = instance("a", lifecycle=Lifecycle.DRAINING)
    assert done(made(desired=3, ready=1, resume=("a",)), ours, draining) == ["resume a", "start new-0"]
    assert done(made(desired=2, ready=1, resume=("a",)), Journal(), draining) == ["start new-0"], "a person's"


def test_what_drains_for_us_is_stopped_once_and_again_only_after_a_while() -> None:
    """A stop may take its time."""
    draining = instance("a", lifecycle=Lifecycle.DRAINING)
    assert done(made(drain=("a",)), Journal(), instance("a")) == ["drain a"]
    assert done(made(stop=("a",)), Journal(drained=("a",)), draining) == ["stop a"]
    assert done(made(stop=("a",)), Journal(), draining) == [], "a person drains it"
    for age_s, expected in ((AGAIN_S - 1.0, []), (AGAIN_S, ["stop a"])):
        asked = Journal(drained=("a",), stops=(Stop(id="a", at_s=T_S - age_s),))
        assert done(made(stop=("a",)), asked, draining) == expected


def test_a_start_is_called_off_before_anything_came_of_it() -> None:
    """Its id is all that is known, and no start is left in the journal."""
    journal = Journal(launches=(a_launch(),))
    assert done(made(stop=("new",)), journal) == ["stop new"]
    (stop,) = actions(made(stop=("new",)), journal, (), T_S, str, most=10)
    assert begun(journal, [stop], {}, T_S).launches == ()


def test_what_is_begun_is_in_the_journal() -> None:
    """With who was there at a start: those that leave are not waited for under their old id."""
    here = [instance("a"), instance("b", lifecycle=Lifecycle.DRAINING)]
    found = actions(
        made(desired=3, ready=1, drain=("a",), stop=("b",)), Journal(drained=("b",)), here, T_S, lambda: "n", most=10
    )
    assert [action.kind for action in found] == [ActionKind.DRAIN, ActionKind.STOP, ActionKind.START, ActionKind.START]
    journal = begun(Journal(drained=("b",)), found[:3], {"p": here}, T_S)
    assert journal.launches == (Launch(id="n", pool="p", at_s=T_S, beside=("a",)),)
    assert journal.stops == (Stop(id="b", at_s=T_S),)
    assert journal.drained == ("b", "a")


def test_one_that_is_brought_back_is_not_replaced_before_it_is_ready_and_may_be_stopped_no_more() -> None:
    """The order may be lost on its way, with the leader that gave it: it is given again, and nothing is started."""
    here = instance("a", lifecycle=Lifecycle.DRAINING)
    wanted = made(desired=1, resume=("a",))
    asked = Journal(drained=("a",), stops=(Stop(id="a", at_s=T_S - AGAIN_S),))
    (resume,) = actions(wanted, asked, [here], T_S, str, most=10)
    journal = begun(asked, [resume], {"p": [here]}, T_S)
    assert journal.stops == ()
    assert done(wanted, looked(journal, here), here) == ["resume a"]
    assert looked(journal, instance("a")).drained == ()


@pytest.mark.parametrize(
    ("most", "ready", "broken", "started"), [(4, 0, 0, 4), (4, 0, 4, 2), (4, 1, 6, 0), (4, 0, 9, 0), (20, 10, 10, 5)]
)
def test_what_crashes_again_and_again_is_not_replaced_for_ever(
    most: int, ready: int, broken: int, started: int
) -> None:
    """A pool has two machines beyond `most` at a time, or a quarter of it, until those that are broken are gone."""
    assert len(done(made(desired=most, ready=ready, broken=broken), most=most)) == started


def test_one_that_a_person_has_drained_is_not_stopped_either_once_it_has_failed() -> None:
    """It shows as Unhealthy then; one that nobody, or we, have ordered to drain is stopped."""
    failed = instance("a", lifecycle=Lifecycle.UNHEALTHY)
    for ours, ordered, expected in (((), ("a",), []), (("a",), ("a",), ["stop a"]), ((), (), ["stop a"])):
        assert done(made(stop=("a",)), Journal(drained=ours), failed, ordered=ordered) == expected


def test_one_whose_stop_is_under_way_is_not_brought_back() -> None:
    """It would be ended with what it is sent then; another is started."""
    asked = Journal(drained=("a",), stops=(Stop(id="a", at_s=T_S - 1.0),))
    here = instance("a", lifecycle=Lifecycle.DRAINING)
    assert done(made(desired=1, resume=("a",)), asked, here) == ["start new-0"]


NOTHING = Forecast(now=0.0, horizon_s=180.0, expected=0.0, planned=0.0)


def test_what_has_come_to_nothing_is_taken_out_again() -> None:
    """So that it can be asked for anew."""
    journal = Journal(launches=(a_launch("a"), a_launch("b")), stops=(Stop(id="x", at_s=T_S),))
    assert [launch.id for launch in journal.without_launch("a").launches] == ["b"]
    assert journal.without_stop("x").stops == ()


def test_where_the_load_is_not_known_nothing_is_taken_away_and_what_is_missing_is_still_started() -> None:
    """It is said why."""
    drivers = (Driver(Signal.LOAD, 1, "load 0"),)
    held = kept(made(desired=1, ready=3, coming=1, drain=("a",), stop=("b",), drivers=drivers), "nobody tells")
    assert (held.desired, held.without, held.drain, held.stop) == (4, 1, (), ())
    assert held.drivers[0] == Driver(Signal.DWELL, 4, "nobody tells")
    enough = kept(made(desired=3, ready=3, drivers=drivers, forecast=NOTHING), "nobody tells")
    assert (enough.desired, enough.drivers[0].why, enough.forecast) == (3, "nobody tells", None)
    more = kept(made(desired=4, ready=3, drivers=drivers), "nobody tells")
    assert (more.desired, [driver.why for driver in more.drivers]) == (4, ["load 0", "nobody tells"])


def test_word_and_memory_survive_redis_and_those_of_another_version_are_nothing() -> None:
    """All fields."""
    forecast = Forecast(now=1.0, horizon_s=60.0, expected=1.1, planned=1.5)
    drivers = (Driver(Signal.LOAD, 2, "load"),)
    one = made(desired=2, drivers=drivers, forecast=forecast, drain=("a",), broken=1, most=4)
    word = Word(at_s=T_S, name="n", about="h:1", recommendations=(one,), pending={"p": 1})
    assert decode_word(encode_word(word)) == word
    journal = Journal(launches=(a_launch(),), told={"p": 2}, told_broken={"p": 1}, wholes={"p": ("a@1",)})
    memory = Memory(journal=journal, scaler=b"\x00x")
    assert decode_memory(encode_memory(memory)) == memory
    assert looked(journal).told_broken == {"p": 1}
    for data in (b"", b"{}", b"\xff", encode_memory(msgspec.structs.replace(memory, version=9))):
        assert decode_memory(data) is None
    assert decode_word(b"{}") is None
