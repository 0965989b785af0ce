"""Rules that look at load alone, each against an answer that follows from its published text by hand."""

from __future__ import annotations

import math

import pytest

from extproc.core.values.instance import Load
from extproc.sim.policies.catalog import load
from extproc.sim.policies.gpu_util import utilisation
from extproc.sim.policies.policy import Ending, Probe
from tests.sim.policies.counter import OVER, ask, busy, picks, publish, send, setting

FREE = {key: Load(running=0, waiting=0, kv_usage=0.0) for key in "abc"}


def made(name, loads=None, **options):
    """A policy that knows three idle instances, or those given."""
    policy = load(name)(setting(**options))
    publish(policy, FREE if loads is None else loads)
    return policy


def test_round_robin_takes_turns():
    """Six requests give each of three instances two, in the same order."""
    policy = made("round_robin")
    order = [policy.choose(ask(f"r{turn}"), 0.0) for turn in range(6)]
    assert order[:3] == order[3:]
    assert set(order) == {"a", "b", "c"}


def test_random_takes_any():
    """In forty draws all three appear."""
    policy = made("random")
    assert picks(lambda turn: policy.choose(ask(f"r{turn}"), 0.0)) == {"a", "b", "c"}


def test_least_request_takes_the_fewest_in_flight():
    """Two against one against none."""
    policy = made("least_request")
    busy(policy, {"a": 2, "b": 1})
    assert policy.choose(ask("r"), 0.0) == "c"


def test_power_of_two_never_takes_the_fullest():
    """Whichever two are drawn, the fuller of them loses; the emptiest is not always drawn."""

    def pick(seed):
        policy = made("power_of_two", seed=seed)
        busy(policy, {"a": 2, "b": 1})
        return policy.choose(ask("r"), 0.0)

    assert picks(pick) == {"b", "c"}


def test_peak_ewma_jumps_up_at_once_and_comes_down_slowly():
    """2 s stands at once; after a 10 s decay time a sample of 0 s leaves 2/e s, and so does no sample at all."""
    policy = made("peak_ewma", {"a": Load()})
    estimate_s = policy._rule.estimate_s
    policy.choose(ask("slow"), 0.0)
    policy.first_token(ask("slow"), "a", 2.0)
    assert estimate_s(policy.seen["a"], 2.0) == 2.0
    assert estimate_s(policy.seen["a"], 12.0) == pytest.approx(2 / math.e)
    policy.choose(ask("quick"), 12.0)
    policy.first_token(ask("quick"), "a", 12.0)
    assert estimate_s(policy.seen["a"], 12.0) == pytest.approx(2 / math.e)


def test_peak_ewma_multiplies_latency_with_requests_in_flight():
    """1 s x 4 is worse than 3 s x 1, and 1 s x 2 is better."""

    def pick(in_flight):
        policy = made("peak_ewma", {"a": Load(), "b": Load()})
        for name, ttft_s in (("a", 1.0), ("b", 3.0)):
            send(policy, name, ask(name), 10.0 - ttft_s)
            policy.first_token(ask(name), name, 10.0)
            policy.ended(ask(name), name, OVER, 10.0)
        busy(policy, {"a": in_flight}, now=10.0)
        return policy.choose(ask("r"), 10.0)

    assert (pick(3), pick(1)) == ("b", "a")


@pytest.mark.parametrize(("running", "shown"), [(0, 0.0), (1, 1.0), (200, 1.0)])
def test_gpu_utilisation_cannot_tell_busy_from_overloaded(running, shown):
    """One request reads as two hundred do."""
    assert utilisation(Load(running=running, waiting=running)) == shown


def test_gpu_util_takes_an_idle_instance_and_any_where_all_are_busy():
    """Only idleness is seen; an instance that does not report comes last."""
    loads = {"a": Load(running=1), "b": Load(running=0), "c": Load()}
    assert made("gpu_util", loads).choose(ask("r"), 0.0) == "b"
    overloaded = {"a": Load(running=1), "b": Load(running=250, waiting=90), "c": Load()}
    assert picks(lambda seed: made("gpu_util", overloaded, seed=seed).choose(ask("r"), 0.0)) == {"a", "b"}


def test_least_kv_takes_the_lowest_usage_and_the_unknown_last():
    """Nothing else counts: not even a long queue."""
    loads = {"a": Load(kv_usage=0.5), "b": Load(kv_usage=0.4, waiting=50), "c": Load()}
    assert made("least_kv", loads).choose(ask("r"), 0.0) == "b"


