"""Who is published and how well: joining, draining, leaving, and what stays when a registry loses everything."""

from __future__ import annotations

from typing import Any

import pytest

from extproc.control.settings import Shape
from extproc.control.xds.membership import Health, Membership
from extproc.core.fleet.events import Ordered, Published, Record, Removed, State
from extproc.core.fleet.fleet import Change, Fleet, Member
from extproc.core.values.instance import Instance, Lifecycle, Load

TTL_S = 10.0
ALL = ("a", "b", "c")


def instance(name: str, **changes: Any) -> Instance:
    port = 8000 + ord(name[0])
    plain: dict[str, Any] = {"id": name, "incarnation": "1", "address": f"10.0.0.1:{port}", "cluster": "pool"}
    return Instance(**plain | {"models": ("m",), "lifecycle": Lifecycle.READY} | changes)


class Setup:
    """A fleet with its membership, driven by hand. `see` returns id and health of each, as letters."""

    def __init__(self, *names: str, shape: Shape = Shape.POOL, **changes: Any) -> None:
        self.now = 0.0
        self.fleet = Fleet(recovery_s=0.0)
        self.membership = Membership(shape, "pool", forget_after_s=60.0)
        self.fleet.resync(State(None, tuple(self.record(name, **changes) for name in names), {}), self.now)

    @staticmethod
    def record(name: str, **changes: Any) -> Record:
        return Record(instance(name, **changes), 0.0, TTL_S)

    def publish(self, *names: str, **changes: Any) -> None:
        for name in names:
            self.fleet.apply(Published(instance=instance(name, **changes)), self.now)

    def pass_time(self, seconds: float, *alive: str, **changes: Any) -> None:
        """Second by second, in which those alive go on publishing and everybody looks."""
        for _ in range(int(seconds)):
            self.now += 1.0
            self.publish(*alive, **changes)
            self.fleet.heard(self.now)
            self.membership.update(self.fleet, self.now)

    def see(self) -> str:
        self.membership.update(self.fleet, self.now)
        letters = {Health.HEALTHY: "", Health.DRAINING: "~", Health.UNHEALTHY: "!"}
        return " ".join(f"{letters[each.health]}{each.id}" for each in self.membership.endpoints)


@pytest.mark.parametrize(
    ("lifecycle", "seen"),
    [
        (Lifecycle.STARTING, "!a b"),
        (Lifecycle.LOADING, "!a b"),
        (Lifecycle.READY, "a b"),
        (Lifecycle.DRAINING, "~a b"),
        (Lifecycle.UNHEALTHY, "!a b"),
        (Lifecycle.STOPPED, "b"),
    ],
)
def test_each_lifecycle_has_its_health(lifecycle: Lifecycle, seen: str) -> None:
    """Envoy's own balancing gets the Ready ones; the others are known, for streams and for first decisions."""
    setup = Setup("a", "b")
    setup.publish("a", lifecycle=lifecycle)
    assert setup.see() == seen


def test_an_order_counts_as_the_lifecycle_that_it_gives() -> None:
    setup = Setup("a", "b")
    setup.fleet.apply(Ordered(id="a", lifecycle=Lifecycle.DRAINING), 0.0)
    assert setup.see() == "~a b"
    setup.fleet.apply(Ordered(id="a", lifecycle=None), 0.0)
    assert setup.see() == "a b"


def test_a_removed_instance_goes_at_once() -> None:
    setup = Setup(*ALL)
    assert setup.see() == "a b c"
    setup.fleet.apply(Removed(id="b"), 0.0)
    assert setup.see() == "a c"


def test_an_instance_whose_heartbeat_ended_stays_unhealthy_for_a_while() -> None:
    """Perhaps only its agent died."""
    setup = Setup(*ALL)
    setup.pass_time(8, "a", "b")
    assert setup.see() == "a b c"
    setup.pass_time(4, "a", "b")
    assert setup.see() == "a b !c"
    setup.pass_time(57, "a", "b")
    assert setup.see() == "a b !c"
    setup.pass_time(3, "a", "b")
    assert setup.see() == "a b"
    setup.pass_time(1, *ALL)
    assert setup.see() == "a b c"


def test_one_that_comes_back_begins_its_while_anew_the_next_time() -> None:
    setup = Setup(*ALL)
    setup.pass_time(60, "a", "b")
    setup.pass_time(1, *ALL)
    setup.pass_time(30, "a", "b")
    assert setup.see() == "a b !c"


def test_a_drained_instance_whose_heartbeat_ended_goes() -> None:
    """It was on its way out."""
    setup = Setup("a", "b")
    setup.publish("b", lifecycle=Lifecycle.DRAINING)
    setup.pass_time(12, "a")
    assert setup.see() == "a"


def test_a_pool_whose_instances_all_fell_silent_keeps_them_for_as_long_as_it_takes() -> None:
    """A registry that lost everything takes nothing from an Envoy that balances by itself, not even bit by bit."""
    setup = Setup(*ALL)
    setup.pass_time(3, "b", "c")  # not all of them at the same moment
    setup.pass_time(3, "c")
    setup.pass_time(3000)
    assert setup.see() == "!a !b !c"


