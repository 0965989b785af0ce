"""The rules of rivals that have one instance compute the prompt and another one answer."""

from __future__ import annotations

from dataclasses import replace

import pytest

from extproc.core.values.instance import Lifecycle, Load, Role
from extproc.sim.policies.catalog import CATALOG
from extproc.sim.policies.dynamo_pd import dynamo_pd, dynamo_pd_conditional
from extproc.sim.policies.llm_d_pd import llm_d_pd, llm_d_pd_threshold
from extproc.sim.policies.pair_desk import PairDesk
from extproc.sim.policies.policy import Pair
from tests.sim.policies.counter import BLOCK_TOKENS, BROKEN, OVER, ask, instance, setting

PAIRS = [name for name, entry in CATALOG.items() if entry.for_pairs and "paired" not in name]
ROLES = {"p": Role.PREFILL, "q": Role.PREFILL, "d": Role.DECODE, "e": Role.DECODE}


def made(factory, roles=ROLES, loads=None, **changes):
    """A policy that has heard of a fleet."""
    policy = factory(setting())
    for name, role in roles.items():
        load = (loads or {}).get(name, Load(running=0, waiting=0, kv_usage=0.0))
        policy.published(instance(name, load, **({"role": role, "kv_domain": "x"} | changes)), 0.0, 0.0)
    return policy


@pytest.mark.parametrize("name", PAIRS)
def test_each_half_goes_to_one_that_takes_it(name):
    """An instance that only answers always gets somebody for the prompt; without one the request is refused."""
    policy = made(CATALOG[name].factory)
    for turn in range(20):
        chosen = policy.choose(ask(f"r{turn}", 64), 0.01 * turn)
        assert isinstance(chosen, Pair)
        assert (chosen.answers in "de", chosen.prefills in "pq") == (True, True)
    alone = made(CATALOG[name].factory, {"d": Role.DECODE})
    assert alone.choose(ask("r"), 0.0) is None
    assert made(CATALOG[name].factory, {"p": Role.PREFILL}).choose(ask("r"), 0.0) is None
    assert made(CATALOG[name].factory, lifecycle=Lifecycle.DRAINING).choose(ask("r"), 0.0) is None


@pytest.mark.parametrize("name", PAIRS)
def test_nobody_shares_a_request_with_itself_or_outside_of_its_domain(name):
    """Of two that can do all one takes each half; without a domain one does it all."""
    policy = made(CATALOG[name].factory, {"a": Role.BOTH, "b": Role.BOTH})
    chosen = policy.choose(ask("r", 6400), 0.0)
    assert isinstance(chosen, Pair)
    assert {chosen.answers, chosen.prefills} == {"a", "b"}
    assert made(CATALOG[name].factory, {"a": Role.BOTH, "b": Role.BOTH}, kv_domain="").choose(ask("r"), 0.0) in {
        "a",
        "b",
    }


@pytest.mark.parametrize("name", PAIRS)
def test_all_that_was_booked_is_released(name):
    """At either desk, whatever the end, told by whom."""
    policy = made(CATALOG[name].factory)
    assert isinstance(policy, PairDesk)
    broke = replace(BROKEN, partner_broke=True)
    for turn, ending in enumerate((OVER, BROKEN, broke) * 10):
        request = ask(f"r{turn}", 640, tuple(range(turn % 3, turn % 3 + 10)))
        chosen = policy.choose(request, 2.0 * turn)
        assert isinstance(chosen, Pair)
        if turn % 2:
            policy.handed_over(request, chosen.answers, 2.0 * turn + 0.1)
            policy.first_token(request, chosen.answers, 2.0 * turn + 0.2)
        policy.ended(request, chosen.answers, ending, 2.0 * turn + 1.0)
    for desk in (policy._answers, policy._prefills):
        assert {(seen.in_flight, seen.prefill_tokens) for seen in desk.seen.values()} == {(0, 0)}


def test_who_broke_is_left_alone_and_not_its_partner():
    """Of a pair whose prompt was lost, the one that answers takes the next."""
    policy = made(llm_d_pd, {"p": Role.PREFILL, "q": Role.PREFILL, "d": Role.DECODE})
    request = ask("r")
    first = policy.choose(request, 0.0)
    policy.ended(request, "d", replace(BROKEN, partner_broke=True), 0.1)
    second = policy.choose(ask("s"), 0.2)
    assert second.answers == "d"
    assert second.prefills != first.prefills


