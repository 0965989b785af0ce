"""Admission: who is let in, held, let go and shed by a router, and what the clients of the others are told."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from extproc.core.admission.accounts import Account, Pools
from extproc.core.admission.admission import Admission
from extproc.core.admission.bounds import Bounds, bounds_for
from extproc.core.admission.fair_share import FairShare
from extproc.core.admission.flow import Flow
from extproc.core.admission.turns import Held, Turn
from extproc.core.flight.work import Reservation
from extproc.core.models.cold import ColdPolicy, ColdRule, Way
from extproc.core.models.plan import ABSENT
from extproc.core.pricing.classes import DEFAULT_CLASSES, ClassPolicy
from extproc.core.pricing.slo import Slo
from extproc.core.reasons.rejection_text import said
from extproc.core.reasons.retry_after import retry_after_s
from extproc.core.router import Router
from extproc.core.snapshot import Policy
from extproc.core.values.decision import Reason, Rejection
from extproc.core.values.instance import Lifecycle
from extproc.core.values.option import Choice, Option
from extproc.core.values.request import RequestClass
from tests.core.builders import MODEL, instance, publish, request, router

BATCH = RequestClass.BATCH


def admitting(*instances: Any, rules: Admission | None = None, **policy: Any) -> Router:
    return router(*(instances or (instance("a"),)), policy=Policy(admission=rules or Admission(), **policy))


def ask(made: Router, name: str, now: float = 0.0, **changes: Any) -> Choice | Held:
    return made.admit((Option(request(name, **changes)),), now, 0.0)


def crowd(made: Router, prefill_s: float = 30.0, name: str = "a", number: int = 100, tokens: int = 100) -> None:
    """Peers send prompts to an instance that keep it busy for so long."""
    for each in range(number):
        reservation = Reservation(f"p{name}{each}", 0.0, prefill_s / number, tokens, 200, tokens, router="peer")
        made.ledger.reserve(f"{name}@1", reservation, 0.0)


def relieve(made: Router, now: float, name: str = "a", number: int = 100) -> None:
    for each in range(number):
        made.ledger.release(f"p{name}{each}", now, "peer")


def gone(turns: tuple[Turn, ...]) -> list[str]:
    return [turn.request_id for turn in turns if turn.choice.decision.chosen is not None]


def shed(turns: tuple[Turn, ...]) -> dict[str, Reason | None]:
    return {turn.request_id: turn.choice.decision.reason for turn in turns if turn.choice.decision.chosen is None}


def test_without_the_rule_nothing_is_held() -> None:
    """However late the answer will be."""
    made = router(instance("a"))
    crowd(made)
    admitted = ask(made, "r")
    assert isinstance(admitted, Choice)
    assert admitted.decision.chosen is not None
    assert made.let_go(1.0, 0.0) == ()
    assert made.wake_at_s == float("inf")


def test_what_is_served_well_goes_at_once() -> None:
    """It is booked like any other."""
    made = admitting()
    admitted = ask(made, "r")
    assert isinstance(admitted, Choice)
    assert admitted.decision.chosen is not None
    assert "r" in made.ledger.booked()


def test_one_instance_that_keeps_the_bounds_is_chosen_though_another_is_cheaper() -> None:
    """Of those that keep them the cheapest; the other one is named with both numbers."""
    made = admitting(instance("a"), instance("b", price_per_hour=1.0))
    crowd(made, 3.0)
    admitted = ask(made, "r")
    assert isinstance(admitted, Choice)
    assert admitted.decision.chosen is not None
    assert admitted.decision.chosen.instance.id == "b"
    [rejection] = admitted.decision.rejected
    assert (rejection.instance_id, rejection.reason) == ("a", Reason.TTFT_BEYOND_BOUND)
    assert float(rejection.needs) > 3.0 > float(rejection.has)  # type: ignore[arg-type]


def test_where_none_keeps_them_the_request_is_held_and_let_go_when_there_is_room() -> None:
    """It goes as soon as the instance is free, and is booked then."""
    made = admitting()
    crowd(made)
    held = ask(made, "r")
    assert isinstance(held, Held)
    assert held.request_id == "r"
    assert held.until_s == pytest.approx(0.75)  # half of what may be predicted, 1.5 s
    assert "r" not in made.ledger.booked()
    assert made.let_go(0.1, 0.0) == ()
    assert 0.1 < made.wake_at_s <= 0.2
    relieve(made, 0.2)
    assert gone(made.let_go(0.2, 0.0)) == ["r"]
    assert "r" in made.ledger.booked()
    assert made.let_go(0.3, 0.0) == ()
    assert made.wake_at_s == float("inf")


def test_time_alone_makes_room() -> None:
    """A backlog that will have been computed is none: asking again at `wake_at_s` is enough."""
    made = admitting()
    crowd(made, 1.9)
    assert isinstance(ask(made, "r", request_class=BATCH), Held)
    now, turns = 0.0, ()
    while not turns:
        assert made.wake_at_s > now
        now = made.wake_at_s
        turns = made.let_go(now, 0.0)
    assert gone(turns) == ["r"]
    assert 1.0 < now < 1.3  # when what is ahead takes 0.75 s


def test_tokens_that_come_too_slowly_are_a_reason_to_hold() -> None:
    """A batch so large that each step takes longer than the tightest class's token may."""
    made = admitting(instance("a", max_num_seqs=None, kv_blocks=None))
    crowd(made, 0.0, number=400, tokens=8000)
    assert isinstance(ask(made, "r"), Held)
    relieve(made, 0.1, number=400)
    assert gone(made.let_go(0.1, 0.0)) == ["r"]


