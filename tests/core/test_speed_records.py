"""Learned speeds as plain values: told to peers, kept for the next start, given by a person."""

from __future__ import annotations

import json
import statistics
from typing import Any

import msgspec
import pytest

from extproc.core.speeds.gaussian import Pair, fuse
from extproc.core.speeds.speed_records import KindRecord, Records, StepRecord, decode, encode, record_of
from extproc.core.speeds.speeds import Speeds
from extproc.core.speeds.speeds_told import merge
from tests.core.builders import MODEL, instance
from tests.core.measured import Truth

TABLE = {"a_ms": 4.0, "b_ms": 0.02, "c_ms": 1e-6, "d_ms": 6.0, "e_ms": 0.01, "f_ms": 4e-5}


def taught(truth: Truth, each: int = 40, names: str = "abcd", priors: tuple[KindRecord, ...] = ()) -> Speeds:
    speeds = Speeds(priors)
    for _ in range(each):
        for name in names:
            truth.finish(speeds, instance(name))
    return speeds


def records(*all_speeds: Speeds) -> list[KindRecord]:
    return [record_of(kind) for speeds in all_speeds for kind in speeds.kinds().values()]


def prefill_s(speeds: Speeds, name: str = "a") -> float:
    return speeds.speed(MODEL, instance(name)).prefill_s(1000, 0)


def test_what_was_learned_survives_a_restart_with_the_slow_node_known() -> None:
    before = taught(Truth(scale=2.0, factors={"a": 3.0}))
    after = Speeds()
    after.speed(MODEL, instance("a"))  # traffic may come before the memory
    after.restore(decode(encode(Records(kinds=tuple(records(before))))).kinds)
    for name in "ab":
        assert prefill_s(after, name) == pytest.approx(prefill_s(before, name), rel=0.02)
    assert after.speed(MODEL, instance("b")).uncertainty > before.speed(MODEL, instance("b")).uncertainty


def test_a_router_that_has_learned_itself_is_not_overruled_by_its_memory() -> None:
    stale, fresh = taught(Truth(scale=5.0)), taught(Truth())
    expected_s = prefill_s(fresh)
    fresh.restore(records(stale))
    assert prefill_s(fresh) == pytest.approx(expected_s, rel=0.01)


def test_peers_add_what_they_know_by_precision() -> None:
    truth = Truth(scale=2.0)
    much, little, none = taught(truth, 60), taught(Truth(seed=1), 1, "a"), Speeds()
    alone_s = prefill_s(little)
    little.hear(records(much))
    assert abs(prefill_s(little) / truth.prefill_s(instance(), 1000) - 1) < 0.06
    assert alone_s < 0.7 * prefill_s(little)
    none.hear(records(much))
    assert prefill_s(none) == pytest.approx(prefill_s(much), rel=0.02)
    none.hear(())
    assert prefill_s(none) == pytest.approx(truth.prefill_s(instance(), 1000) / 2)


def test_peers_tell_of_a_slow_node() -> None:
    truth = Truth(factors={"a": 3.0})
    knows, other = taught(truth), taught(Truth(seed=2), names="bcd")
    other.hear(records(knows))
    assert prefill_s(other, "a") == pytest.approx(truth.prefill_s(instance("a"), 1000), rel=0.15)
    assert prefill_s(other, "b") == pytest.approx(truth.prefill_s(instance("b"), 1000), rel=0.05)


def test_several_routers_are_shown_as_one() -> None:
    truths = [Truth(seed=seed, scale=1.4) for seed in range(3)]
    (one,) = merge(records(*(taught(truth, 30) for truth in truths)))
    assert 340 < one.decode.samples <= 3 * 4 * 30  # gross errors tell nothing of a kind
    assert one.instances["a@1"].samples[1] == 3 * 30
    assert one.decode.scale == pytest.approx(1.4, rel=0.15)
    assert decode(encode(Records(kinds=(one,)))).kinds == (one,)


