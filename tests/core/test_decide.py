"""The decision: who may serve, at what cost, and how near-ties are settled."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from extproc.core.decide import decide
from extproc.core.fleet.events import Record, State
from extproc.core.snapshot import Policy
from extproc.core.values.decision import Reason
from extproc.core.values.instance import Capability, Lifecycle, Load
from tests.core.builders import MODEL, blocks, instance, publish, request, router


@pytest.mark.parametrize(
    ("changes", "ask", "reason"),
    [
        ({"models": ("other",)}, {}, Reason.MODEL_NOT_SERVED),
        ({"capabilities": (Capability.TOOLS,)}, {"needs": frozenset({Capability.VISION})}, Reason.CAPABILITY_MISSING),
        ({"lifecycle": Lifecycle.STARTING, "models": ()}, {}, Reason.NOT_READY),
        ({"lifecycle": Lifecycle.LOADING, "models": ()}, {}, Reason.NOT_READY),
        ({"lifecycle": Lifecycle.DRAINING}, {}, Reason.NOT_READY),
        ({"lifecycle": Lifecycle.UNHEALTHY}, {}, Reason.NOT_READY),
        ({"lifecycle": Lifecycle.STOPPED}, {}, Reason.NOT_READY),
        ({"max_model_len_tokens": 4096}, {"prompt_tokens": 6000}, Reason.CONTEXT_TOO_LONG),
        ({"kv_blocks": 100}, {"prompt_tokens": 3000}, Reason.KV_TOO_SMALL),
        ({"kv_blocks": 400, "data_parallel": 4}, {"prompt_tokens": 3000}, Reason.KV_TOO_SMALL),
    ],
)
def test_an_instance_that_cannot_serve_is_rejected_with_its_reason(
    changes: dict[str, Any], ask: dict[str, Any], reason: Reason
) -> None:
    made = router(instance(**changes))
    decision = decide(request(**ask), made.snapshot(), 0.0, 0.0)
    assert decision.chosen is None
    assert [r.reason for r in decision.rejected] == [reason]
    assert decision.reason is reason


def test_without_any_instance_the_decision_says_so() -> None:
    assert decide(request(), router().snapshot(), 0.0, 0.0).reason is Reason.NO_INSTANCE


def test_a_prompt_that_only_might_be_too_long_is_left_to_the_engine() -> None:
    made = router(instance(max_model_len_tokens=4096))
    assert decide(request(prompt_tokens=5000), made.snapshot(), 0.0, 0.0).chosen is not None


def test_an_instance_without_room_for_all_the_output_asked_for_is_a_last_resort() -> None:
    made = router(instance("short", max_model_len_tokens=4096), instance("long", hardware="l40s"))
    decision = decide(request(prompt_tokens=3000, max_output_tokens=2000), made.snapshot(), 0.0, 0.0)
    assert decision.chosen is not None
    assert decision.chosen.instance.id == "long"
    assert [(r.instance_id, r.reason, r.needs, r.has) for r in decision.rejected] == [
        ("short", Reason.CONTEXT_TOO_LONG, 5000, 4096)
    ]
    alone = decide(request(max_output_tokens=8000), router(instance(max_model_len_tokens=4096)).snapshot(), 0.0, 0.0)
    assert alone.chosen is not None


@pytest.mark.parametrize(
    ("large", "reason"),
    [
        ({"lifecycle": Lifecycle.UNHEALTHY}, Reason.NOT_READY),
        ({"lifecycle": Lifecycle.DRAINING}, Reason.NOT_READY),
        ({"lifecycle": Lifecycle.STOPPED}, Reason.CONTEXT_TOO_LONG),  # it is gone, and nobody knows of another
        ({"lifecycle": Lifecycle.LOADING, "models": (), "max_model_len_tokens": None}, Reason.NOT_READY),
        ({"lifecycle": Lifecycle.DRAINING, "max_model_len_tokens": 5000}, Reason.CONTEXT_TOO_LONG),
    ],
)
def test_what_time_will_mend_is_not_told_as_the_clients_mistake(large: dict[str, Any], reason: Reason) -> None:
    made = router(instance("small", max_model_len_tokens=4096), instance("large", **large))
    decision = decide(request(prompt_tokens=20_000), made.snapshot(), 0.0, 0.0)
    assert decision.chosen is None
    assert decision.reason is reason


def test_a_publisher_that_froze_makes_its_instance_alone_stale() -> None:
    made = router(instance("frozen"), instance("alive"), policy=Policy(stale_after_s=5.0))
    publish(made, instance("alive"), 6.0)
    decision = decide(request(), made.snapshot(), 6.0, 0.0)
    assert decision.chosen is not None
    assert decision.chosen.instance.id == "alive"
    assert [(r.instance_id, r.reason) for r in decision.rejected] == [("frozen", Reason.STALE)]


def test_when_all_have_fallen_silent_none_is_left_out_for_it() -> None:
    made = router(instance("slow", hardware="l40s"), instance("fast"), policy=Policy(stale_after_s=5.0))
    made.take(made.fleet.heard(6.0))
    decision = decide(request(), made.snapshot(), 6.0, 0.0)
    assert decision.chosen is not None
    assert decision.chosen.instance.id == "fast"
    assert not decision.rejected


def test_a_silent_registry_makes_nobody_stale() -> None:
    made = router(instance("a"), policy=Policy(stale_after_s=5.0))
    made.fleet.lost()
    assert decide(request(), made.snapshot(), 1000.0, 0.0).chosen is not None


def test_limits_of_concurrency_and_queue_reject() -> None:
    made = router(instance("a", max_num_seqs=2), policy=Policy(max_in_flight=4))
    for number in range(4):
        assert made.choose(request(str(number)), 0.0, 0.0).chosen is not None
    assert made.choose(request("more"), 0.0, 0.0).reason is Reason.AT_CONCURRENCY_LIMIT
    queue = router(instance("a", max_num_seqs=2), policy=Policy(max_queued=1))
    for number in range(3):
        assert queue.choose(request(str(number)), 0.0, 0.0).chosen is not None
    assert queue.choose(request("more"), 0.0, 0.0).reason is Reason.QUEUE_TOO_LONG


def test_the_faster_hardware_is_cheaper() -> None:
    made = router(instance("slow", hardware="l40s"), instance("fast", hardware="h200_sxm"))
    decision = decide(request(), made.snapshot(), 0.0, 0.99)
    assert decision.chosen is not None
    assert decision.chosen.instance.id == "fast"
    assert [other.instance.id for other in decision.alternatives] == ["slow"]


def test_a_session_returns_to_its_prefix_until_the_queue_there_costs_more() -> None:
    made = router(instance("a"), instance("b"))
    turn = {"prefix": blocks(1, 60), "prompt_tokens": 4000}
    first = made.choose(request("first", **turn), 0.0, 0.0).chosen
    assert first is not None
    made.release("first", 1.0)
    again = made.choose(request("again", **turn), 2.0, 0.0).chosen
    assert again is not None
    assert again.instance.id == first.instance.id
    assert again.cached_tokens == 60 * 64
    made.release("again", 3.0)
    for number in range(40):  # others, sent to the holder by its queue alone
        made.ledger.move(str(number), first.instance.key, 3.0)
        made.book(request(str(number), prompt_tokens=8000), first, 3.0)
    elsewhere = made.choose(request("later", **turn), 3.0, 0.0).chosen
    assert elsewhere is not None
    assert elsewhere.instance.id != first.instance.id


def test_two_hundred_equal_requests_at_once_spread_over_four_idle_instances() -> None:
    made = router(*(instance(name) for name in "abcd"))
    chosen = Counter(
        decision.chosen.instance.id
        for number in range(200)
        if (decision := made.choose(request(str(number)), 0.0, (number * 0.37) % 1.0)).chosen
    )
    assert sum(chosen.values()) == 200
    assert max(chosen.values()) < 0.35 * 200


def test_work_is_shared_in_proportion_to_what_instances_can_do() -> None:
    made = router(instance("h100", hardware="h100_sxm"), instance("l40s", hardware="l40s"))
    chosen = Counter(
        decision.chosen.instance.id
        for number in range(300)
        if (decision := made.choose(request(str(number)), 0.0, 0.5)).chosen
    )
    assert chosen["h100"] > 2 * chosen["l40s"] > 0


def test_near_ties_are_drawn_and_clear_winners_are_not() -> None:
    made = router(instance("a"), instance("b"))

    def drawn() -> set[str]:
        chosen = [decide(request(), made.snapshot(), 0.0, draw).chosen for draw in (0.0, 0.9)]
        return {candidate.instance.id for candidate in chosen if candidate}

    assert len(drawn()) == 2
    made.choose(request("busy", prompt_tokens=20_000), 0.0, 0.0)
    assert len(drawn()) == 1


def test_the_nearer_the_kv_blocks_are_to_running_out_the_more_preemption_is_expected() -> None:
    """Nothing while there is ample room; never more than to compute the prompt once more."""
    made = router(instance("a", kv_blocks=2000))  # 32,000 tokens; each request grows from 4,000 to 8,000
    costs = []
    for number in range(8):
        asked = request(str(number), prompt_tokens=4_000, expected_output_tokens=4_000)
        decision = made.choose(asked, 0.0, 0.0)
        assert decision.chosen is not None
        costs.append(decision.chosen.cost)
    pressures_s = [cost.pressure_s for cost in costs]
    assert pressures_s[0] == 0.0
    assert 0.0 < pressures_s[2] < pressures_s[3] < pressures_s[4] < pressures_s[7] <= costs[0].prefill_s


def test_engine_reported_load_of_others_counts() -> None:
    busy = Load(running=200, waiting=30, kv_usage=0.9)
    made = router(instance("busy", load=busy), instance("idle"))
    decision = decide(request(), made.snapshot(), 0.0, 0.5)
    assert decision.chosen is not None
    assert decision.chosen.instance.id == "idle"


def test_a_decision_changes_nothing() -> None:
    made = router(instance("a"), instance("b"))
    decide(request(prefix=blocks(1, 5)), made.snapshot(), 0.0, 0.0)
    assert made.ledger.in_flight() == {}
    assert made.prefixes.matches(blocks(1, 5)) == {}


def test_model_names_select_among_pools() -> None:
    made = router(instance("a", models=("other", MODEL)), instance("b", models=("third",)))
    decision = decide(request(), made.snapshot(), 0.0, 0.0)
    assert decision.chosen is not None
    assert decision.chosen.instance.id == "a"
    assert decide(request(model="nowhere"), made.snapshot(), 0.0, 0.0).reason is Reason.MODEL_NOT_SERVED


def test_an_instance_that_has_just_become_ready_gets_its_share_little_by_little() -> None:
    """A burst goes to the warm ones first, though the new one is idle; later it gets as much as they."""
    made = router()
    made.take(made.fleet.resync(State(None, tuple(Record(instance(name), 0.0, 1e9) for name in "ab"), {}), 0.0))

    def burst(begin: int, now: float) -> Counter[str]:
        sent = Counter[str]()
        for number in range(begin, begin + 30):
            decision = made.choose(request(f"r{number}"), now, 0.0)
            assert decision.chosen is not None
            sent[decision.chosen.instance.id] += 1
        return sent

    burst(0, 1.0)
    publish(made, instance("new", load=Load()), 2.0)
    early = burst(100, 2.5)
    assert 1 <= early["new"] <= 4
    publish(made, instance("new", load=Load()), 30.0)
    assert burst(200, 30.0)["new"] > 20  # it has caught up with the others