def test_whoever_nobody_could_serve_later_either_is_refused_at_once() -> None:
    """Waiting does not help against a model that is not served."""
    made = admitting()
    admitted = ask(made, "r", model="another")
    assert isinstance(admitted, Choice)
    assert admitted.decision.reason is Reason.MODEL_NOT_SERVED


@pytest.mark.parametrize("cold", [None, ColdPolicy(), ColdPolicy(usual=ColdRule(way=Way.HOLD))])
@pytest.mark.parametrize("lifecycle", [each for each in Lifecycle if each is not Lifecycle.READY])
def test_an_instance_that_does_not_serve_is_not_waited_for_here(lifecycle: Lifecycle, cold: ColdPolicy | None) -> None:
    """Nor one that starts: whether its start is waited for is told by the rules of cold models, if there are any."""
    made = admitting(instance("a", lifecycle=lifecycle, ready_in_s=20.0), cold=cold)
    assert refused(ask(made, "r")).decision.reason is Reason.NOT_READY


def test_who_is_held_for_room_goes_to_an_instance_that_has_started_meanwhile() -> None:
    """What stands against the other one may pass, so it waits; and a start is room as well."""
    made = admitting(instance("a"), instance("b", lifecycle=Lifecycle.LOADING))
    crowd(made)
    assert isinstance(ask(made, "r"), Held)
    publish(made, instance("b"), 0.2)
    assert gone(made.let_go(0.2, 0.0)) == ["r"]


def test_an_instance_that_said_too_much_is_waited_for() -> None:
    """Without admission it would be asked after all, if there is no other."""
    made = admitting()
    made.backpressure.push_back("a@1", 0.0, 0.0)
    assert isinstance(ask(made, "r"), Held)


def test_a_held_one_is_shed_when_its_time_is_over() -> None:
    """What stood against the instances is told, and what the router says last of all."""
    made = admitting()
    crowd(made)
    held = ask(made, "r")
    assert isinstance(held, Held)
    [turn] = made.let_go(held.until_s, 0.0)
    assert shed((turn,)) == {"r": Reason.DEADLINE_UNREACHABLE}
    reasons = [each.reason for each in turn.choice.decision.rejected]
    assert reasons == [Reason.TTFT_BEYOND_BOUND, Reason.DEADLINE_UNREACHABLE]
    assert turn.choice.option.request.id == "r"
    assert made.let_go(held.until_s, 0.0) == ()


@pytest.mark.parametrize(
    ("changes", "rules", "until_s", "reason"),
    [
        ({}, {}, 0.75, Reason.DEADLINE_UNREACHABLE),
        ({"request_class": BATCH}, {}, 60.0, Reason.HELD_TOO_LONG),
        ({"request_class": RequestClass.LONG_CONTEXT}, {}, 3.75, Reason.DEADLINE_UNREACHABLE),
        ({"deadline_s": 0.5, "output_p50_tokens": 1}, {}, 0.5, Reason.DEADLINE_UNREACHABLE),
        ({"request_class": BATCH, "deadline_s": 5.0, "output_p50_tokens": 1}, {}, 5.0, Reason.DEADLINE_UNREACHABLE),
        (
            {},
            {"max_hold_s": {RequestClass.INTERACTIVE: 0.2, RequestClass.LONG_CONTEXT: 1, BATCH: 1}},
            0.2,
            Reason.HELD_TOO_LONG,
        ),
    ],
)
def test_how_long_a_request_is_held(
    changes: dict[str, Any], rules: dict[str, Any], until_s: float, reason: Reason
) -> None:
    """Part of its class's TTFT, its own deadline or the operator's limit, whichever is first."""
    made = admitting(rules=Admission(**rules))
    crowd(made, 300.0)
    held = ask(made, "r", **changes)
    assert isinstance(held, Held)
    assert held.until_s == pytest.approx(until_s)
    assert made.let_go(until_s / 2, 0.0) == ()
    assert shed(made.let_go(until_s, 0.0)) == {"r": reason}


