"""Pairs of instances, one for the prompt and one for the answer: who can, what it takes, which is the best."""

from __future__ import annotations

import random
from collections.abc import Set
from typing import Any

import pytest

from extproc.core.decide import decide
from extproc.core.fleet.zones import Crossing, Zones
from extproc.core.pairs.disaggregation import Half, Pair, Transfer, hands_over, rank_pairs, transfer_bytes_s
from extproc.core.pairs.hand_over import HEADERS, WORKER_ID_TAG, HandOver, can_pair, hand_over_headers
from extproc.core.pairs.pairing import Pairing, as_candidate
from extproc.core.pricing.classes import ClassWeights
from extproc.core.snapshot import Policy, Snapshot
from extproc.core.values.decision import Candidate, Cost
from extproc.core.values.instance import Instance, Role
from extproc.core.values.placement import parse_placement
from extproc.core.values.request import Request
from tests.core.builders import MODEL, blocks, instance, request, router

KV_BYTES = 131_072  # of a token of the 8B model
BLOCK_S = 29e-6


def half(name: str, cost_s: float, held_tokens: int = 0, **changes: Any) -> Half:
    each = instance(name, **({"kv_domain": "d"} | changes))
    return Half(
        Candidate(each, Cost(queue_s=cost_s, prefill_s=0.0, decode_s=0.0, total_s=cost_s), 0, 0.01), held_tokens
    )


def best_pair(asked: Request, snapshot: Snapshot, now: float, full: Set[str] = frozenset()) -> Pair | None:
    return next(iter(Pairing(asked, snapshot, now, full).sound()), None)


def test_only_members_of_one_domain_hand_over_and_each_by_its_role() -> None:
    """Nobody hands over to itself."""
    made: dict[str, Instance] = {
        name: instance(name, **changes)
        for name, changes in {
            "p": {"role": Role.PREFILL, "kv_domain": "d"},
            "q": {"role": Role.DECODE, "kv_domain": "d"},
            "b": {"kv_domain": "d"},
            "c": {"kv_domain": "d"},
            "x": {"kv_domain": "other"},
            "n": {},
            "m": {},
        }.items()
    }
    found = {(s, t) for s, source in made.items() for t, target in made.items() if hands_over(source, target)}
    assert found == {("p", "q"), ("p", "b"), ("p", "c"), ("b", "q"), ("c", "q"), ("b", "c"), ("c", "b")}


def test_a_transfer_is_a_round_trip_and_bytes_over_the_slowest_part_of_the_way() -> None:
    """Of the tokens that the target does not hold, and something for each block."""
    zones = Zones(crossings={("a", "b"): Crossing(rtt_s=0.001, bytes_s=1e9)})
    source = instance("p", kv_domain="d", zone="a", kv_transfer_bytes_s=50e9)
    target = instance("q", kv_domain="d", zone="a", kv_transfer_bytes_s=25e9, block_size_tokens=16)
    transfer = Transfer(model=MODEL, prompt_tokens=1600, zones=zones)
    assert transfer.seconds(source, target, 0) == pytest.approx(1600 * KV_BYTES / 25e9 + 100 * BLOCK_S)
    assert transfer.seconds(source, target, 1280) == pytest.approx(320 * KV_BYTES / 25e9 + 20 * BLOCK_S)
    assert transfer.seconds(source, target, 9999) == 0.0
    far = instance("r", kv_domain="d", zone="b", kv_transfer_bytes_s=25e9)
    assert transfer.seconds(source, far, 0) == pytest.approx(0.001 + 1600 * KV_BYTES / 1e9 + 100 * BLOCK_S)
    assert Transfer(model="mystery", prompt_tokens=1).seconds(source, target, 0) is None


def test_the_rate_is_the_operator_s_then_the_fabric_s_and_else_that_of_ethernet() -> None:
    """Without RDMA blocks go by TCP."""
    assert transfer_bytes_s(instance(kv_transfer_bytes_s=1.0, fabric="ib")) == 1.0
    assert transfer_bytes_s(instance(fabric="IB")) == transfer_bytes_s(instance(fabric="roce"))
    assert transfer_bytes_s(instance(fabric="ib")) > transfer_bytes_s(instance(fabric="ethernet"))
    assert transfer_bytes_s(instance()) == transfer_bytes_s(instance(fabric="ethernet"))


def test_the_transfer_decides_between_sources_that_cost_the_same() -> None:
    """And what it takes is weighed as waiting for the first token."""
    prefills = [half("near", 1.0, zone="a"), half("far", 1.0, zone="b")]
    zones = Zones(crossings={("a", "b"): Crossing(rtt_s=0.5)})
    transfer = Transfer(model=MODEL, prompt_tokens=1000, zones=zones, weights=ClassWeights(ttft=2.0))
    pair, other = rank_pairs(prefills, [half("d", 2.0, zone="b")], transfer)
    assert other.prefill.instance.id == "near"
    assert pair.prefill.instance.id == "far"
    assert pair.worth_s == pytest.approx(3.0 + 2.0 * pair.transfer_s)
    assert not rank_pairs(prefills[:1], [half("near", 2.0)], transfer)


