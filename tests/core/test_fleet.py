"""The router's copy of the registry, without any server: `now` is an argument."""

from __future__ import annotations

import msgspec
import pytest

from extproc.core.fleet.events import Record, Removed, State, Unusable, decode_event, decode_instance
from extproc.core.fleet.fleet import Fleet, Ordered, Published
from extproc.core.values.instance import Lifecycle, Load
from tests.core.builders import instance


def state(*records: Record, seq: int | None = 1, orders: dict[str, Lifecycle] | None = None) -> State:
    return State(seq, records, orders or {})


def test_a_published_instance_is_a_member_observed_when_its_load_was_read() -> None:
    fleet = Fleet()
    change = fleet.apply(Published(instance=instance("a", age_s=0.5)), now=100.0)
    (member,) = fleet.members()
    assert change.reported == (member,)
    assert member.observed_at_s == 99.5
    assert fleet.by_address(member.instance.address) is member
    assert fleet.by_address("10.9.9.9:1") is None


def test_members_is_the_same_tuple_until_something_changes() -> None:
    fleet = Fleet()
    fleet.apply(Published(instance=instance("a")), now=1.0)
    first = fleet.members()
    fleet.heard(2.0)
    assert fleet.members() is first
    fleet.apply(Published(instance=instance("b")), now=3.0)
    assert [member.instance.id for member in fleet.members()] == ["a", "b"]


def test_a_new_incarnation_forgets_the_old_key() -> None:
    fleet = Fleet()
    fleet.apply(Published(instance=instance("a", incarnation="1")), now=1.0)
    change = fleet.apply(Published(instance=instance("a", incarnation="2")), now=2.0)
    assert change.forgotten == ("a@1",)
    assert [member.instance.key for member in change.reported] == ["a@2"]


def test_the_age_in_a_state_is_that_of_the_server_and_of_the_load() -> None:
    fleet = Fleet()
    fleet.resync(state(Record(instance("a", age_s=1.0), age_s=3.0, ttl_s=7.0)), now=100.0)
    (member,) = fleet.members()
    assert member.observed_at_s == 96.0
    assert fleet.age_s(member) == 4.0


def test_reading_the_same_record_again_does_not_change_its_age() -> None:
    fleet = Fleet()
    fleet.apply(Published(instance=instance("a")), now=100.0)
    fleet.resync(state(Record(instance("a"), age_s=2.1, ttl_s=8.0)), now=102.0)
    assert fleet.members()[0].observed_at_s == 100.0


def test_a_dead_registry_makes_all_ages_stand_still() -> None:
    fleet = Fleet()
    fleet.apply(Published(instance=instance("a"), seq=None), now=100.0)
    fleet.heard(101.0)
    fleet.lost()
    assert fleet.heard_at_s == 101.0
    assert fleet.age_s(fleet.members()[0]) == 1.0


def test_one_frozen_publisher_grows_old_alone_and_is_dropped_after_its_ttl() -> None:
    fleet = Fleet()
    frozen, alive = instance("frozen"), instance("alive")
    fleet.apply(Published(instance=frozen, ttl_ms=10_000), now=0.0)
    for second in range(10):
        fleet.apply(Published(instance=alive, ttl_ms=10_000), now=float(second))
    old, young = fleet.get("frozen"), fleet.get("alive")
    assert old is not None
    assert young is not None
    assert (fleet.age_s(old), fleet.age_s(young)) == (9.0, 0.0)
    fleet.heard(10.0)
    assert [member.instance.id for member in fleet.members()] == ["alive"]


@pytest.mark.parametrize(
    ("back", "incarnation", "forgotten"), [(15.0, "1", ()), (15.0, "2", ("a@1",)), (71.0, "1", ("a@1",))]
)
def test_work_and_prefixes_outlive_a_silent_publisher_but_not_their_engine(
    back: float, incarnation: str, forgotten: tuple[str, ...]
) -> None:
    """A record that ran out tells that its publisher died; the engine may go on with all that it has."""
    fleet = Fleet(retention_s=60.0)
    fleet.apply(Published(instance=instance("a"), ttl_ms=10_000), now=0.0)
    assert not fleet.heard(10.0).forgotten
    assert fleet.members() == ()
    late = fleet.heard(back).forgotten
    assert late + fleet.apply(Published(instance=instance("a", incarnation=incarnation)), back).forgotten == forgotten
    assert len(fleet.members()) == 1
    assert not fleet.heard(back + 1.0).forgotten