def test_a_deadline_that_nobody_can_meet_is_told_at_once() -> None:
    """An idle instance would take longer than its client waits."""
    made = admitting()
    admitted = ask(made, "r", deadline_s=0.1, output_p50_tokens=1000)
    assert isinstance(admitted, Choice)
    assert admitted.decision.reason is Reason.DEADLINE_UNREACHABLE


def test_a_prompt_that_takes_longer_than_its_bound_even_alone_is_served() -> None:
    """Nobody could keep the bound: then it is wider, and the fleet is not closed for such prompts."""
    made = admitting(instance("a", hardware="l40s", max_model_len_tokens=None))
    admitted = ask(made, "r", prompt_tokens=60_000)
    assert isinstance(admitted, Choice)
    assert admitted.decision.chosen is not None
    assert admitted.decision.chosen.cost.ttft_s > 2.0


def test_newcomers_do_not_overtake_their_equals() -> None:
    """Though there is room when they come: it is those who waited that it is for."""
    made = admitting()
    crowd(made)
    assert isinstance(ask(made, "first"), Held)
    relieve(made, 0.1)
    assert isinstance(ask(made, "second", 0.1), Held)
    assert gone(made.let_go(0.1, 0.0)) == ["first", "second"]


def test_a_more_urgent_newcomer_goes_first() -> None:
    """By its priority; and one that wants another model waits for nobody."""
    made = admitting(instance("a"), instance("b", models=("other",)))
    crowd(made)
    assert isinstance(ask(made, "first"), Held)
    assert isinstance(ask(made, "elsewhere", model="other"), Choice)
    relieve(made, 0.1)
    assert isinstance(ask(made, "urgent", 0.1, priority=-1), Choice)


def test_batch_goes_after_all_others_and_is_shed_before_them() -> None:
    """Whoever came first."""
    made = admitting(rules=Admission(max_held_requests=2))
    crowd(made)
    assert isinstance(ask(made, "batch", request_class=BATCH, priority=-4), Held)
    assert isinstance(ask(made, "one"), Held)
    assert isinstance(ask(made, "two", priority=4), Held)
    assert made.wake_at_s < 0.0  # somebody's client is to be told
    assert shed(made.let_go(0.0, 0.0)) == {"batch": Reason.HOLDING_FULL}
    assert shed((Turn("late", refused(ask(made, "late", request_class=BATCH))),)) == {"late": Reason.HOLDING_FULL}
    relieve(made, 0.1)
    assert gone(made.let_go(0.1, 0.0)) == ["one", "two"]


def refused(admitted: Choice | Held) -> Choice:
    assert isinstance(admitted, Choice)
    return admitted


def test_bodies_are_counted_too() -> None:
    """Requests are few and their bodies large."""
    made = admitting(rules=Admission(max_held_bytes=1000))
    crowd(made)
    assert isinstance(ask(made, "small", body_bytes=600), Held)
    assert refused(ask(made, "large", body_bytes=600)).decision.reason is Reason.HOLDING_FULL


def test_a_body_that_is_too_large_by_itself_drives_nobody_out() -> None:
    """However urgent it is."""
    made = admitting(rules=Admission(max_held_bytes=100))
    crowd(made)
    assert isinstance(ask(made, "small", body_bytes=10), Held)
    large = refused(ask(made, "large", body_bytes=101, priority=-4))
    assert large.decision.reason is Reason.HOLDING_FULL
    assert said(large.decision.rejected[-1]) == "needs 111 bytes, has room for 100"
    assert made.let_go(0.1, 0.0) == ()


def test_a_call_lets_go_so_many_and_the_next_one_the_others() -> None:
    """Else a fleet that is suddenly free would take all of the caller's time at once."""
    made = admitting(*[instance(f"i{number}") for number in range(100)])
    for number in range(100):
        crowd(made, name=f"i{number}", number=1)
    for number in range(100):
        assert isinstance(ask(made, f"r{number}"), Held)
    for number in range(100):
        relieve(made, 0.1, f"i{number}", 1)
    assert len(gone(made.let_go(0.1, 0.0))) == 64
    assert made.wake_at_s == 0.1
    assert len(gone(made.let_go(0.1, 0.0))) == 36
    assert made.wake_at_s == float("inf")


def test_batch_leaves_interactive_requests_their_bounds() -> None:
    """What waits ahead of it must be short, though nobody waits for the batch itself."""
    made = admitting(instance("a", max_model_len_tokens=None))
    assert isinstance(ask(made, "long", request_class=BATCH, prompt_tokens=100_000), Choice)
    assert isinstance(ask(made, "next", request_class=BATCH), Held)