def test_the_same_prior_counts_once() -> None:
    """Two that have learned nothing know no more than one; two that have know twice as much beyond the prior."""
    prior = Pair(0.0, 0.0, 4.0, 1.0, 0.5)
    nothing = fuse(prior, [prior.copy(), prior.copy()])
    assert (nothing.first, nothing.second) == (0.0, 0.0)
    assert (nothing.var_first, nothing.var_second, nothing.covariance) == pytest.approx((4.0, 1.0, 0.5))
    apart, together = [prior.copy(), prior.copy()], prior.copy()
    for number, measured in enumerate((1.0, 2.0, 1.5, 0.5)):
        for pair in (apart[number % 2], together):
            pair.update(1.0, 0.5 * number, measured - pair.first - 0.5 * number * pair.second, 0.3, 1e9)
    fused = fuse(prior, apart)
    for name in ("first", "second", "var_first", "var_second", "covariance"):
        assert getattr(fused, name) == pytest.approx(getattr(together, name))


def test_a_person_may_give_a_table_of_their_own() -> None:
    text = json.dumps({"kinds": [{"kind": f"{MODEL}/h100_sxm/tp1", "constants": TABLE, "reference": "ignored"}]})
    speeds = Speeds(decode(text.encode()).kinds)
    assert prefill_s(speeds) == pytest.approx(1e-3 * (4.0 + 20.0 + 0.5))
    speeds.restore(records(taught(Truth(scale=5.0))))  # which refers to another table
    assert prefill_s(speeds) == pytest.approx(1e-3 * (4.0 + 20.0 + 0.5))
    speeds.hear(records(taught(Truth(scale=5.0))))
    assert prefill_s(speeds) == pytest.approx(1e-3 * (4.0 + 20.0 + 0.5))


def test_what_was_exported_can_be_given_back() -> None:
    before = taught(Truth(scale=2.0))
    after = Speeds(decode(encode(Records(kinds=tuple(records(before))))).kinds)
    assert prefill_s(after) == pytest.approx(prefill_s(before), rel=0.02)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"kind": 7}, r"\$.kinds\[0\].kind"),
        ({"constants": {**TABLE, "a_ms": -1.0}}, "none negative"),
        ({"constants": {**TABLE, "d_ms": 0.0}}, "above 0"),
        ({"constants": {**TABLE, "d_ms": 1e-300}}, "0.001 at the least"),
        ({"constants": {**TABLE, "a_ms": 9e-4}}, "0.001 at the least"),
        ({"prefill": {"scale": 0.0}}, "between"),
        ({"decode": {"covariance": [1.0, 1.0, 2.0]}}, "covariance"),
        ({"prefill": {"overhead_s": -1.0}}, "overheads"),
        ({"deviation": 0.0}, "deviation"),
        ({"prefill": {"samples": -8}}, "samples"),  # which would divide by 0
        ({"decode": {"noise": 1e200}}, "noise"),  # whose square is none
        (
            {"instances": {"a": {"prefill": 1, "decode": 1, "covariance": [1, 1, 0], "samples": [0, -8]}}},
            "samples",
        ),
    ],
)
def test_what_no_kind_can_be_is_refused_with_its_place(changes: dict[str, Any], told: str) -> None:
    record = {"kind": "m/h100_sxm/tp1", "constants": TABLE} | changes
    with pytest.raises(ValueError, match=told):
        decode(msgspec.json.encode({"kinds": [record]}))


def test_no_text_is_refused_with_one_line() -> None:
    for data in (b"", b"{", b"[]", b"\xff"):
        with pytest.raises(ValueError, match=r"\w"):
            decode(data)


def test_many_starts_make_nobody_surer_than_what_was_measured() -> None:
    """Each router that starts is told what all before it have told, and tells it again."""
    told = records(taught(Truth()))
    for _ in range(40):
        begun = Speeds()
        begun.restore(merge(told))
        begun.speed(MODEL, instance())
        told += records(begun)
    latest = told[-1]
    assert latest.decode.samples <= told[0].decode.samples
    assert latest.decode.covariance is not None
    assert told[0].decode.covariance is not None
    assert latest.decode.covariance[0] >= 0.5 * told[0].decode.covariance[0]


def test_many_starts_leave_what_was_measured_where_it_was() -> None:
    """A few samples of a slow kind with a slower node: whoever starts after starts knows them as the first did."""
    first = taught(Truth(scale=1.5, factors={"a": 1.5}), each=3)
    told, begun = records(first), Speeds()
    for _ in range(10):
        begun = Speeds()
        begun.restore(merge(told))
        for name in "ab":
            assert prefill_s(begun, name) == pytest.approx(prefill_s(first, name), rel=0.05)
        told += records(begun)
    (shown,) = merge(told)
    assert shown.prefill.samples == told[0].prefill.samples
    assert shown.instances["a@1"].samples == told[0].instances["a@1"].samples
    begun.hear(told[1:-1])  # others that started with it
    assert prefill_s(begun, "a") == pytest.approx(prefill_s(first, "a"), rel=0.05)