def test_an_absent_instance_that_is_removed_is_forgotten_at_once() -> None:
    fleet = Fleet()
    fleet.apply(Published(instance=instance("a"), ttl_ms=10_000), now=0.0)
    fleet.heard(10.0)
    assert fleet.apply(Removed(id="a"), now=11.0).forgotten == ("a@1",)
    assert not fleet.heard(1e6).forgotten


def test_after_an_outage_agents_get_time_to_publish_again() -> None:
    """A server that restarted empty must not empty the fleet."""
    fleet = Fleet(recovery_s=5.0)
    fleet.apply(Published(instance=instance("a", incarnation="1"), ttl_ms=10_000), now=0.0)
    fleet.apply(Published(instance=instance("dead"), ttl_ms=10_000), now=0.0)
    fleet.lost()
    change = fleet.resync(state(seq=None), now=60.0)
    assert not change.forgotten
    assert len(fleet.members()) == 2
    assert (fleet.heard_at_s, fleet.contact_at_s) == (0.0, 60.0)
    fleet.apply(Published(instance=instance("a", incarnation="1"), seq=1), now=60.5)
    assert max(map(fleet.age_s, fleet.members())) == 0.0
    fleet.heard(65.0)
    assert fleet.heard_at_s == 65.0
    assert [member.instance.id for member in fleet.members()] == ["a"]


def test_a_record_that_vanished_in_an_outage_is_dropped_once_the_recovery_is_over() -> None:
    """Even one without a TTL: an operator may have removed it while nobody listened."""
    fleet = Fleet(recovery_s=5.0)
    fleet.resync(state(Record(instance("a"), 0.0, float("inf"))), now=0.0)
    fleet.lost()
    fleet.resync(state(seq=9), now=1.0)
    fleet.heard(5.9)
    assert len(fleet.members()) == 1
    fleet.heard(6.0)
    assert fleet.members() == ()


def test_the_first_state_ever_needs_no_recovery() -> None:
    fleet = Fleet()
    fleet.lost()
    fleet.resync(state(Record(instance("a"), 0.0, 10.0)), now=3.0)
    assert fleet.heard_at_s == 3.0


def test_without_an_outage_a_state_is_the_whole_truth() -> None:
    fleet = Fleet()
    fleet.apply(Published(instance=instance("a")), now=1.0)
    fleet.resync(state(Record(instance("b"), 0.0, 10.0)), now=2.0)
    assert [member.instance.id for member in fleet.members()] == ["b"]


def test_a_gap_in_the_sequence_is_told_and_the_event_still_counts() -> None:
    fleet = Fleet()
    fleet.resync(state(seq=4), now=0.0)
    assert not fleet.apply(Published(instance=instance("a"), seq=5), now=1.0).gap
    assert fleet.apply(Published(instance=instance("b"), seq=7), now=2.0).gap
    assert len(fleet.members()) == 2


def test_events_sent_before_the_state_was_read_are_in_it_already() -> None:
    fleet = Fleet()
    fleet.resync(state(Record(instance("a", incarnation="2"), 0.0, 10.0), seq=8), now=0.0)
    change = fleet.apply(Published(instance=instance("a", incarnation="1"), seq=7), now=0.1)
    assert not change.gap
    assert not change.reported
    assert fleet.members()[0].instance.incarnation == "2"


@pytest.mark.parametrize("seq", [3, 5, 7])
def test_a_sequence_that_falls_back_or_repeats_is_a_gap(seq: int) -> None:
    fleet = Fleet()
    fleet.resync(state(seq=4), now=0.0)
    fleet.apply(Published(instance=instance("a"), seq=5), now=1.0)
    assert fleet.apply(Published(instance=instance("a"), seq=seq), now=2.0).gap


def test_an_event_without_a_number_is_taken_and_does_not_count() -> None:
    fleet = Fleet()
    fleet.resync(state(seq=4), now=0.0)
    assert fleet.apply(Published(instance=instance("a")), now=1.0).reported
    assert not fleet.apply(Published(instance=instance("b"), seq=5), now=2.0).gap


def test_an_unusable_event_counts_in_the_sequence() -> None:
    fleet = Fleet()
    fleet.resync(state(seq=4), now=0.0)
    assert not fleet.apply(Unusable(why="?", seq=5), now=1.0).gap
    assert not fleet.apply(Published(instance=instance("a"), seq=6), now=2.0).gap