@pytest.mark.parametrize(("waited_s", "share"), [(0.0, 0.5), (15.0, 0.625), (30.0, 0.75), (60.0, 1.0), (90.0, 1.0)])
def test_what_batch_leaves_to_others_comes_back_to_it_while_it_is_held(waited_s: float, share: float) -> None:
    """All of it at the end of its 60 s; of the others, whose TTFT passes meanwhile, nothing changes."""
    classes, rules = ClassPolicy(), Admission()
    usual = bounds_for(request(), classes, rules, 0.0, waited_s)
    batch = bounds_for(request(request_class=BATCH), classes, rules, 0.0, waited_s)
    assert batch.tpot_s == pytest.approx(share * usual.tpot_s)
    assert batch.ttft_s == pytest.approx(share * usual.ttft_s)
    assert usual == replace(bounds_for(request(), classes, rules, 0.0, 0.0), waited_s=waited_s)
    soon = bounds_for(request(request_class=BATCH, deadline_s=100.0 + 30.0 - waited_s), classes, rules, 100.0, waited_s)
    assert soon.tpot_s == pytest.approx(min(1.0, 0.5 + waited_s / 60.0) * usual.tpot_s), "its client waits for 30 s"
    once = replace(rules, max_hold_s={**rules.max_hold_s, BATCH: 0.0})
    assert bounds_for(request(request_class=BATCH), classes, once, 0.0, waited_s).tpot_s == usual.tpot_s / 2


def test_batch_is_served_beside_others_that_never_leave_it_half_of_the_bounds() -> None:
    """A steady batch whose steps take more than half of a token's time: 7.5 ms of 9."""
    quick = replace(DEFAULT_CLASSES[RequestClass.INTERACTIVE], slo=Slo(ttft_s=2.0, tpot_s=0.009))
    made = admitting(classes=ClassPolicy(classes={**DEFAULT_CLASSES, RequestClass.INTERACTIVE: quick}))
    for each in range(20):
        made.ledger.reserve("a@1", Reservation(f"p{each}", -1.0, 0.001, 0, 2000, 12_000, router="peer"), 0.0)
    assert isinstance(ask(made, "now"), Choice)
    assert isinstance(ask(made, "batch", request_class=BATCH), Held)
    assert [gone(made.let_go(float(now), 0.0)) for now in range(60)].index(["batch"]) > 40


def test_a_withdrawn_request_is_gone() -> None:
    """Its client is."""
    made = admitting()
    crowd(made)
    assert isinstance(ask(made, "r"), Held)
    made.release("r", 0.1)
    relieve(made, 0.1)
    assert made.let_go(0.1, 0.0) == ()


def test_a_flood_does_not_go_before_another_tenant() -> None:
    """Ten are held of one tenant when the first of another comes: it goes second at the latest."""
    made = admitting(rules=Admission(wait_share=1.0))
    crowd(made)
    for number in range(10):
        assert isinstance(ask(made, f"flood-{number}", tenant="flood"), Held)
    assert isinstance(ask(made, "quiet", 0.1, tenant="quiet"), Held)
    relieve(made, 0.1)
    assert "quiet" in gone(made.let_go(0.1, 0.0))[:2]


def test_who_waits_for_its_prefix_lets_others_go_first() -> None:
    """There is room where the head's prompt is not held: the next one of its tenant goes there, and not the head."""
    prefix = tuple(range(40))
    made = admitting(instance("a"), instance("b"))
    first = refused(ask(made, "seed", prefix=prefix, prompt_tokens=2560))
    assert first.decision.chosen is not None
    home = first.decision.chosen.instance.id
    made.release("seed", 0.1)
    other = "b" if home == "a" else "a"
    crowd(made, name="a")
    crowd(made, name="b")
    assert isinstance(ask(made, "head", 0.2, prefix=prefix, prompt_tokens=2560), Held)
    assert isinstance(ask(made, "next", 0.2), Held)
    relieve(made, 0.3, other)
    assert gone(made.let_go(0.3, 0.0))[0] == "next"


def options(name: str, *models: str, ranks: tuple[int, ...] = (0, 1), **changes: Any) -> tuple[Option, ...]:
    """A request that several models may serve, as a plan with fallbacks or a virtual model gives it."""
    asked = zip(models, ranks, strict=True)
    return tuple([Option(request(name, model=each, **changes), rank=rank, opens_for=ABSENT) for each, rank in asked])


