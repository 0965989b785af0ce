"""The bookkeeping that rival routers share."""

from __future__ import annotations

import pytest

from extproc.core.values.instance import Lifecycle, Load
from extproc.sim.policies.catalog import CATALOG, comparable
from extproc.sim.policies.desk import Desk
from extproc.sim.policies.holdings import Holdings, LruHoldings
from extproc.sim.policies.policy import Probe
from tests.sim.policies.counter import BLOCK_TOKENS, BROKEN, OVER, ask, instance, picks, publish, send, setting

RIVALS = [name for name in comparable() if name not in ("extproc", "extproc_admission", "oracle")]  # they keep no desk


def first(setting_, **options):
    """A desk whose rule takes the first candidate."""
    return Desk(setting_, lambda ask, candidates, random, now: candidates[0], **options)


def test_in_flight_and_prefill_tokens_are_booked_and_return_to_zero():
    """Dispatch books both, the first token releases the prefill, the end the rest."""
    desk = first(setting())
    publish(desk, {"a": Load()})
    request = ask("r", 640)
    assert desk.choose(request, 0.0) == "a"
    seen = desk.seen["a"]
    assert (seen.in_flight, seen.prefill_tokens) == (1, 640)
    desk.first_token(request, "a", 0.5)
    desk.first_token(request, "a", 0.6)  # told twice counts once
    assert (seen.in_flight, seen.prefill_tokens) == (1, 0)
    desk.ended(request, "a", OVER, 1.0)
    desk.ended(request, "a", OVER, 1.1)
    assert (seen.in_flight, seen.prefill_tokens) == (0, 0)


def test_a_request_that_never_answers_releases_its_prefill_at_its_end():
    """A broken request leaves nothing behind."""
    desk = first(setting())
    publish(desk, {"a": Load()})
    request = ask("r", 640)
    desk.choose(request, 0.0)
    desk.ended(request, "a", BROKEN, 1.0)
    assert (desk.seen["a"].in_flight, desk.seen["a"].prefill_tokens) == (0, 0)


def test_a_retry_to_the_same_instance_is_booked_once():
    """The same request twice at one instance is one request in flight."""
    desk = first(setting())
    publish(desk, {"a": Load()})
    request = ask("r")
    desk.choose(request, 0.0)
    desk.choose(request, 0.1)
    assert desk.seen["a"].in_flight == 1


def test_only_uncached_tokens_are_booked():
    """A prompt whose first half was sent there before books its second half."""
    desk = first(setting(), holdings=LruHoldings(100))
    publish(desk, {"a": Load()})
    old = ask("old", 320, (1, 2, 3, 4, 5))
    desk.choose(old, 0.0)
    desk.first_token(old, "a", 0.1)
    desk.choose(ask("new", 640, (1, 2, 3, 4, 5, 6, 7, 8, 9, 10)), 0.2)
    assert desk.seen["a"].prefill_tokens == 320


@pytest.mark.parametrize(
    "changes",
    [
        {"lifecycle": Lifecycle.DRAINING},
        {"lifecycle": Lifecycle.STARTING},
        {"models": ("another",)},
        {"max_model_len_tokens": 640},  # no room for a single token of the answer
    ],
)
@pytest.mark.parametrize("name", RIVALS)
def test_no_policy_chooses_an_instance_that_cannot_serve(name, changes):
    """Every policy takes the other one, and refuses where there is none."""
    policy = CATALOG[name].factory(setting(probe=lambda instance_id: Probe(0, 0, 0, 0.0)))
    assert policy.choose(ask("early"), 0.0) is None
    policy.published(instance("a", **changes), 0.0, 0.0)
    assert policy.choose(ask("none"), 0.0) is None
    policy.published(instance("b"), 0.0, 0.0)
    assert {policy.choose(ask(f"r{turn}"), 0.0) for turn in range(20)} == {"b"}


@pytest.mark.parametrize("name", RIVALS)
def test_every_policy_releases_all_it_booked(name):
    """After a storm of requests with every kind of end, nothing is in flight anywhere."""
    policy = CATALOG[name].factory(setting(probe=lambda instance_id: Probe(1, 1, 0, 0.1)))
    publish(policy, {key: Load(running=1, waiting=0, kv_usage=0.1) for key in "abcd"})
    open_requests = []
    for turn in range(400):
        now = turn * 0.05
        shared = (*range(turn % 7, turn % 7 + 4), 1000 + turn)
        request = ask(f"r{turn}", 5 * BLOCK_TOKENS + 3, shared, session=f"s{turn % 7}")
        where = policy.choose(request, now)
        assert where in {"a", "b", "c", "d"}
        open_requests.append((request, where))
        if turn % 3:
            policy.first_token(*open_requests[-1], now + 0.01)
        if len(open_requests) > 20:
            policy.ended(*open_requests.pop(turn % 20), BROKEN if turn % 11 == 0 else OVER, now)
    for request, where in open_requests:
        policy.ended(request, where, OVER, 30.0)
    assert {(seen.in_flight, seen.prefill_tokens) for seen in policy.seen.values()} == {(0, 0)}