def test_what_a_router_learns_after_its_start_is_told_beside_what_it_began_with() -> None:
    """Its own samples, as if it had begun with nothing: together with the earlier ones they are not counted twice."""
    truth = Truth(scale=2.0, factors={"a": 2.0})
    first, second = taught(truth, each=20), Speeds()
    second.restore(records(first))
    for _ in range(20):
        for name in "abcd":
            truth.finish(second, instance(name))
    (own,) = records(second)
    assert 0 < own.prefill.samples <= 80
    assert own.instances["a@1"].samples[0] <= 20
    both = Speeds()
    both.restore(merge([*records(first), own]))
    for name in "ab":
        assert prefill_s(both, name) == pytest.approx(truth.prefill_s(instance(name), 1000), rel=0.1)


def test_a_fleet_that_was_slow_before_a_start_and_is_not_after_it_is_told_as_it_is() -> None:
    """All instances together prove the kind wrong that was begun with: what is told is neither, nor far beyond both."""
    begun = Speeds()
    begun.restore(records(taught(Truth(scale=1.4), each=30)))
    now = Truth(seed=3)
    for _ in range(30):
        for name in "abcd":
            now.finish(begun, instance(name))
    heard = Speeds()
    heard.hear(records(begun))
    for name in "ab":
        expected_s = now.prefill_s(instance(name), 1000)
        assert prefill_s(begun, name) == pytest.approx(expected_s, rel=0.1)
        assert prefill_s(heard, name) == pytest.approx(expected_s, rel=0.1)


def test_instances_that_ended_before_a_start_are_told_of_no_more_once_they_have_faded() -> None:
    begun, truth = Speeds(), Truth()
    begun.restore(records(taught(Truth(factors={"a": 3.0}))))
    for _ in range(180):
        truth.finish(begun, instance("new"), apart_s=60.0)
    (told,) = records(begun)
    assert list(told.instances) == ["new@1"]


@pytest.mark.parametrize("routers", [2, 4, 8])
def test_a_node_that_became_slow_is_known_although_others_remember_it_fast(routers: int) -> None:
    """Only one of the routers asks it any more; one that starts believes that one, too."""
    truth, all_speeds = Truth(seed=3), [Speeds() for _ in range(routers)]
    for _ in range(60):
        for speeds in all_speeds:
            for name in "abcd":
                truth.finish(speeds, instance(name), apart_s=0.1)
    asks = all_speeds[0]
    before_s = prefill_s(asks)
    truth.factors["a"] = 3.0
    for _ in range(20):
        for name in "abcd":
            truth.finish(asks, instance(name), apart_s=0.1)
    told = {each: [record_of(kind, truth.now) for kind in each.kinds().values()] for each in all_speeds}
    newcomer = Speeds()
    for each in (*all_speeds, newcomer):
        each.hear([record for other, records in told.items() if other is not each for record in records], truth.now)
        assert prefill_s(each) == pytest.approx(3.0 * before_s, rel=0.15)
        assert prefill_s(each, "b") == pytest.approx(before_s, rel=0.15)


class Routers:
    """Several routers of one fleet that tell each other what they have learned."""

    def __init__(self, count: int, names: str, seed: int, each: int = 60) -> None:
        self.truth, self.names = Truth(seed=seed), names
        self.all = [Speeds() for _ in range(count)]
        for _ in range(each):
            for speeds in self.all:
                self.ask(speeds, len(names))
        self.share()

    def ask(self, speeds: Speeds, requests: int) -> None:
        for number in range(requests):
            self.truth.finish(speeds, instance(self.names[number % len(self.names)]), apart_s=0.1)

    def told(self, speeds: Speeds, lain_s: float = 0.0) -> list[KindRecord]:
        return [
            msgspec.structs.replace(record_of(kind, self.truth.now - lain_s), lain_s=lain_s)
            for kind in speeds.kinds().values()
        ]

    def share(self, lain_s: float = 0.0) -> None:
        told = {each: self.told(each, lain_s) for each in self.all}
        for each in self.all:
            each.hear([r for other, records in told.items() if other is not each for r in records], self.truth.now)

    def errors(self, speeds: Speeds) -> list[float]:
        """How far off one is, for prompts and for decode steps of each instance."""
        found = []
        for member in map(instance, self.names):
            speed = speeds.speed(MODEL, member)
            found.append(speed.prefill_s(1000, 0) / self.truth.prefill_s(member, 1000) - 1.0)
            found.append(speed.decode_step_s(16, 16e3) / self.truth.decode_step_s(member, 16, 16e3) - 1.0)
        return [abs(error) for error in found]