@pytest.mark.parametrize(
    ("prefill_s", "tokens", "number"),
    [(30.0, 100, 100), (0.0, 8000, 400), (0.0, 100, 300)],
    ids=["ttft", "tpot", "full"],
)
def test_a_fallback_is_tried_before_anybody_is_held(prefill_s: float, tokens: int, number: int) -> None:
    """Where its first token or the next ones would be late, or its place is taken."""
    limit = 300 if number == 300 else None
    made = admitting(instance("a", kv_blocks=None), instance("b", models=("spare",)), max_in_flight=limit)
    crowd(made, prefill_s, number=number, tokens=tokens)
    answer = made.admit(options("r", MODEL, "spare"), 0.0, 0.0)
    assert isinstance(answer, Choice)
    assert answer.decision.chosen is not None
    assert answer.decision.chosen.instance.id == "b"
    crowd(made, name="b")
    assert isinstance(made.admit(options("s", MODEL, "spare"), 0.0, 0.0), Held)


@pytest.mark.parametrize("ranks", [(0, 1), (0, 0)], ids=["a fallback", "a virtual model"])
def test_no_other_model_is_taken_because_a_prefix_is_elsewhere(ranks: tuple[int, int]) -> None:
    """There is room for the model that costs less, if not where the prompt is held: that opens no fallback."""
    prefix = tuple(range(40))
    made = admitting(instance("a"), instance("b"), instance("c", models=("spare",)))
    first = refused(ask(made, "seed", prefix=prefix, prompt_tokens=2560))
    assert first.decision.chosen is not None
    home = first.decision.chosen.instance.id
    made.release("seed", 0.1)
    for name in "abc":
        crowd(made, name=name)
    asked = options("r", MODEL, "spare", ranks=ranks, prefix=prefix, prompt_tokens=2560)
    asked = (asked[0], msgspec.structs.replace(asked[1], extra_s=60.0))
    assert isinstance(made.admit(asked, 0.2, 0.0), Held)
    other = "b" if home == "a" else "a"
    relieve(made, 0.3, other)
    relieve(made, 0.3, "c")
    [turn] = made.let_go(0.3, 0.0)
    assert turn.choice.decision.chosen is not None
    assert turn.choice.decision.chosen.instance.id == other


def test_who_needs_little_does_not_wait_behind_a_long_prompt() -> None:
    """There is room in the KV cache for it, and not for the prompt that goes first."""
    made = admitting(instance("a", kv_blocks=2000), max_kv_share=1.0)  # 32,000 tokens, of which 20,000 are taken
    crowd(made, 0.0, number=10, tokens=1800)
    long = ask(made, "long", tenant="quiet", prompt_tokens=25_000, request_class=RequestClass.LONG_CONTEXT)
    assert isinstance(long, Held)
    assert refused(ask(made, "short", 0.1, tenant="busy", prompt_tokens=100)).decision.chosen is not None
    relieve(made, 0.2, number=10)
    assert gone(made.let_go(0.2, 0.0)) == ["long"]


def test_those_who_are_held_ahead_count_for_retry_after() -> None:
    """At the pace at which they were let go lately."""
    made = admitting(rules=Admission(max_held_requests=30))
    crowd(made)
    for number in range(30):
        assert isinstance(ask(made, f"r{number}", request_class=BATCH), Held)
    options = (Option(request("late", request_class=BATCH)),)
    assert made.held_ahead_s(options, 0.0) == 0.0
    choice = refused(made.admit(options, 0.0, 0.0))
    snapshot = made.snapshot()
    alone_s = retry_after_s(choice.option.request, choice.decision, snapshot, 0.0, 0.0)
    assert alone_s >= 28  # the backlog
    assert retry_after_s(choice.option.request, choice.decision, snapshot, 0.0, 0.0, 12.0) >= alone_s + 11


def test_a_pace_is_known_from_the_first_seconds_on() -> None:
    """Ten a second, after half a second and after a minute; unknown before, and when nothing has gone for long."""
    flow = Flow()
    assert flow.takes_s(100, 0.0) == 0.0
    for number in range(600):
        flow.add(number / 10)
        if number in (5, 599):
            assert flow.takes_s(100, number / 10) == pytest.approx(10.0, rel=0.3)
    assert flow.takes_s(100, 1000.0) == 0.0


def test_a_flood_is_noticed_before_it_has_filled_the_fleet() -> None:
    """Between two regular looks: as soon as it has had a good part of what is a fair share."""
    share = FairShare(lambda tenant: 1.0, 0.5, 0.5)
    for number in range(40):
        share.look(number / 4)
        share.charge("quiet", 10.0, number / 4)
        share.charge("other", 10.0, number / 4)
    before = 0
    while share.left("flood") == 1.0:
        share.look(9.8)
        share.charge("flood", 10.0, 9.8)
        before += 1
        assert before < 40  # what two quiet tenants have had in the time that is remembered
    assert not share.is_above("quiet")