def test_an_order_holds_a_ready_instance_back_until_it_is_taken_back() -> None:
    fleet = Fleet()
    fleet.apply(Published(instance=instance("a")), now=1.0)
    fleet.apply(Ordered(id="a", lifecycle=Lifecycle.DRAINING), now=2.0)
    assert fleet.members()[0].instance.lifecycle is Lifecycle.DRAINING
    fleet.apply(Published(instance=instance("a", load=Load(running=3))), now=3.0)
    member = fleet.members()[0]
    assert (member.instance.lifecycle, member.instance.load.running) == (Lifecycle.DRAINING, 3)
    fleet.apply(Ordered(id="a"), now=4.0)
    assert fleet.members()[0].instance.lifecycle is Lifecycle.READY
    assert fleet.members()[0].instance.lifecycle_reason == ""


def test_an_order_never_hides_that_an_instance_is_unhealthy() -> None:
    fleet = Fleet()
    fleet.apply(Ordered(id="a", lifecycle=Lifecycle.DRAINING), now=1.0)
    fleet.apply(Published(instance=instance("a", lifecycle=Lifecycle.UNHEALTHY)), now=2.0)
    assert fleet.members()[0].instance.lifecycle is Lifecycle.UNHEALTHY


def test_a_state_brings_orders_and_takes_back_those_it_does_not_hold() -> None:
    fleet = Fleet()
    fleet.apply(Published(instance=instance("a")), now=0.0)
    fleet.apply(Published(instance=instance("b")), now=0.0)
    fleet.apply(Ordered(id="a", lifecycle=Lifecycle.DRAINING), now=1.0)
    records = (Record(instance("a"), 0.0, 10.0), Record(instance("b"), 0.0, 10.0))
    fleet.resync(state(*records, orders={"b": Lifecycle.DRAINING}), now=2.0)
    assert [m.instance.lifecycle for m in fleet.members()] == [Lifecycle.READY, Lifecycle.DRAINING]


def test_a_removed_instance_is_gone_with_its_order() -> None:
    fleet = Fleet()
    fleet.apply(Published(instance=instance("a")), now=1.0)
    fleet.apply(Ordered(id="a", lifecycle=Lifecycle.DRAINING), now=2.0)
    assert fleet.apply(Removed(id="a"), now=3.0).forgotten == ("a@1",)
    assert fleet.members() == ()
    fleet.apply(Published(instance=instance("a")), now=4.0)
    assert fleet.members()[0].instance.lifecycle is Lifecycle.READY


def test_a_record_without_a_ttl_is_never_dropped() -> None:
    fleet = Fleet()
    fleet.resync(state(Record(instance("a"), 0.0, float("inf"))), now=0.0)
    fleet.heard(1e6)
    assert len(fleet.members()) == 1


def test_events_survive_their_way_as_json() -> None:
    for event in (
        Published(instance=instance("a"), ttl_ms=5, seq=1),
        Ordered(id="a", lifecycle=Lifecycle.DRAINING, seq=2),
        Ordered(id="a", lifecycle=None),
        Removed(id="a", seq=4),
    ):
        assert decode_event(msgspec.json.encode(event)) == event


@pytest.mark.parametrize(
    "data",
    [b"", b"null", b"[]", b"{", b'{"event":"published"}', b'{"event":"new","seq":3}', b"\xff\xfe", b'"\xff"'],
)
def test_what_is_no_event_is_unusable_and_raises_nothing(data: bytes) -> None:
    event = decode_event(data)
    assert isinstance(event, Unusable)
    assert event.why
    assert event.seq == (3 if b"seq" in data else None)


@pytest.mark.parametrize(
    "changes",
    [
        {"address": "gpu-0.local:8000"},
        {"address": "10.0.0.1"},
        {"address": "10.0.0.1:80\r\nx: y"},
        {"cluster": "pool\nx"},
        {"cluster": ""},
        {"id": "a b"},
        {"id": "x" * 200},
    ],
)
def test_a_record_that_would_break_a_header_or_an_address_is_refused(changes: dict[str, str]) -> None:
    bad = instance("a", **changes)
    assert isinstance(decode_event(msgspec.json.encode(Published(instance=bad, seq=1))), Unusable)
    with pytest.raises(ValueError, match=r"address|cluster|id"):
        decode_instance(msgspec.json.encode(bad))


def test_ipv6_addresses_are_fine() -> None:
    good = instance("a", address="[fd00::1]:8000")
    assert decode_instance(msgspec.json.encode(good)) == good