def test_when_the_first_is_back_the_others_get_their_while_again() -> None:
    setup = Setup(*ALL)
    setup.pass_time(200)
    setup.pass_time(30, "a")
    assert setup.see() == "a !b !c"
    setup.pass_time(1, "a", "c")
    setup.pass_time(60, "a", "c")
    assert setup.see() == "a c"


def test_the_last_of_a_pool_stays_even_if_it_is_removed() -> None:
    """An empty pool would refuse everything; one that is gone refuses no more than that."""
    setup = Setup("a")
    assert setup.see() == "a"
    setup.fleet.apply(Removed(id="a"), 0.0)
    assert setup.see() == "!a"
    setup.pass_time(100)
    assert setup.see() == "!a"
    setup.publish("b")
    assert setup.see() == "b"


def test_a_dead_registry_changes_nothing() -> None:
    setup = Setup(*ALL)
    assert setup.see() == "a b c"
    setup.fleet.lost()
    setup.pass_time(3000)
    assert setup.see() == "a b c"


def test_pools_are_kept_apart() -> None:
    """That one is served does not take the last from another."""
    setup = Setup("a", "b")
    setup.publish("c", cluster="large")
    assert setup.see() == "c a b"
    setup.pass_time(200, "a", "b")
    assert [(each.pool, each.id, each.health.value) for each in setup.membership.endpoints] == [
        ("large", "c", "unhealthy"),
        ("pool", "a", "healthy"),
        ("pool", "b", "healthy"),
    ]


def test_one_that_moves_to_another_pool_leaves_the_old_one_unless_it_was_the_last() -> None:
    setup = Setup("a", "b")
    setup.see()
    setup.publish("b", cluster="large")
    setup.see()
    assert [(each.pool, each.id) for each in setup.membership.endpoints] == [("large", "b"), ("pool", "a")]
    setup.publish("a", cluster="large")
    setup.see()
    kept = [(each.pool, each.id, each.health.value) for each in setup.membership.endpoints]
    assert kept == [("large", "a", "healthy"), ("large", "b", "healthy"), ("pool", "a", "unhealthy")]


def test_in_the_shape_instance_one_pool_gathers_all() -> None:
    setup = Setup(shape=Shape.INSTANCE)
    setup.publish("a", cluster="a")
    setup.publish("b", cluster="b")
    setup.see()
    assert [(each.pool, each.cluster) for each in setup.membership.endpoints] == [("pool", "a"), ("pool", "b")]


@pytest.mark.parametrize("address", ["999.0.0.1:80", "10.0.0.1:0", "10.0.0.1:70000", "[::g]:80"])
def test_an_address_that_is_none_is_left_out(address: str) -> None:
    """Envoy would refuse the whole pool with it."""
    setup = Setup("a")
    setup.publish("b", address=address)
    assert setup.see() == "a"
    assert setup.membership.unusable == {"b"}


@pytest.mark.parametrize("shape", list(Shape))
@pytest.mark.parametrize("cluster", ["extproc", "xds", "a/own"])
def test_no_instance_can_take_the_name_of_a_cluster_that_is_not_its_own(cluster: str, shape: Shape) -> None:
    """Decisions for `a` would go to it, or those for it to the service. In pools `a/own` is a name like others."""
    setup = Setup(shape=shape)
    setup.publish("a", cluster="a")
    setup.publish("b", cluster=cluster)
    free = shape is Shape.POOL and cluster == "a/own"
    assert setup.see() == ("a b" if free else "a")
    assert setup.membership.unusable == (frozenset() if free else {"b"})


def test_an_address_of_the_other_family_is_one() -> None:
    setup = Setup()
    setup.publish("a", address="[2001:db8::1]:8000")
    setup.see()
    assert setup.membership.endpoints[0].address == ("2001:db8::1", 8000)


def test_load_reports_are_no_reason_to_look_and_all_else_is() -> None:
    """A fleet of a thousand reports a thousand times a second."""
    setup = Setup("a")
    setup.see()

    def touched(**changes: Any) -> bool:
        return setup.membership.touched(Change(reported=(Member(instance("a", **changes), 0.0),)))

    assert not touched(load=Load(running=7))
    assert touched(lifecycle=Lifecycle.DRAINING)
    assert touched(address="10.0.0.9:80")
    assert touched(cluster="large")
    assert setup.membership.touched(Change(reported=(Member(instance("new"), 0.0),)))
    assert setup.membership.touched(Change())  # an order, a removal, or time that passes


def test_an_update_tells_whether_anything_changed() -> None:
    setup = Setup("a")
    assert setup.membership.update(setup.fleet, 0.0)
    assert not setup.membership.update(setup.fleet, 0.0)
    setup.publish("a", load=Load(running=3))
    assert not setup.membership.update(setup.fleet, 0.0)
    setup.publish("b")
    assert setup.membership.update(setup.fleet, 0.0)