def test_priority_narrows_bounds_and_so_does_a_share_that_is_exceeded() -> None:
    """Lower priority yields first: its bounds are broken before those of the others."""
    classes, rules = ClassPolicy(), Admission()
    usual = bounds_for(request(), classes, rules, 0.0, 0.0)
    lower = bounds_for(request(priority=2), classes, rules, 0.0, 0.0)
    batch = bounds_for(request(request_class=BATCH), classes, rules, 0.0, 0.0)
    assert lower.ttft_s < usual.ttft_s
    assert lower.tpot_s < usual.tpot_s
    assert (batch.waited_s, batch.own_prompt) == (0.0, False)
    assert batch.tpot_s == pytest.approx(usual.tpot_s / 2)
    assert bounds_for(request(), classes, rules, 0.0, 0.0, 0.8).ttft_s == pytest.approx(0.8 * usual.ttft_s)


def test_who_is_alone_has_all_and_who_is_above_its_share_less() -> None:
    """By weight; after a while in which the other one sends nothing, it is alone again."""
    share = FairShare(lambda tenant: 3.0 if tenant == "gold" else 1.0, 0.8, 0.1)
    for number in range(100):
        share.look(number / 10)
        share.charge("flood", 100.0, number / 10)
    assert share.left("flood") == 1.0
    for number in range(100, 200):
        share.look(number / 10)
        share.charge("flood", 100.0, number / 10)
        share.charge("gold", 100.0, number / 10)
    assert share.left("flood") == pytest.approx(0.8)
    assert share.left("gold") == share.left("unheard of") == 1.0
    assert 0.4 < share.within < 0.5  # half of what was served lately, and a little less of what is not forgotten yet
    for number in range(200, 1700):
        share.look(number / 10)
        share.charge("flood", 100.0, number / 10)
    assert share.left("flood") == share.within == 1.0


def test_without_narrower_bounds_nobody_is_taken_to_be_above_a_share() -> None:
    """Then harm to all counts in full."""
    share = FairShare(lambda _: 1.0, 1.0, 0.1)
    share.charge("flood", 1000.0, 0.0)
    share.charge("quiet", 10.0, 0.0)
    share.look(0.0)
    assert (share.left("flood"), share.within) == (1.0, 1.0)


@pytest.mark.parametrize(("harm_share", "name"), [(1.0, "slow"), (0.0, "fast")])
def test_harm_that_does_not_count_stops_nobody(harm_share: float, name: str) -> None:
    """A long prompt goes to an idle slow instance, or among the answers of a fast one."""
    made = admitting(instance("fast"), instance("slow", hardware="a100_sxm"))
    crowd(made, 0.0, "fast", 60)
    bounds = Bounds(1.5, 0.045, harm_share=harm_share)
    choice = made.choose_among((Option(request("long", prompt_tokens=6000)),), 0.1, 0.0, bounds=bounds)
    assert choice.decision.chosen is not None
    assert choice.decision.chosen.instance.id == name


def test_a_long_prompt_goes_where_it_stops_no_answers() -> None:
    """What it takes from those that run counts to their time per token, however much the cost prefers the place."""
    made = admitting(instance("fast"), instance("slow", hardware="a100_sxm"))
    crowd(made, 0.0, "fast", 200)
    for prompt_tokens, name in ((1000, "fast"), (30_000, "slow")):
        bounds = Bounds(20.0, 0.0155, harm_share=0.0)
        option = Option(request(f"r{prompt_tokens}", prompt_tokens=prompt_tokens))
        choice = made.choose_among((option,), 0.1, 0.0, bounds=bounds)
        assert choice.decision.chosen is not None
        assert choice.decision.chosen.instance.id == name


def test_a_step_may_be_ahead_of_who_is_above_its_share() -> None:
    """However little may: else nobody who is above it would ever join a batch of a slow model. A prompt may not."""
    for prefill_s, goes in ((0.0, True), (1.0, False)):
        made = admitting()
        crowd(made, prefill_s, number=1)
        choice = made.choose_among((Option(request("late")),), 0.0, 0.0, bounds=Bounds(1.5, 0.045, ahead_s=1e-6))
        assert (choice.decision.chosen is not None) is goes


def served(made: Router, tenant: str, now: float, **changes: Any) -> None:
    """A request that is let in, and over at once."""
    assert refused(ask(made, f"{tenant}{now}", now, tenant=tenant, **changes)).decision.chosen is not None
    made.release(f"{tenant}{now}", now)