@pytest.mark.parametrize("names", ["a", "ab", "abcd", "abcdefgh", "abcdefghijklmnop"])
@pytest.mark.parametrize("seed", range(3))
def test_a_kind_that_became_slow_is_known_within_twenty_requests_although_others_remember_it_fast(
    names: str, seed: int
) -> None:
    """Only one of three routers sees its requests. The others learn it from that one, and do not tell the old tale."""
    fleet = Routers(3, names, seed)
    sees, *others = fleet.all
    fleet.truth.scale = 3.0
    fleet.ask(sees, 20)
    assert statistics.median(fleet.errors(sees)) < 0.15
    for _ in range(3):  # what is heard over and over is still one change
        fleet.ask(sees, 20)
        fleet.share(lain_s=7.0)
    for each in fleet.all:
        assert max(fleet.errors(each)) < 0.15
    newcomer = Speeds()
    newcomer.restore(merge([record for each in fleet.all for record in fleet.told(each)]))
    assert max(fleet.errors(newcomer)) < 0.15
    if len(names) > 1:  # else it may be the instance that has changed, which heals if nobody asks it
        fleet.all = others  # the one that saw it is gone: what it told of the kind stays
        fleet.share()
        for each in others:
            assert max(fleet.errors(each)) < 0.2


def test_a_kind_that_heals_is_known_to_by_whoever_sees_it() -> None:
    """What peers told of the change before counts no more then."""
    fleet = Routers(3, "abcd", 0)
    for sees, scale in zip(fleet.all, (3.0, 1.0, 2.0), strict=True):
        fleet.truth.scale = scale
        fleet.ask(sees, 60)
        fleet.share()
        for each in fleet.all:
            assert max(fleet.errors(each)) < 0.15


def test_a_router_that_still_sees_a_kind_as_it_was_does_not_give_that_up() -> None:
    """One that is wrong about a kind, because its own requests are odd, colours the others' word and no more."""
    fleet = Routers(2, "abcd", 0)
    odd, sane = fleet.all
    fleet.truth.scale = 3.0
    fleet.ask(odd, 40)
    fleet.truth.scale = 1.0
    fleet.ask(sane, 40)
    before = sane.kinds()[f"{MODEL}/h100_sxm/tp1"].steps[1].samples
    fleet.share()
    assert sane.kinds()[f"{MODEL}/h100_sxm/tp1"].steps[1].samples == before
    fleet.ask(sane, 1)
    sane.hear((), fleet.truth.now)
    assert max(fleet.errors(sane)) < 0.1


def test_what_was_learned_long_ago_weighs_less_than_what_is_fresh() -> None:
    """Where no single step of a slow drift is a change."""
    drifted = []
    for age_s in (0.0, 86_400.0):
        fleet = Routers(2, "abcd", 0, each=20)
        sees, idle = fleet.all
        fleet.truth.now += age_s
        fleet.truth.scale = 1.12
        fleet.ask(sees, 80)
        idle.hear(fleet.told(sees), fleet.truth.now)
        drifted.append(statistics.median(fleet.errors(idle)))
    assert drifted[1] < drifted[0] - 0.01


def test_a_record_that_knows_less_than_its_prior_makes_no_speed_that_cannot_be() -> None:
    """Without the prior that it claims to begin from, its numbers lie beyond what `exp` can take."""
    told = records(taught(Truth()))[0]
    step = StepRecord(
        overhead_s=0.00426,
        scale=5.21,
        covariance=(6.47e-5, 0.0369, -0.00148),
        samples=9,
        age_s=86400.0,
        since_change_s=40.0,
    )
    speeds = Speeds()
    speeds.speed(MODEL, instance())
    peer = msgspec.structs.replace(told, prefill=step, deviation=0.2, instances={})
    speeds.hear(decode(encode(Records(kinds=(peer,)))).kinds, 0.0)
    speed = speeds.speed(MODEL, instance())
    assert all(0.0 <= each < 100.0 for each in (*speed.coefficients(), speed.uncertainty))