def test_a_session_stays_where_it_is_hashed_to():
    """Ten turns of a session go to one instance; a hundred sessions use all of them."""
    policy = made("session_hash")

    def at(session, turn):
        request = ask(f"{session}/{turn}", session=session)
        where = policy.choose(request, 0.0)
        policy.ended(request, where, OVER, 1.0)
        return where

    assert len({at("s", turn) for turn in range(10)}) == 1
    assert {at(f"s{number}", 0) for number in range(100)} == {"a", "b", "c"}


def test_no_instance_gets_more_than_a_quarter_above_the_average():
    """Thirty requests of one session on three instances: at most ceil(1.25 x 30 / 3) = 13 each."""
    policy = made("session_hash")
    for turn in range(30):
        policy.choose(ask(f"r{turn}", session="one"), 0.0)
    counts = sorted(seen.in_flight for seen in policy.seen.values())
    assert counts[-1] == 13
    assert sum(counts) == 30


def test_most_sessions_stay_when_an_instance_leaves():
    """Consistent hashing: only the sessions of the one that is gone move."""

    def places(policy):
        found = {}
        for number in range(200):
            request = ask(f"r{number}", session=f"s{number}")
            found[number] = policy.choose(request, 0.0)
            policy.ended(request, found[number], OVER, 0.0)
        return found

    before = places(made("session_hash"))
    after = places(made("session_hash", {"a": Load(), "b": Load()}))
    assert all(after[number] == where for number, where in before.items() if where != "c")


def test_least_load_weighs_kv_pressure_against_tokens_sent():
    """0.15 k/(1-k) at k = 0.5 is 0.15 s, as much as 300 tokens at 2,000 tokens/s."""
    loads = {"a": Load(kv_usage=0.5, waiting=0), "b": Load(kv_usage=0.0, waiting=0)}
    policy = made("least_load", loads)
    send(policy, "b", ask("first", 280))
    assert policy.choose(ask("second", 40), 0.0) == "b"  # 0.14 s
    assert policy.choose(ask("third", 40), 0.0) == "a"  # 0.16 s by now


def test_least_load_forgets_tokens_sent_at_the_next_poll():
    """After ten seconds the report tells of them, and the credit is gone; ends before that do not count."""
    policy = made("least_load", {"a": Load(kv_usage=0.0, waiting=0), "b": Load(kv_usage=0.01, waiting=0)})
    send(policy, "a", ask("big", 6400))
    policy.ended(ask("big", 6400), "a", OVER, 1.0)
    assert policy.choose(ask("r1", 10), 9.0) == "b"
    assert policy.choose(ask("r2", 10), 10.0) == "a"


def test_least_load_counts_requests_where_nothing_reports():
    """A dark fleet is joined at its shortest queue."""
    policy = made("least_load", {"a": Load(), "b": Load()})
    busy(policy, {"a": 1})
    assert policy.choose(ask("r"), 0.0) == "b"


def told(answers):
    """What each instance answers to a probe: requests in flight by name."""
    return lambda name: Probe(answers[name], answers[name], 0, 0.0)


def answered(policy, name, ttft_s, times=3):
    """Answers in the past, so fast."""
    for turn in range(times):
        request = ask(f"{name}{turn}")
        send(policy, name, request)
        policy.ended(request, name, Ending(200, ttft_s, ttft_s, 5, None), 0.0)


def test_prequal_takes_the_fastest_of_the_cold():
    """Nobody is above the 0.84 quantile: the lowest latency wins, whoever has the fewest in flight."""
    policy = made("prequal", probe=told({"a": 1, "b": 1, "c": 1}))
    for name, ttft_s in (("a", 3.0), ("b", 1.0), ("c", 2.0)):
        answered(policy, name, ttft_s)
    policy._rule._pool.clear()
    policy.choose(ask("fills the pool"), 1.0)
    assert policy.choose(ask("r"), 1.0) == "b"


def test_prequal_leaves_a_hot_instance_alone_however_fast_it_is():
    """One of ten with ninety in flight is above the quantile."""
    names = "abcdefghij"
    policy = made(
        "prequal", {key: Load() for key in names}, probe=told({key: 90 if key == "a" else 1 for key in names})
    )
    for name in names:
        answered(policy, name, 0.1 if name == "a" else 2.0)
    chosen = [policy.choose(ask(f"r{turn}"), 5.0 + turn * 0.01) for turn in range(100)]
    assert "a" not in chosen[8:]


def test_prequal_uses_a_probe_once_and_forgets_old_ones():
    """Without fresh probes it draws at random."""
    policy = made("prequal", probe=told({"a": 0, "b": 5, "c": 5}))
    policy.choose(ask("r0"), 0.0)
    assert len(policy._rule._pool) == 3
    policy.choose(ask("r1"), 0.5)
    assert len(policy._rule._pool) == 4  # one used, one removed as the oldest, three new
    policy.choose(ask("r2"), 5.0)
    assert {probe.at_s for probe in policy._rule._pool} == {5.0}