def test_models_that_any_instance_serves_together_are_one_pool() -> None:
    """Also where it takes a third to join two; what no instance serves stands alone."""
    pools = Pools()
    for models in (("a", "lora"), ("b",), ("c", "d"), ()):
        pools.learn(models)
    assert pools.of("a") == pools.of("lora") != pools.of("b")
    assert pools.of("unheard of") == "unheard of"
    pools.learn(("d", "lora"))
    assert {pools.of(model) for model in ("a", "lora", "c", "d")} == {pools.of("a")}
    assert pools.of("b") not in (pools.of("a"), pools.of("unheard of"))


@pytest.mark.parametrize(("models", "narrower"), [(("x",), False), (("x", MODEL), True)])
def test_tenants_whose_models_share_no_instance_do_not_narrow_each_other(
    models: tuple[str, ...], narrower: bool
) -> None:
    """Each is alone with its model, however little the other asks of its own."""
    made = admitting(instance("a"), instance("b", models=models))
    for number in range(100):
        served(made, "much", number / 10)
        served(made, "little", number / 10 + 0.05, model="x", prompt_tokens=10, expected_output_tokens=5)
    for name in "ab":
        ahead = Reservation(f"p{name}", 10.0, 0.5, 10, 10, 10, router="peer", tenant="much")
        made.ledger.reserve(f"{name}@1", ahead, 10.0)
    assert isinstance(ask(made, "r", 10.0, tenant="much"), Held) is narrower


def test_what_is_served_of_one_model_leaves_the_order_of_who_waits_for_another() -> None:
    """A tenant alone with its model has had far more than anybody else; that makes nobody else's debts equal."""
    made = admitting(instance("a"), instance("b", models=("x",)), rules=Admission(wait_share=1.0))
    crowd(made)
    assert made.gate is not None
    sent: list[Reservation] = []
    for tenant, tokens, model in (
        ("flood", 900, MODEL),
        ("flood", 900, MODEL),
        ("quiet", 9, MODEL),
        ("alone", 9000, "x"),
    ):
        for _ in range(1 + 9 * (model == "x")):
            sent.append(Reservation(f"p{len(sent)}", 0.1, 0.0, tokens, 1, tokens, router="peer", tenant=tenant))
            made.gate.hear(sent[-1], (model,), 0.1)
    assert isinstance(ask(made, "first", 0.5, tenant="flood"), Held)
    assert isinstance(ask(made, "second", 0.6, tenant="quiet"), Held)
    relieve(made, 0.7)
    assert gone(made.let_go(0.7, 0.0)) == ["second", "first"]


def test_a_peers_word_is_taken_in_however_late_the_first_request_comes() -> None:
    """A router that asks nothing for days hears of what the others serve."""
    made = admitting()
    for day in range(3):
        now = 1e6 + 86_400.0 * day
        made.ledger.reserve("a@1", Reservation(f"p{day}", now, 0.0, 9, 9, 9, router="peer", tenant="t"), now)
    assert made.gate is not None


def test_a_peers_request_is_owed_once() -> None:
    """Wherever it went in the end, and though two instances share it."""
    made = admitting(instance("a"), instance("b"))
    assert made.gate is not None

    def debt() -> float:
        assert made.gate is not None
        return made.gate.room.rank(0.0, Account(MODEL, "t"), 0.0)[2]

    for name in ("other", "t"):
        made.ledger.reserve("a@1", Reservation("p", 0.0, 1.0, 100, 10, 100, router=name, tenant=name), 0.0)
    once = debt()
    made.ledger.move("p", "b@1", 0.1, "t")
    made.ledger.reserve("a@1", Reservation("p/prompt", 0.0, 1.0, 100, 0, 100, router="t", tenant="t"), 0.0)
    assert debt() == once > 0.0
    made.ledger.drop_router("t", 0.2)
    made.ledger.reserve("a@1", Reservation("p", 0.0, 1.0, 100, 10, 100, router="t", tenant="t"), 0.3)
    assert debt() == once


def test_who_found_no_place_when_nobody_is_held_any_more_owes_what_it_owed_before() -> None:
    """The operator has taken admission out of the rules: what is decided since is not charged."""
    made = admitting(instance("a"))
    assert made.gate is not None
    assert isinstance(ask(made, "before", 1.0, tenant="t"), Choice)
    kept = made.gate._accounts._pools[MODEL]
    owed = kept.debts.of("t"), dict(kept.share._had)
    made.use(Policy())
    vain = made.choose_among((Option(request("r", tenant="t")),), 1.1, 0.5)
    assert vain.decision.chosen is not None
    made.not_placed(vain, 1.1, 1.2)
    assert (kept.debts.of("t"), kept.share._had) == owed


