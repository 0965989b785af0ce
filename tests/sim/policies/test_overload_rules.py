"""Rivals that refuse or hold, each against what follows from its published rule by hand."""

from __future__ import annotations

from math import sqrt

import pytest

from extproc.core.values.instance import Load
from extproc.core.values.request import RequestClass
from extproc.sim.policies.catalog import CATALOG, comparable, load, overloaded
from extproc.sim.policies.envoy_limits import INTERVAL_S, LIMITS, MAX_REQUESTS, MIN_RTT_REQUESTS, Gradient
from extproc.sim.policies.llm_d_flow import TTL_S, FlowControl, band, concurrency
from extproc.sim.policies.policy import HELD, Holds
from tests.sim.policies.counter import OVER, ask, publish, setting

FULL = {key: Load(running=9, waiting=5, kv_usage=0.1) for key in "ab"}
FREE = {key: Load(running=0, waiting=0, kv_usage=0.0) for key in "ab"}


def made(name, loads=FREE):
    """A policy that knows two instances."""
    policy = load(name)(setting())
    publish(policy, loads)
    return policy


def flow(most=1):
    """Flow control that has room for so many requests on each of two instances."""
    policy = FlowControl(setting(), concurrency(most))
    publish(policy, FREE)
    return policy


def test_envoys_circuit_breaker_opens_at_its_limit_and_closes_when_a_request_ends():
    """The 1,025th in flight is refused."""
    policy = made("envoy_limit")
    sent = [(one, policy.choose(one, 0.0)) for one in (ask(f"r{number}") for number in range(MAX_REQUESTS))]
    assert None not in [chosen for _, chosen in sent]
    assert policy.choose(ask("more"), 0.0) is None
    policy.ended(sent[0][0], sent[0][1], OVER, 1.0)
    assert policy.choose(ask("again"), 1.0) is not None


def test_the_gradient_lets_the_limit_grow_by_its_root_while_latency_is_as_ever():
    """A gradient of 1.25 of the buffer: 25 -> 1.25 * 25 + 5."""
    controller = Gradient()
    for _ in range(MIN_RTT_REQUESTS):
        controller.ended(2.0, 0.05)
    controller.tick(INTERVAL_S)
    assert controller.limit == pytest.approx(1.25 * LIMITS[0] + sqrt(LIMITS[0]))


def test_the_gradient_halves_the_limit_at_most_and_never_below_the_least():
    """Latency ten times what it was, window after window."""
    controller = Gradient()
    for _ in range(MIN_RTT_REQUESTS):
        controller.ended(1.0, 0.05)
    controller.limit = 400.0
    controller.ended(100.0, 0.06)
    controller._samples = [100.0]
    controller.tick(1.0)
    assert controller.limit == pytest.approx(0.5 * 400.0 + 20.0)
    for window in range(2, 40):
        controller.ended(100.0, float(window))
        controller.tick(window + 0.5)
    assert controller.limit >= LIMITS[0]
    assert controller.limit < 80.0


def test_an_adaptive_limit_refuses_what_is_beyond_it():
    """It begins at the least."""
    policy = made("envoy_adaptive")
    chosen = [policy.choose(ask(f"r{number}"), 0.0) for number in range(int(LIMITS[0]) + 1)]
    assert chosen[-1] is None
    assert None not in chosen[:-1]


def test_a_saturated_pool_refuses_sheddable_requests_alone():
    """Less urgent ones and batch; a queue of five on each is saturation."""
    policy = made("llm_d_shed", FULL)
    assert policy.choose(ask("usual"), 0.1) is not None
    assert policy.choose(ask("batch", request_class=RequestClass.BATCH), 0.1) is None
    assert policy.choose(ask("late", priority=1), 0.1) is None
    assert made("llm_d_shed").choose(ask("batch", request_class=RequestClass.BATCH), 0.1) is not None


def test_its_bands_are_ours_with_the_sign_turned():
    """There higher is more important, and batch is one below."""
    assert band(ask("urgent", priority=-1)) == 1
    assert band(ask("usual")) == 0
    assert band(ask("batch", request_class=RequestClass.BATCH)) == -1


def test_flow_control_holds_what_a_saturated_pool_has_no_room_for():
    """With one place on each of two instances the third request waits until one of them ends."""
    policy = flow()
    assert isinstance(policy, Holds)
    first, second, third = ask("one"), ask("two"), ask("three")
    places = [policy.choose(first, 0.0), policy.choose(second, 0.0)]
    assert sorted(places) == ["a", "b"]
    assert policy.choose(third, 1.0) is HELD
    assert policy.let_go(1.0) == []
    assert policy.wake_at_s == 1.0 + TTL_S
    policy.ended(first, places[0], OVER, 2.0)
    assert policy.let_go(2.0) == [(third, places[0])]
    assert policy.wake_at_s == float("inf")


def test_flow_control_serves_bands_strictly_and_tenants_of_one_in_turn():
    """The urgent one first, then one of each tenant, in whatever order they came."""
    policy = flow(2)
    running = [ask(f"r{number}") for number in range(4)]
    places = [policy.choose(one, 0.0) for one in running]
    waiting = [
        *(ask(f"a{number}", tenant="a") for number in range(3)),
        ask("b0", tenant="b"),
        ask("u", priority=-1),
        ask("s", priority=1),
    ]
    assert [policy.choose(one, 0.0) for one in waiting] == [HELD] * 6
    order = []
    for one, place in zip(running, places, strict=True):
        policy.ended(one, place, OVER, 1.0)
        order += [gone.id for gone, _ in policy.let_go(1.0)]
    assert order == ["u", "a0", "b0", "a1"]


def test_nobody_overtakes_those_who_wait():
    """A request that comes when there is room again, and others wait, is queued behind them."""
    policy = flow()
    places = [(one, policy.choose(one, 0.0)) for one in (ask("one"), ask("two"))]
    policy.choose(ask("three"), 0.0)
    policy.ended(*places[0], OVER, 1.0)
    assert policy.choose(ask("four"), 1.0) is HELD
    assert [gone.id for gone, _ in policy.let_go(1.0)] == ["three"]


def test_flow_control_refuses_what_has_waited_too_long():
    """At its time to live."""
    policy = flow()
    for name in ("one", "two", "three"):
        policy.choose(ask(name), 0.0)
    assert [(gone.id, chosen) for gone, chosen in policy.let_go(TTL_S)] == [("three", None)]


def test_the_default_detector_looks_at_queues_and_kv_usage():
    """Mean of the fuller of the two over the pool: 1 is saturated, whichever it is."""
    assert made("llm_d_flow", FULL).choose(ask("r"), 0.1) is HELD
    kv_full = {key: Load(running=9, waiting=0, kv_usage=0.8) for key in "ab"}
    assert made("llm_d_flow", kv_full).choose(ask("r"), 0.1) is HELD
    one_free = {**FULL, "a": Load(running=0, waiting=0, kv_usage=0.0)}
    assert made("llm_d_flow", one_free).choose(ask("r"), 0.1) == "a"


def test_policies_for_overload_are_not_in_the_standard_suite():
    """Theirs begins with ours and ends with one that does nothing."""
    named = overloaded()
    assert named[:2] == ("extproc", "extproc_admission")
    assert named[-1] == "least_request"
    assert not {name for name, entry in CATALOG.items() if entry.for_overload} & set(comparable())