def test_an_instance_that_broke_is_left_alone_for_a_second():
    """It is a candidate again afterwards, and at once if nobody else is left."""
    desk = first(setting())
    publish(desk, {"a": Load(), "b": Load()})
    request = ask("r")
    assert desk.choose(request, 0.0) == "a"
    desk.ended(request, "a", BROKEN, 1.0)
    assert desk.choose(ask("soon"), 1.9) == "b"
    assert desk.choose(ask("later"), 2.0) == "a"
    desk.ended(ask("soon"), "b", BROKEN, 2.1)
    desk.ended(ask("later"), "a", BROKEN, 2.1)
    assert desk.choose(ask("panic"), 2.2) == "a"


def test_a_router_that_polls_sees_load_of_its_last_poll():
    """Reports between two polls are not seen before the second; lifecycles are seen at once."""
    desk = first(setting(), poll_s=10.0)
    desk.published(instance("a", Load(waiting=1)), 0.5, 1.0)
    desk.published(instance("a", Load(waiting=2)), 4.5, 5.0)
    desk.choose(ask("r1"), 9.0)
    assert desk.seen["a"].load.waiting == 1
    desk.choose(ask("r2"), 10.0)
    assert (desk.seen["a"].load.waiting, desk.seen["a"].observed_at_s) == (2, 4.5)
    desk.published(instance("a", Load(waiting=3), lifecycle=Lifecycle.DRAINING), 10.5, 11.0)
    assert desk.choose(ask("r3"), 12.0) is None
    assert desk.seen["a"].load.waiting == 2
    desk.published(instance("a", Load(waiting=4)), 20.5, 21.0)  # what came before the poll at 20 is seen by now
    assert desk.seen["a"].load.waiting == 3


def test_a_router_that_does_not_poll_sees_the_latest_report():
    """Without a period of its own, what is published counts."""
    desk = first(setting())
    publish(desk, {"a": Load(waiting=1)}, 0.0)
    publish(desk, {"a": Load(waiting=2)}, 0.2)
    assert desk.seen["a"].load.waiting == 2


def test_replicas_that_share_know_of_each_others_requests():
    """What one books, answers and ends, the other books, answers and ends when it hears of it."""
    here, there = (first(setting(replica=at, replicas=2), shares=True) for at in range(2))
    for desk in (here, there):
        publish(desk, {"a": Load()})
    request, seen = ask("r", 640), there.seen["a"]

    def tell():
        for news in here.news():
            there.hear(news, 1.0)

    here.choose(request, 0.0)
    tell()
    assert (seen.in_flight, seen.prefill_tokens) == (1, 640)
    here.first_token(request, "a", 0.2)
    tell()
    assert (seen.in_flight, seen.prefill_tokens) == (1, 0)
    here.ended(request, "a", OVER, 0.4)
    tell()
    assert seen.in_flight == 0
    assert list(here.news()) == []


def test_replicas_of_other_products_tell_nothing():
    """Only who shares has news."""
    desk = first(setting())
    publish(desk, {"a": Load()})
    desk.choose(ask("r"), 0.0)
    assert list(desk.news()) == []


def test_a_restarted_engine_holds_nothing():
    """A new incarnation begins with an empty cache; what it stores afterwards counts."""
    desk = first(setting(), holdings=Holdings())
    assert desk.hears_caches
    publish(desk, {"a": Load()})
    desk.cache_changed("a", (1, 2), (), 0.1)
    desk.choose(ask("r1", 128, (1, 2)), 0.2)
    assert desk.seen["a"].hit_tokens == 128
    desk.published(instance("a", lifecycle=Lifecycle.STARTING, incarnation="2"), 1.0, 1.0)
    desk.cache_changed("a", (1,), (), 2.0)
    desk.published(instance("a", incarnation="2"), 2.1, 2.1)
    desk.choose(ask("r2", 128, (1, 2)), 2.2)
    assert desk.seen["a"].hit_tokens == 64


@pytest.mark.parametrize("name", ["least_request", "llm_d_default", "dynamo_kv", "least_kv", "gpu_util", "preble"])
def test_equals_are_drawn_at_random(name):
    """Over seeds, each of three equal instances gets a first request."""

    def pick(seed):
        policy = CATALOG[name].factory(setting(seed=seed))
        publish(policy, {key: Load(running=0, waiting=0, kv_usage=0.0) for key in "abc"})
        return policy.choose(ask("r"), 0.0)

    assert picks(pick) == {"a", "b", "c"}


@pytest.mark.parametrize("name", RIVALS)
def test_the_same_seed_makes_the_same_choices(name):
    """Chance comes from the setting alone."""

    def run():
        policy = CATALOG[name].factory(setting(seed=5, probe=lambda key: Probe(ord(key) % 3, 1, 0, 0.1)))
        publish(policy, {key: Load(running=0, waiting=0, kv_usage=0.0) for key in "abcd"})
        return [policy.choose(ask(f"r{turn}", session=f"s{turn % 9}"), turn * 0.1) for turn in range(60)]

    assert run() == run()


def test_sending_past_the_rule_books_where_it_is_told():
    """The tests' own helper does what the other tests of rules rely on."""
    policy = CATALOG["least_request"].factory(setting())
    publish(policy, {"a": Load(), "b": Load()})
    send(policy, "b", ask("r"))
    assert [seen.in_flight for seen in policy.seen.values()] == [0, 1]
