"""Which requests are rolled out, what shadow leaves untouched, and how a choice of Envoy's is held against ours."""

from __future__ import annotations

import pytest

from extproc.core.admission.admission import Admission
from extproc.core.pairs.hand_over import HandOver
from extproc.core.rollout import Went, rolled_out, went
from extproc.core.router import Router
from extproc.core.snapshot import Policy
from extproc.core.values.decision import Decision, Reason
from extproc.core.values.instance import Lifecycle, Role
from extproc.core.values.option import Option
from extproc.core.values.outcome import Outcome
from tests.core.builders import blocks, features, instance, request, router

SHARES = (0.0, 0.01, 0.1, 0.5, 0.9, 1.0)


@pytest.mark.parametrize("kind", ["session", "tenant", "request"])
def test_about_the_share_is_in_and_a_greater_one_only_adds(kind: str) -> None:
    """For whatever the requests are drawn by."""
    names = [f"{kind}-{number}" for number in range(4000)]
    before: set[str] = set()
    for share in SHARES:
        drawn = {name for name in names if rolled_out(share, *_drawn_by(kind, name))}
        assert before <= drawn
        assert len(drawn) == pytest.approx(share * len(names), abs=100)  # three standard deviations at a half
        before = drawn
    assert len(before) == len(names)


def _drawn_by(kind: str, name: str) -> tuple[str, str, str]:
    return (name if kind == "session" else "", name if kind == "tenant" else "", name if kind == "request" else "1")


def test_a_conversation_stays_on_one_side_and_so_does_a_tenant_that_tells_none() -> None:
    for number in range(50):
        session, tenant = f"s{number}", f"t{number}"
        assert len({rolled_out(0.5, session, tenant, f"{turn}") for turn in range(20)}) == 1
        assert len({rolled_out(0.5, "", tenant, f"{turn}") for turn in range(20)}) == 1
    assert len({rolled_out(0.5, "", "", f"{turn}") for turn in range(20)}) == 2


def test_sessions_of_the_same_name_are_drawn_apart_for_each_tenant() -> None:
    assert len({rolled_out(0.5, "1", f"t{number}", "r") for number in range(50)}) == 2


def test_regret_is_what_it_costs_more_than_at_the_cheapest() -> None:
    fast, slow, out = instance("fast"), instance("slow", hardware="l40s"), instance("out", lifecycle=Lifecycle.DRAINING)
    made = router(fast, slow, out)
    weighed = made.weigh((Option(request()),), 0.0, 0.0, name_all=True).decision
    first, second = weighed.candidates
    assert went(first, weighed, fast) == Went(fast.key, agrees=True, regret_s=0.0)
    assert went(first, weighed, slow) == Went(slow.key, False, second.cost.total_s - first.cost.total_s)
    assert went(first, weighed, out) == Went(out.key, False, unfit=Reason.NOT_READY)
    assert went(None, Decision(None), fast) == Went(fast.key, agrees=False)


def test_half_a_request_is_no_whole_one_also_where_a_pair_would_have_served() -> None:
    """What Envoy sends by itself is whole, and nothing is held against an instance for a pair that was dearer."""
    halves = [instance(role.value, role=role, kv_domain="d") for role in (Role.PREFILL, Role.DECODE)]
    made = router(*halves, instance("whole"), policy=Policy(hand_over=HandOver.LLM_D))
    weighed = made.weigh((Option(request()),), 0.0, 0.0, name_all=True).decision
    assert (weighed.rejected, weighed.partner) == ((), None)
    for half in halves:
        assert went(weighed.chosen, weighed, half) == Went(half.key, False, unfit=Reason.ROLE_TAKES_HALF)


def test_all_that_could_serve_are_named_where_all_are_asked_for() -> None:
    made = router(*(instance(f"i{number}") for number in range(9)))
    usual = made.weigh((Option(request()),), 0.0, 0.3).decision
    every = made.weigh((Option(request()),), 0.0, 0.3, name_all=True).decision
    assert (len(usual.candidates), len(every.candidates)) == (3, 9)
    assert every.candidates[:3] == usual.candidates


def test_weighing_and_looking_book_and_hold_nothing() -> None:
    made = router(instance("a"), policy=Policy(max_in_flight=1, admission=Admission()))
    option = Option(request(prefix=blocks(0, 10)))
    for _ in range(3):
        assert made.weigh((option,), 0.0, 0.0).decision.chosen is not None
        looked = made.look((option,), 0.0, 0.0)
        assert looked is not None
        assert looked.decision.chosen is not None
    assert made.ledger.in_flight() == {}
    assert not made.prefixes.entries
    made.choose(request("other"), 0.0, 0.0)
    assert made.look((option,), 0.0, 0.0) is None  # it would be held
    assert made.gate is not None
    assert not len(made.gate.room)


def seen(made: Router, sent_s: float, now: float, status: int | None = 200) -> None:
    """A long prompt is seen at instance a as its answer begins."""
    asked = request(prefix=blocks(0, 500), prompt_tokens=8000, tokens_per_block=16.0)
    (found, *_) = made.weigh((Option(asked),), sent_s, 0.0, name_all=True).decision.candidates
    made.book_seen(asked, found, sent_s, now, status)


def test_what_is_seen_counts_where_it_went_and_its_prefix_is_expected_there() -> None:
    made = router(instance("a"))
    seen(made, 0.0, 0.01)
    assert made.ledger.in_flight() == {"a@1": 1}
    assert made.prefixes.matches(blocks(0, 500)) == {"a@1": 500}
    assert made.ledger.work("a@1").prefill_backlog_s(0.01) > 0.0  # the engine began its answer at once
    made.release("r", 1.0)
    assert made.ledger.in_flight() == {}


def test_a_prompt_whose_answer_began_late_is_computed() -> None:
    made = router(instance("a"))
    seen(made, 0.0, 30.0)
    assert made.ledger.work("a@1").prefill_backlog_s(30.0) == 0.0


def test_an_instance_that_turned_a_seen_prompt_down_does_not_hold_it() -> None:
    made = router(instance("a"))
    seen(made, 0.0, 0.01, status=503)
    assert made.prefixes.matches(blocks(0, 500)) == {}


def outcome(shadow_key: str, address: str) -> Outcome:
    """Of a request that was tried twice, and answered at `address`."""
    return Outcome(
        features=features(shadow_key=shadow_key),
        address=address,
        status=200,
        flags=(),
        attempts=2,
        duration_s=1.0,
        ttft_s=0.1,
        routing_s=0.0,
        prompt_tokens=100,
        completion_tokens=50,
        cached_tokens=None,
    )


@pytest.mark.parametrize(("shadow_key", "pushed_back"), [("", True), ("a@1", False)])
def test_a_choice_that_envoy_was_not_told_of_was_not_passed_over(shadow_key: str, pushed_back: bool) -> None:
    made = router(instance("a"), instance("b", address="10.0.0.2:80"))
    made.learn(outcome(shadow_key, "10.0.0.2:80"), 1.0)
    first = made.weigh((Option(request()),), 1.0, 0.0, name_all=True).decision
    assert (Reason.PUSHED_BACK in {each.reason for each in first.rejected}) is pushed_back