def test_who_found_no_place_over_all_routers_owes_nothing_for_that() -> None:
    """However often it is tried; the same as if it had gone at once. The tail learns of it once."""
    states = []
    for tries in (0, 3):
        made = admitting(instance("a"), instance("b"))
        assert made.gate is not None
        for name in ("first", "second"):
            assert isinstance(ask(made, name, 1.0, tenant=name), Choice)
        made.gate._look(2.0)
        made.tail.begins_s = 2.0  # not at an end of its range
        for number in range(tries):
            now = 2.0 + 0.3 * number
            vain = ask(made, "r", now, tenant="t")
            assert isinstance(vain, Choice)
            made.not_placed(vain, now, now + 0.01)
            made.gate._look(now + 0.29)
        made.gate._look(3.5)
        before = made.tail.begins_s
        assert isinstance(ask(made, "r", 3.5, tenant="t"), Choice)
        assert (before == made.tail.begins_s) == bool(tries)
        kept = made.gate._accounts._pools[MODEL]
        states.append([made.tail.begins_s, kept.debts.of("t"), *(kept.share._had[name] for name in ("first", "t"))])
        made.gate._look(9.0)
        states[-1].append(kept.share._fair)
        made.release("r", 9.0)
        assert not made._unplaced
    assert states[0] == pytest.approx(states[1])


@pytest.mark.parametrize(
    ("rejection", "words"),
    [
        (Rejection("a", Reason.TTFT_BEYOND_BOUND, 2.34, 1.5), "would answer after 2.34 s, 1.50 s are left"),
        (Rejection("a", Reason.TPOT_BEYOND_BOUND, 0.06, 0.045), "would take 60.0 ms a token, 45.0 ms are allowed"),
        (Rejection("a", Reason.DEADLINE_UNREACHABLE, 0.8, 0.1), "needs 0.80 s at the least, 0.10 s are left"),
        (
            Rejection("router", Reason.DEADLINE_UNREACHABLE, 0.76, 0.75),
            "held it for 0.76 s, after 0.75 s nobody keeps its bounds",
        ),
        (Rejection("a", Reason.HELD_TOO_LONG, 60.0, 60.0), "held it for 60.0 s, 60.0 s are allowed"),
        (Rejection("a", Reason.HOLDING_FULL, 1001.0, 1000.0), "would hold 1,001 requests, may hold 1,000"),
        (Rejection("a", Reason.PREFIX_ELSEWHERE, "its prefix", "less"), "needs its prefix, has less"),
    ],
)
def test_reasons_in_words(rejection: Rejection, words: str) -> None:
    """With both numbers."""
    assert said(rejection) == words


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"max_held_requests": -1}, "max_held_requests and max_held_bytes"),
        ({"max_hold_s": {RequestClass.BATCH: 1.0}}, "max_hold_s of interactive"),
        ({"ttft_share": 0.0}, "ttft_share must be"),
        ({"tpot_share": 1.5}, "tpot_share must be"),
        ({"wait_share": 2.0}, "wait_share must be"),
        ({"tenant_weights": {"gold": 0.0}}, "weight of gold"),
        ({"default_weight": float("inf")}, "weight of other tenants"),
    ],
)
def test_rules_that_make_no_sense_are_refused(changes: dict[str, Any], line: str) -> None:
    """In a line that names what is wrong."""
    with pytest.raises(ValueError, match=line):
        replace(Admission(), **changes)


def test_ten_thousand_held_are_not_looked_at_one_by_one() -> None:
    """Letting go tries the head of a lane alone: as many decisions for ten thousand as for ten."""
    made = admitting(rules=Admission(max_held_requests=10_000, wait_share=1.0))
    crowd(made)
    for number in range(10_000):
        assert isinstance(ask(made, f"r{number}", tenant=f"t{number % 50}"), Held)
    assert made.gate is not None
    tried = []
    place = made.gate._place
    made.gate._place = lambda *args: (tried.append(1), place(*args))[1]  # type: ignore[func-returns-value]
    assert made.let_go(0.01, 0.0) == ()
    assert len(tried) == 1


def test_what_a_peer_serves_a_tenant_is_owed_here_too() -> None:
    """A flood that another router lets in goes after the others here; and what it sends is told with its tenant."""
    made = admitting(rules=Admission(wait_share=1.0))
    crowd(made)
    for number in range(5):
        served = Reservation(f"x{number}", 0.0, 0.0, 1000, 100, 1000, router="peer", tenant="flood")
        made.ledger.reserve("a@1", served, 0.1)
        made.ledger.release(f"x{number}", 0.1, "peer")
    assert isinstance(ask(made, "flood", 0.2, tenant="flood"), Held)
    assert isinstance(ask(made, "quiet", 0.3, tenant="quiet"), Held)
    relieve(made, 0.4)
    assert gone(made.let_go(0.4, 0.0))[0] == "quiet"
    assert made.ledger.reservation("quiet").tenant == "quiet"