def test_llm_d_s_guide_answers_by_requests_in_flight_and_prefills_by_tokens():
    """The second goes elsewhere; a prompt that is held sticks, and an end frees its tokens."""
    policy = made(llm_d_pd)
    first, second = policy.choose(ask("r", 640), 0.0), policy.choose(ask("s", 6400), 0.1)
    assert first.answers != second.answers
    assert first.prefills != second.prefills
    third = policy.choose(ask("t", 640), 0.2)
    assert third.prefills == first.prefills  # 640 tokens wait there, 6,400 at the other
    policy.handed_over(ask("s", 6400), second.answers, 0.3)
    assert policy.choose(ask("u", 640), 0.4).prefills == second.prefills


def test_llm_d_s_threshold_looks_at_what_the_one_that_answers_does_not_hold():
    """511 uncached tokens are computed where they are answered, 512 elsewhere."""
    roles = {"p": Role.PREFILL, "w": Role.BOTH}
    policy = made(llm_d_pd_threshold, roles)
    held = tuple(range(10))
    assert isinstance(policy.choose(ask("first", 640, held), 0.0), Pair)
    assert policy.choose(ask("more", 640 + 511, held), 0.1) == "w"
    assert isinstance(policy.choose(ask("much", 640 + 512, held), 0.2), Pair)


def test_llm_d_s_threshold_prefers_the_cache_and_then_the_short_queue():
    """2 for all of the prompt, 1 for the shortest queue."""
    loads = {"d": Load(waiting=5), "e": Load(waiting=0)}
    policy = made(llm_d_pd_threshold, loads=loads)
    held = tuple(range(10))
    assert policy.choose(ask("r", 640, held), 0.1).answers == "e"
    assert policy.choose(ask("s", 640, held), 0.2).answers == "e"
    for name, load in {"d": Load(waiting=0), "e": Load(waiting=5)}.items():
        policy.published(instance(name, load, role=Role.DECODE, kv_domain="x"), 0.3, 0.3)
    assert policy.choose(ask("t", 640, held), 0.4).answers == "e"
    assert policy.choose(ask("u", 640), 0.5).answers == "d"


def test_dynamo_answers_by_blocks_alone_and_prefills_by_what_caches_hold():
    """What a decode worker holds is worth nothing, unless the switch for that is on."""
    held = tuple(range(10))
    policy = made(dynamo_pd)
    policy.cache_changed("p", held, (), 0.0)
    policy.cache_changed("d", held, (), 0.0)
    chosen = [policy.choose(ask(f"r{turn}", 640, held), 0.1 * turn) for turn in range(8)]
    assert chosen[0].prefills == "p"
    assert {pair.answers for pair in chosen} == {"d", "e"}


def test_dynamo_s_switch_lets_a_decode_worker_do_what_little_it_lacks():
    """Fewer than 2,048 tokens and less than 0.7 of the prompt."""
    roles = {"p": Role.PREFILL, "w": Role.BOTH}
    held = tuple(range(40))
    for tokens, lacking, alone in ((2560 + 2047, 2047, True), (2560 + 2048, 2048, False), (300, 300, False)):
        policy = made(dynamo_pd_conditional, roles)
        policy.cache_changed("w", held, (), 0.0)
        blocks = held if tokens > 2560 else ()
        assert tokens - len(blocks) * BLOCK_TOKENS == lacking
        assert (policy.choose(ask("r", tokens, blocks), 0.1) == "w") is alone
    always = made(dynamo_pd, roles)
    always.cache_changed("w", held, (), 0.0)
    assert isinstance(always.choose(ask("r", 2560, held), 0.1), Pair)


@pytest.mark.parametrize("factory", [dynamo_pd, dynamo_pd_conditional])
def test_dynamo_s_routers_tell_each_other_of_both_halves(factory):
    """A peer's requests count as one's own."""
    one, other = made(factory), made(factory)
    first = one.choose(ask("r", 6400), 0.0)
    for item in one.news():
        other.hear(item, 0.1)
    second = other.choose(ask("s", 640), 0.2)
    assert (second.answers != first.answers, second.prefills != first.prefills) == (True, True)