def test_bytes_between_zones_are_paid_for_where_time_has_a_value() -> None:
    """1,000 tokens of 131,072 bytes at 0.02 a GB are 0.0026; at 3.6 an hour that is worth 2.6 s of waiting."""
    zones = Zones(crossings={("a", "b"): Crossing(rtt_s=0.0, price_per_gb=0.02)})
    source, target = instance("p", kv_domain="d", zone="a"), instance("d", kv_domain="d", zone="b")
    paid = Transfer(model=MODEL, prompt_tokens=1000, zones=zones, weights=ClassWeights(value_per_hour=3.6))
    assert paid.money_s(source, target, 0) == pytest.approx(2.62144)
    assert paid.money_s(source, target, 1000) == 0.0
    assert paid.money_s(source, instance("e", kv_domain="d", zone="a"), 0) == 0.0
    assert Transfer(model=MODEL, prompt_tokens=1000, zones=zones).money_s(source, target, 0) == 0.0
    (pair,) = rank_pairs([half("p", 1.0, zone="a")], [half("q", 1.0, zone="b")], paid)
    assert pair.worth_s == pytest.approx(2.0 + pair.transfer_s + 2.62144)
    assert as_candidate(pair).cost.money_s == pair.money_s


def test_the_tail_counts_the_whole_wait_of_a_pair() -> None:
    """Neither half waits for longer than nearly all do; both together wait 0.5 s longer, which count 20 times."""
    transfer = Transfer(model=MODEL, prompt_tokens=0, tail_from_s=1.5, tail_weight=20.0)
    (pair,) = rank_pairs([half("p", 1.0)], [half("q", 1.0)], transfer)
    assert (pair.tail_s, pair.worth_s) == (pytest.approx(10.0), pytest.approx(12.0))
    assert as_candidate(pair).cost.tail_s == pair.tail_s
    (short,) = rank_pairs([half("p", 0.5)], [half("q", 0.5)], transfer)
    assert (short.tail_s, short.worth_s) == (0.0, 1.0)


def test_of_the_tail_what_the_prompt_itself_takes_counts_an_eighth() -> None:
    """Of a pair, and of an instance by itself."""
    transfer = Transfer(model=MODEL, prompt_tokens=0, tail_from_s=1.0, tail_weight=16.0)
    own = Cost(queue_s=1.5, prefill_s=3.0, decode_s=0.0, total_s=4.5)
    assert transfer.tail_s(own, Cost(queue_s=0.0, prefill_s=0.0, decode_s=0.0, total_s=0.0), 0.5) == pytest.approx(
        16.0 * (2.0 + 2.0 / 8)
    )
    made = router(instance("a", max_model_len_tokens=100_000))
    made.tail.begins_s = 1.0
    chosen = decide(request("r", prompt_tokens=60_000), made.snapshot(), 1.0, 0.5).chosen
    assert chosen is not None
    assert chosen.cost.queue_s == 0.0
    assert chosen.cost.tail_s == pytest.approx(made.tail.weight / 8 * (chosen.cost.ttft_s - 1.0))


def test_the_pair_is_the_best_of_all_pairs() -> None:
    """Held against trying every one, over made-up fleets."""
    rng = random.Random(1)
    zones = Zones(crossings={("a", "b"): Crossing(rtt_s=0.05, bytes_s=2e9), ("a", "c"): Crossing(rtt_s=0.3)})
    transfer = Transfer(model=MODEL, prompt_tokens=8000, zones=zones)
    for _ in range(200):
        fleet = [
            {
                "kv_domain": rng.choice("de"),
                "zone": rng.choice("abc"),
                "fabric": rng.choice(["ib", "ethernet"]),
                "role": rng.choice(list(Role)),
            }
            for _ in range(12)
        ]
        prefills = [half(f"i{n}", rng.random(), **each) for n, each in enumerate(fleet)]
        decodes = [half(f"i{n}", rng.random(), rng.randrange(8000), **each) for n, each in enumerate(fleet)]
        sums = [
            p.candidate.cost.total_s + moved_s + d.candidate.cost.total_s
            for p in prefills
            for d in decodes
            if (moved_s := transfer.seconds(p.candidate.instance, d.candidate.instance, d.held_tokens)) is not None
        ]
        ranked = [pair.worth_s for pair in rank_pairs(prefills, decodes, transfer)]
        assert ranked == sorted(ranked)
        assert ranked[:1] == ([pytest.approx(min(sums))] if sums else [])


PD = Policy(hand_over=HandOver.LLM_D)
FLEET = (
    instance("p0", role=Role.PREFILL, kv_domain="d", fabric="ib"),
    instance("p1", role=Role.PREFILL, kv_domain="d", fabric="ib"),
    instance("d0", role=Role.DECODE, kv_domain="d", fabric="ib"),
    instance("alone"),
)


def test_without_a_way_to_hand_over_there_are_no_pairs() -> None:
    """The operator names the stack; a request without an answer needs no second instance either."""
    assert best_pair(request(), router(*FLEET).snapshot(), 0.0) is None
    assert best_pair(request(), router(instance("alone"), policy=PD).snapshot(), 0.0) is None
    assert best_pair(request(expected_output_tokens=0), router(*FLEET, policy=PD).snapshot(), 0.0) is None
    assert best_pair(request(), router(*FLEET, policy=PD).snapshot(), 0.0) is not None


def test_each_half_is_chosen_by_its_own_load_and_cache() -> None:
    """The prefill instance that is idle; then the other one, where it holds the prompt."""
    made = router(*FLEET, policy=PD)
    long = request("x", prompt_tokens=6400, prefix=blocks(1, 100))
    first = best_pair(long, made.snapshot(), 0.0)
    assert first is not None
    assert first.decode.instance.id == "d0"
    made.book(long, first.prefill, 0.0)
    other = best_pair(request("y", prompt_tokens=6400, prefix=blocks(2, 100)), made.snapshot(), 0.0)
    assert other is not None
    assert {first.prefill.instance.id, other.prefill.instance.id} == {"p0", "p1"}
    again = best_pair(request("z", prompt_tokens=6400, prefix=blocks(1, 100)), made.snapshot(), 60.0)
    assert again is not None
    assert again.prefill.instance.id == first.prefill.instance.id
    assert again.prefill.cached_tokens > 6000


def test_halves_must_fulfil_the_constraints_too() -> None:
    """Both of them: what one of the pair fails is refused for the pair."""
    fleet = (instance("p", role=Role.PREFILL, kv_domain="d", zone="us"), instance("q", kv_domain="d", zone="eu"))
    made = router(*fleet, policy=PD)
    assert best_pair(request(), made.snapshot(), 0.0) is not None
    assert best_pair(request(placement=parse_placement("zone=eu")), made.snapshot(), 0.0) is None
    assert best_pair(request(), made.snapshot(), 0.0, full={fleet[0].key}) is None


def test_a_pair_as_a_candidate_is_the_one_that_answers_at_the_cost_of_both() -> None:
    """So that it can be held against an instance that does all by itself."""
    pair = best_pair(request(), router(*FLEET, policy=PD).snapshot(), 0.0)
    assert pair is not None
    whole = as_candidate(pair)
    assert whole.instance.id == "d0"
    assert whole.cost.ttft_s == pytest.approx(pair.ttft_s)
    assert whole.cost.total_s == pytest.approx(pair.worth_s)


def test_each_stack_gets_the_headers_that_it_reads() -> None:
    """llm-d an address; Dynamo decimal worker ids, which an operator gives as tags."""
    answers = instance("q", address="10.0.0.2:8000", tags={WORKER_ID_TAG: "7"})
    prefills = instance("p", address="10.0.0.1:8000", tags={WORKER_ID_TAG: "12"})
    assert hand_over_headers(HandOver.LLM_D, answers, prefills) == (("x-prefiller-host-port", "10.0.0.1:8000"),)
    assert hand_over_headers(HandOver.LLM_D, answers, None) == ()
    assert dict(hand_over_headers(HandOver.DYNAMO, answers, prefills)) == {
        "x-worker-instance-id": "7",
        "x-prefill-instance-id": "12",
        "x-dynamo-routing-mode": "disaggregated",
    }
    assert dict(hand_over_headers(HandOver.DYNAMO, answers, None)) == {
        "x-worker-instance-id": "7",
        "x-dynamo-routing-mode": "aggregated",
    }
    assert hand_over_headers(HandOver.NONE, answers, prefills) == ()
    for stack in HandOver:
        assert {name for name, _ in hand_over_headers(stack, answers, prefills)} == set(HEADERS[stack])


def test_who_cannot_be_named_to_the_stack_is_no_partner() -> None:
    """A worker without an id, or with one that is no number."""
    plain, named = instance("a"), instance("b", tags={WORKER_ID_TAG: "7"})
    assert can_pair(HandOver.LLM_D, plain, plain)
    assert can_pair(HandOver.DYNAMO, named, named)
    for wrong in (plain, instance("c", tags={WORKER_ID_TAG: "7\r\nx: y"})):
        assert not can_pair(HandOver.DYNAMO, named, wrong)
        assert not can_pair(HandOver.DYNAMO, wrong, named)
    assert not can_pair(HandOver.NONE, named, named)
