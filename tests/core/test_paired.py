"""A pair held against the best instance alone, and its two reservations until both halves are over."""

from __future__ import annotations

import random

import msgspec
import pytest
from msgspec.structs import replace

from extproc.core.admission.bounds import Bounds
from extproc.core.eligibility.constraints import doubtful
from extproc.core.flight.ledger import Ledger
from extproc.core.flight.prompts import prompt_id
from extproc.core.flight.sharing import Sharing
from extproc.core.pairs.hand_over import WORKER_ID_TAG, HandOver
from extproc.core.pairs.pairing import Pairing
from extproc.core.reasons.explanation import Explanation, explain, material
from extproc.core.reasons.explanation_text import COLUMNS, as_line, as_text
from extproc.core.reasons.measured import prediction_errors
from extproc.core.router import Router
from extproc.core.snapshot import Policy
from extproc.core.speeds.speeds import Speeds
from extproc.core.values.decision import Decision, Reason
from extproc.core.values.instance import Instance, Lifecycle, Load, Role
from extproc.core.values.option import Option
from extproc.core.values.outcome import Outcome
from extproc.core.values.request import Request
from tests.core.builders import MODEL, blocks, features, instance, publish, request, router
from tests.core.measured import Truth

PD = Policy(hand_over=HandOver.LLM_D)
IB = {"kv_domain": "d", "fabric": "ib"}
P0, P1 = (instance(name, role=Role.PREFILL, **IB) for name in ("p0", "p1"))
D0, D1, D2 = (instance(name, role=Role.DECODE, **IB) for name in ("d0", "d1", "d2"))
BOTH = instance("both", **IB)
LONG = request("r", prompt_tokens=16_000, prefix=blocks(1, 250))


def named(decision: Decision) -> tuple[str, str]:
    """Who answers and who computes the prompt, "" for nobody."""
    return (
        decision.chosen.instance.id if decision.chosen else "",
        decision.partner.instance.id if decision.partner else "",
    )


def changed(each: Instance, **changes: object) -> Instance:
    return instance(
        each.id, **({"role": each.role, "address": each.address, "kv_domain": each.kv_domain, "fabric": "ib"} | changes)
    )


def test_a_pair_is_chosen_only_where_it_costs_less_than_the_best_instance_alone() -> None:
    """An idle instance of the same hardware has nothing to hand over; one that computes a long prompt is left."""
    made = router(P0, D0, BOTH, policy=PD)
    first = made.choose(LONG, 0.0, 0.0)
    assert named(first) == ("both", "")
    second = made.choose(msgspec.structs.replace(LONG, id="s", prefix=()), 0.0, 0.0)
    assert named(second) == ("d0", "p0")


def test_without_a_stack_to_hand_over_to_halves_take_nothing() -> None:
    made = router(P0, D0)
    decision = made.choose(LONG, 0.0, 0.0)
    assert (named(decision), decision.reason) == (("", ""), Reason.ROLE_TAKES_HALF)


def test_the_alternatives_of_a_pair_can_take_the_prompt_over_from_the_same_partner() -> None:
    """A retry carries the same headers: it must not go to the partner itself, nor into another domain."""
    far = instance("far", role=Role.DECODE, kv_domain="e", fabric="ib")
    both = instance("both", **IB, load=Load(running=100, waiting=0, kv_usage=0.3))
    made = router(both, D0, D1, D2, far, policy=PD)
    decision = made.choose(LONG, 0.0, 0.0)
    assert named(decision)[1] == "both"
    assert len(decision.alternatives) == PD.alternatives
    assert {each.instance.id for each in decision.candidates} == {"d0", "d1", "d2"}
    made = router(P0, D0, instance("alone", load=Load(running=200, waiting=50)), far, policy=PD)
    assert made.choose(LONG, 0.0, 0.0).alternatives == ()


def test_no_alternative_of_a_pair_has_another_partner() -> None:
    """Of two that would compute the prompt as well, only the named one does."""
    decision = router(P0, P1, D0, D1, policy=PD).choose(LONG, 0.0, 0.0)
    assert [each.instance.id for each in decision.candidates] == ["d0", "d1"]


def test_where_the_headers_name_who_answers_a_pair_has_no_alternatives() -> None:
    fleet = [changed(each, tags={WORKER_ID_TAG: str(n)}) for n, each in enumerate((P0, D0, D1))]
    decision = router(*fleet, policy=Policy(hand_over=HandOver.DYNAMO)).choose(LONG, 0.0, 0.0)
    assert (named(decision)[1], decision.alternatives) == ("p0", ())


def test_equal_pairs_are_drawn_from() -> None:
    """Routers that see the same fleet must not all take the first of it."""
    fleet = (P0, P1, D0, D1)
    drawn = {named(router(*fleet, policy=PD).choose(LONG, 0.0, draw)) for draw in (0.0, 0.3, 0.6, 0.9)}
    assert drawn == {(answers, computes) for answers in ("d0", "d1") for computes in ("p0", "p1")}


def test_halves_are_spread_over_both_pools() -> None:
    """What was booked on either half counts for the next choice."""
    made = router(P0, P1, D0, D1, policy=PD)
    taken = [named(made.choose(msgspec.structs.replace(LONG, id=str(n), prefix=()), 0.0, 0.0)) for n in range(8)]
    for pool in zip(*taken, strict=True):
        assert sorted(pool.count(each) for each in set(pool)) == [4, 4]


@pytest.mark.parametrize(
    ("fleet", "reason"),
    [
        ((P0, changed(D0, lifecycle=Lifecycle.LOADING)), Reason.NOT_READY),
        ((changed(P0, lifecycle=Lifecycle.STARTING), D0), Reason.NOT_READY),
        ((P0, changed(D0, max_model_len_tokens=100)), Reason.CONTEXT_TOO_LONG),
        ((P0, P1), Reason.ROLE_TAKES_HALF),
        ((P0, changed(D0, kv_domain="e")), Reason.ROLE_TAKES_HALF),
    ],
)
def test_where_no_pair_can_be_made_the_half_says_what_it_lacks(fleet: tuple[Instance, ...], reason: Reason) -> None:
    """So that a fleet that is about to be ready is not taken for one that never will be."""
    decision = router(*fleet, policy=PD).choose(LONG, 0.0, 0.0)
    assert (named(decision), decision.reason) == (("", ""), reason)


def test_a_sound_pair_goes_before_an_instance_that_just_failed() -> None:
    """Whatever that one would cost."""
    made = router(P0, D0, BOTH, policy=PD)
    made.cooldowns.fail(BOTH.key, 0.0, 0.0)
    for key in (P0.key, D0.key):
        assert not made.cooldowns.remaining_s(key, 0.0)
    short = request("s", prompt_tokens=50)
    assert named(made.choose(short, 0.0, 0.0)) != ("both", "")
    made.cooldowns.succeed(BOTH.key, 0.0, 0.0)
    assert named(made.choose(msgspec.structs.replace(short, id="t"), 0.0, 0.0)) == ("both", "")


def test_halves_that_just_failed_are_asked_where_no_other_is_left() -> None:
    """As with whole instances; of those that compute prompts the one that did not fail."""
    made = router(P0, P1, D0, policy=PD)
    made.cooldowns.fail(D0.key, 0.0, 0.0)
    made.cooldowns.fail(P0.key, 0.0, 0.0)
    for number in range(3):
        decision = made.choose(msgspec.structs.replace(LONG, id=str(number)), 0.0, 0.0)
        assert named(decision) == ("d0", "p1")
    told = explain(material(LONG, decision, made.snapshot(), 0.0))
    assert "rests for" in told.options[0].doubt


def test_only_who_answers_needs_room_for_the_answer() -> None:
    """The other one computes the prompt and one token."""
    asked = request("r", prompt_tokens=16_000, max_output_tokens=10_000)
    made = router(changed(P0, max_model_len_tokens=20_000), D0, policy=PD)
    assert [pair.decode.instance.id for pair in Pairing(asked, made.snapshot(), 0.0).sound()] == ["d0"]
    made = router(P0, changed(D0, max_model_len_tokens=20_000), policy=PD)
    assert not Pairing(asked, made.snapshot(), 0.0).sound()


def test_who_answers_needs_room_for_the_whole_prompt_that_is_handed_over() -> None:
    """Nothing is computed there, but its KV blocks are held; what it holds already needs none."""
    made = router(P0, changed(D0, kv_blocks=2000, load=Load(running=10, waiting=0, kv_usage=0.9)), policy=PD)

    def waits_s(tokens: int) -> float:
        (pair,) = Pairing(
            request("r", prompt_tokens=tokens, prefix=blocks(9, tokens // 64)), made.snapshot(), 1.0
        ).sound()
        return pair.decode.cost.queue_s

    assert waits_s(20_000) > 10 * waits_s(2000)
    made.prefixes.insert(D0.key, blocks(9, 312), 1000)
    assert waits_s(20_000) == pytest.approx(waits_s(2000), rel=0.5)


def test_both_halves_are_booked_and_each_ends_by_itself() -> None:
    """The prompt at its partner until the answer begins; the answer, with all KV blocks and no prefill, to its end."""
    made = router(P0, D0, policy=PD)
    decision = made.choose(LONG, 0.0, 0.0)
    prompt, answer = made.ledger.work(P0.key), made.ledger.work(D0.key)
    assert decision.partner is not None
    assert prompt.prefill_backlog_s(0.0) == pytest.approx(decision.partner.cost.prefill_s)
    assert (prompt.held_tokens, prompt.mean_output_tokens) == (16_000, 0.0)
    assert (answer.prefill_backlog_s(0.0), answer.held_tokens, answer.mean_output_tokens) == (0.0, 16_000, 100)
    made.served_by(LONG, D0.address, 0.5)
    assert made.ledger.in_flight() == {D0.key: 1}
    assert (prompt.held_tokens, prompt.prefill_backlog_s(0.5)) == (0.0, 0.0)
    made.release("r", 1.0)
    assert (made.ledger.in_flight(), answer.held_tokens) == ({}, 0.0)


def test_what_the_partner_holds_leaves_no_room_where_the_answer_is_made() -> None:
    """All of the prompt but what is held there is handed over, whoever computes it or held it."""
    made = router(P0, D0, policy=PD)
    made.prefixes.insert(P0.key, LONG.prefix, 1000)
    made.prefixes.insert(D0.key, LONG.prefix[:50], 1000)
    decision = made.choose(LONG, 0.0, 0.0)
    assert decision.chosen is not None
    assert (decision.chosen.cached_tokens, decision.chosen.handed_tokens) == (15_999, 15_999 - 3200)
    assert made.ledger.work(D0.key).held_tokens == 16_000 - 3200
    assert made.ledger.work(P0.key).held_tokens == 1


def test_a_prompt_computed_elsewhere_takes_no_time_from_the_answers_beside_it() -> None:
    """The load that answers meet is what their step times are learned from."""
    made = router(P0, D0, policy=PD)
    for at_s, name in enumerate("rs"):
        made.choose(msgspec.structs.replace(LONG, id=name, prefix=()), float(at_s), 0.0)
    made.release("r", 3.0)
    met, speed = made.meter.take("r"), made.beliefs.speed(MODEL, D0)
    assert met is not None
    assert met.prefill_s == pytest.approx(speed.prefill_s(1, 15_999))


def test_an_aborted_pair_leaves_nothing_at_either() -> None:
    made = router(P0, D0, policy=PD)
    made.choose(LONG, 0.0, 0.0)
    made.release("r", 0.01)
    assert made.ledger.in_flight() == {}
    assert made.ledger.work(P0.key).prefill_backlog_s(0.01) == pytest.approx(0.0, abs=1e-9)
    assert made.meter.take(prompt_id("r")) is None


def test_after_a_retry_only_the_answer_moves() -> None:
    """The prompt stays where it is computed; its prefix is expected there and where the answer will come from."""
    made = router(P0, D0, D1, policy=PD)
    decision = made.choose(LONG, 0.0, 0.0)
    (other,) = decision.alternatives
    made.rebook(LONG, other.instance, 0.0)
    assert made.ledger.in_flight() == {P0.key: 1, other.instance.key: 1}
    assert {each.key for each in (P0, D0, D1) if made.prefixes.size(each.key)} == {P0.key, other.instance.key}


def test_the_prompt_of_an_answer_in_one_piece_is_over_when_its_engine_has_it_no_longer() -> None:
    """Its headers come with its end. Else each report would have a prompt that is done wait to be computed again."""
    made = router(P0, D0, policy=PD)
    decision = made.choose(msgspec.structs.replace(LONG, stream=False), 0.0, 0.0)
    assert decision.partner is not None
    prefill_s = decision.partner.cost.prefill_s
    work = made.ledger.work(P0.key)
    for at_s, running, booked in (
        (prefill_s / 2, 0, 1),  # it cannot be done: it has not arrived yet
        (prefill_s * 1.5, 1, 1),  # slower than was thought
        (prefill_s * 2.0, 0, 0),
    ):
        publish(made, changed(P0, load=Load(running=running, waiting=0, kv_usage=0.0)), at_s)
        assert work.requests == booked, at_s
    assert work.prefill_backlog_s(prefill_s * 2.0) == 0.0
    assert made.ledger.in_flight() == {D0.key: 1}


def test_an_engine_that_does_not_tell_its_requests_ends_no_prompt() -> None:
    """Unknown is not none: while its prompt may be computed still, it stays booked."""
    made = router(P0, D0, policy=PD)
    made.choose(msgspec.structs.replace(LONG, stream=False), 0.0, 0.0)
    for at_s, load in ((60.0, Load()), (61.0, Load(running=0)), (62.0, Load(waiting=0))):
        publish(made, changed(P0, load=load), at_s)
        assert made.ledger.in_flight() == {P0.key: 1, D0.key: 1}


def test_of_a_prompt_on_an_instance_that_is_gone_nothing_is_kept() -> None:
    """Neither by the meter nor by what counts adapters: there would be one more with each request."""
    lora = {"models": (MODEL, "sql"), "loras": ("sql",), "max_loras": 1, "lora_load_s": 0.1}
    made = router(changed(P0, **lora), changed(D0, **lora), policy=PD)
    asked = msgspec.structs.replace(LONG, model="sql")
    assert made.choose(asked, 0.0, 0.0).partner is not None
    publish(made, changed(P0, incarnation="2", **lora), 0.1)
    made.release("r", 1.0)
    assert made.meter.where(prompt_id("r")) is None
    assert made.adapters._where == {}


def test_of_many_prompts_those_are_over_that_were_sent_first() -> None:
    """Two of four are not in the report: the first two."""
    made = router(P0, D0, policy=PD)
    for number in range(4):
        made.choose(msgspec.structs.replace(LONG, id=str(number), prefix=()), number * 1e-3, 0.0)
    publish(made, changed(P0, load=Load(running=1, waiting=1, kv_usage=0.1)), 60.0)
    assert [each for each, key in made.ledger.booked().items() if key == P0.key] == [prompt_id("2"), prompt_id("3")]


def test_other_routers_see_both_halves_and_the_end_of_each() -> None:
    """As two reservations; nothing new travels."""
    made, ledger = router(P0, D0, policy=PD), Ledger()
    ours, theirs = Sharing("a", made.ledger), Sharing("b", ledger)

    def seen(now: float) -> dict[str, str]:
        for _ in range(2):
            for sender, receiver in ((ours, theirs), (theirs, ours)):
                for data in sender.outbox.batches(now):
                    receiver.receive(data, now)
            now += 1.0
        return dict(ledger.booked("a"))

    seen(0.0)
    made.choose(LONG, 10.0, 0.0)
    assert seen(10.0) == {"r": D0.key, prompt_id("r"): P0.key}
    assert ledger.work(D0.key).held_tokens == 16_000
    assert ledger.work(D0.key).prefill_backlog_s(10.0) == 0.0
    made.served_by(LONG, D0.address, 20.0)
    assert seen(20.0) == {"r": D0.key}
    made.release("r", 30.0)
    assert seen(30.0) == {}


def test_whatever_happens_no_half_stays_booked_for_ever() -> None:
    """Random choices, beginnings, retries, ends, reports and deaths; then all ends."""
    rng, fleet = random.Random(5), (P0, P1, D0, D1, BOTH)
    for _ in range(30):
        made, now, open_ids = router(*fleet, policy=PD), 0.0, list[str]()
        for number in range(60):
            now += rng.random() * 0.3
            asked = msgspec.structs.replace(LONG, id=str(number), stream=rng.random() < 0.5)
            match rng.randrange(6):
                case 0 | 1:
                    if made.choose(asked, now, rng.random()).chosen:
                        open_ids.append(asked.id)
                case 2 if open_ids:
                    began = msgspec.structs.replace(LONG, id=rng.choice(open_ids))
                    made.served_by(began, rng.choice(("", D0.address, D1.address)), now)
                case 3 if open_ids:
                    made.release(open_ids.pop(rng.randrange(len(open_ids))), now)
                case 4:
                    load = Load(running=rng.randrange(3), waiting=rng.randrange(2), kv_usage=0.1)
                    publish(made, changed(rng.choice(fleet), load=load), now)
                case 5 if rng.random() < 0.2:
                    publish(made, changed(rng.choice(fleet), incarnation=str(number)), now)
        for each in open_ids:
            made.release(each, now)
        assert made.ledger.in_flight() == {}
        works = [made.ledger.work(member.instance.key) for member in made.fleet.members()]
        assert [work.booked_tokens for work in works] == [0] * len(fleet)


def outcome(made: Router, decision: Decision, ttft_s: float, status: int = 200) -> Outcome:
    assert decision.chosen is not None
    return Outcome(
        features=made.features(LONG, decision.chosen, decision.partner),
        address=decision.chosen.instance.address,
        status=status,
        flags=(),
        attempts=1,
        duration_s=ttft_s + 2.0,
        ttft_s=ttft_s,
        routing_s=0.0,
        prompt_tokens=16_000,
        completion_tokens=100,
        cached_tokens=15_999,
        started_s=0.0,
    )


def test_the_first_token_of_a_pair_teaches_no_prefill_speed_and_no_cache() -> None:
    """It came after another engine's work and a transfer; what was handed over passes for cached. Decode is learned."""
    made = router(P0, D0, policy=PD)
    before = [made.beliefs.speed(MODEL, each).prefill_s(1000, 0) for each in (P0, D0)]
    (kind,) = made.beliefs.speeds.kinds().values()
    for number in range(30):
        now = number * 10.0
        decision = made.choose(LONG, now, 0.0)
        told = outcome(made, decision, ttft_s=40.0)
        made.release("r", now + 5.0)
        made.learn(told, now + 5.0)
    prefill, decode = kind.steps
    assert (prefill.samples, decode.samples > 0) == (0, True)
    after = [made.beliefs.speed(MODEL, each).prefill_s(1000, 0) for each in (P0, D0)]
    assert after == pytest.approx(before, rel=0.25)  # what becomes less with every answer is optimism alone
    assert not made.trust.news
    assert D0.key not in made.trust.shares(MODEL)


def test_what_the_one_that_answers_tells_of_cached_tokens_is_held_against_nobody() -> None:
    """Some engines count what was handed over, others do not: neither says what was held."""
    made = router(P0, D0, policy=PD)
    made.prefixes.insert(P0.key, LONG.prefix, 1000)
    for number in range(30):
        now = number * 100.0
        told = replace(outcome(made, made.choose(LONG, now, 0.0), ttft_s=1.0), cached_tokens=0)
        assert told.features is not None
        assert told.features.cached_tokens > 15_000
        assert prediction_errors(told, told.features.instance_key).cached_share is None
        assert prediction_errors(told, told.features.instance_key).ttft_ratio is not None
        made.release("r", now + 5.0)
        made.learn(told, now + 5.0)
    for each in (P0, D0):
        assert each.key not in made.trust.shares(MODEL)
        assert made.prefixes.size(each.key)


def test_a_prompt_for_another_shows_that_its_engine_was_busy_then() -> None:
    """What waited behind it there says nothing of that engine's speed; at the one that answered it says something."""
    speeds, (partner, answers) = Speeds(), (instance("partner", **IB), instance("answers", **IB))
    alone = Truth()
    for each in (partner, answers):
        alone.finish(speeds, each)
    (kind,) = speeds.kinds().values()
    base = measured_outcome(partner, started_s=1000.0, ttft_s=5.0)
    pair = msgspec.structs.replace(features(instance_key=answers.key, prompt_tokens=1000), partner_key=partner.key)
    speeds.learn(replace(base, features=pair, address=answers.address), answers, None, 1010.0)
    before = kind.steps[0].samples
    speeds.learn(measured_outcome(partner, started_s=1001.0, ttft_s=0.1), partner, None, 1010.0)
    assert kind.steps[0].samples == before
    speeds.learn(measured_outcome(answers, started_s=1001.0, ttft_s=0.1), answers, None, 1010.0)
    assert kind.steps[0].samples > before


def measured_outcome(each: Instance, started_s: float, ttft_s: float) -> Outcome:
    return Outcome(
        features=features(instance_key=each.key, prompt_tokens=1000),
        address=each.address,
        status=200,
        flags=(),
        attempts=1,
        duration_s=ttft_s,
        ttft_s=ttft_s,
        routing_s=0.0,
        prompt_tokens=1000,
        completion_tokens=1,
        cached_tokens=0,
        started_s=started_s,
    )


@pytest.mark.parametrize(
    ("status", "flags", "doubted"),
    [
        (502, (), {"p0", "d0"}),
        (503, (), {"p0", "d0"}),
        (500, (), set()),
        (503, ("upstream_connection_failure",), {"d0"}),  # the partner had no part in this
    ],
)
def test_either_of_a_pair_may_be_to_blame_for_a_failure(status: int, flags: tuple[str, ...], doubted: set[str]) -> None:
    """The status tells no more; the next answer clears both."""
    made = router(P0, D0, policy=PD)
    decision = made.choose(LONG, 0.0, 0.0)
    made.learn(replace(outcome(made, decision, 1.0, status=status), flags=flags), 3.0)

    def in_doubt(now: float) -> set[str]:
        return {m.instance.id for m in made.fleet.members() if doubtful(m, made.snapshot(), now)}

    assert in_doubt(3.0) == doubted
    made.learn(outcome(made, decision, 1.0), 7.5)
    assert in_doubt(7.5) == set()


def test_an_explanation_names_the_partner_and_holds_nothing_against_a_half() -> None:
    made = router(P0, D0, D1, policy=PD)
    decision = made.choose(LONG, 0.0, 0.0)
    told = explain(material(LONG, decision, made.snapshot(), 0.0))
    assert (told.chosen, told.partner, told.rejected) == ("d0", "p0", ())
    assert [option.doubt for option in told.options] == ["", ""]
    assert told.options[0].terms_s["communication"] > 0.0
    assert "goes to d0" in as_text(told)
    assert "p0 computes its prompt" in as_text(told)


def test_the_partner_is_not_counted_among_those_that_would_have_cost_more() -> None:
    """It is named: the request goes to both."""
    made = router(P0, D0, policy=PD)
    told = explain(material(LONG, made.choose(LONG, 0.0, 0.0), made.snapshot(), 0.0))
    assert (told.partner, told.further) == ("p0", 0)
    assert "more at a higher cost" not in as_text(told)


def explained(made: Router, asked: Request = LONG, draw: float = 0.0) -> Explanation:
    snapshot = made.snapshot()
    decision = made.weigh((Option(asked),), 0.0, draw).decision
    return explain(material(asked, decision, snapshot, 0.0))


def test_what_the_best_instance_alone_would_have_cost_is_told_of_a_pair() -> None:
    """It was weighed, and no retry goes there: the headers name a partner."""
    slow = instance("slow", hardware="l40s")
    made = router(P0, D0, slow, instance("slower", hardware="l40s", load=Load(running=90, waiting=0)), policy=PD)
    told = explained(made)
    assert (told.chosen, told.partner, [option.instance for option in told.options]) == ("d0", "p0", ["d0"])
    assert [(other.instance, other.partner) for other in told.others] == [("slow", None)]
    alone = router(slow).weigh((Option(LONG),), 0.0, 0.0).decision.chosen
    assert alone is not None
    assert told.others[0].total_s == pytest.approx(alone.cost.total_s)
    assert told.second is not None
    assert (told.second.instance, told.second.partner, told.second.near_tie) == ("slow", None, False)
    assert told.second.difference_s == pytest.approx(alone.cost.total_s - told.options[0].total_s)
    assert told.second.text.startswith("slow alone would have cost ")
    assert told.further == 1
    text = as_text(told)
    assert told.second.text in text.replace("\n", " ")
    table = text.split("\n\n")[1].splitlines()
    assert [line.split()[0] for line in table[:4]] == ["INSTANCE", "d0", "with", "slow"]
    assert table[2] == "  with p0"
    assert "second: slow alone" in as_line(told)


def test_the_best_pair_with_another_partner_is_told_of_and_the_nearest_of_all_is_the_second() -> None:
    """Whoever a retry may go to: here the other one that answers is far dearer."""
    busy = changed(D1, load=Load(running=200, waiting=50, kv_usage=0.8))
    told = explained(router(P0, P1, D0, busy, policy=PD))
    assert [(option.instance, option.partner) for option in told.options] == [("d0", "p0"), ("d1", "p0")]
    assert [(other.instance, other.partner) for other in told.others] == [("d0", "p1")]
    assert told.second is not None
    assert (told.second.instance, told.second.partner, told.second.near_tie) == ("d0", "p1", True)
    assert told.second.text.startswith("d0 with p1 would have cost 0.000 s more")
    assert told.further == 0


def test_a_pair_that_was_named_by_its_headers_is_held_against_other_pairs_too() -> None:
    """With `dynamo` there is nowhere to retry, and still a second best."""
    fleet = [changed(each, tags={WORKER_ID_TAG: str(n)}) for n, each in enumerate((P0, D0, D1))]
    told = explained(router(*fleet, policy=Policy(hand_over=HandOver.DYNAMO)))
    assert [option.instance for option in told.options] == ["d0"]
    assert told.second is not None
    assert (told.second.instance, told.second.partner) == ("d1", "p0")


def test_an_instance_alone_that_is_in_doubt_is_no_second_best() -> None:
    """What it fails is told instead."""
    made = router(P0, D0, BOTH, policy=Policy(hand_over=HandOver.LLM_D, alternatives=0))
    made.cooldowns.fail(BOTH.key, 0.0, 0.0)
    told = explained(made, request("s", prompt_tokens=50))
    assert (told.chosen, told.others, told.second) == ("d0", (), None)
    assert [(each.instance, each.reason) for each in told.rejected] == [("both", Reason.COOLING_DOWN)]


def test_what_was_weighed_beside_a_pair_stays_known_when_a_retry_is_taken_in_its_place() -> None:
    """As where no place is left in strict mode."""
    decision = router(P0, D0, D1, instance("slow", hardware="l40s"), policy=PD).choose(LONG, 0.0, 0.0)
    assert decision.others
    assert decision.with_chosen(1).others == decision.others


def test_what_a_pair_would_have_cost_is_told_where_one_instance_alone_costs_less() -> None:
    """Nothing speaks against its halves, nor against those that would have been paired as well."""
    told = explained(router(P0, P1, D0, D1, BOTH, policy=PD))
    assert (told.chosen, told.partner, told.rejected) == ("both", None, ())
    (pair,) = told.others
    assert (pair.instance, pair.partner) in {(d, p) for d in ("d0", "d1") for p in ("p0", "p1")}
    assert pair.total_s > told.options[0].total_s
    assert told.second is not None
    assert (told.second.instance, told.second.partner) == (pair.instance, pair.partner)
    assert told.second.text.startswith(f"{pair.instance} with {pair.partner} would have cost ")
    assert told.further == 2
    text = as_text(told)
    assert "WHY NOT" not in text
    assert "and 2 more at a higher cost" in text


def test_a_pair_stands_beside_the_alternatives_and_no_retry_goes_to_it() -> None:
    """The second may be another instance alone; the pair's cost is told all the same."""
    made = router(P0, D0, BOTH, instance("other", **IB), policy=PD)
    told = explained(made, request("s", prompt_tokens=50))
    assert {option.instance for option in told.options} == {"both", "other"}
    assert [(other.instance, other.partner is not None) for other in told.others] == [("d0", True)]
    assert told.second is not None
    assert told.second.partner is None


def test_a_half_of_a_possible_pair_says_which_bound_it_would_have_broken() -> None:
    """Where requests are held to bounds, a pair that breaks them is as good as none."""
    made = router(P0, D0, instance("fast", load=Load(running=0, waiting=0, kv_usage=0.0)), policy=PD)
    alone = made.weigh((Option(LONG),), 0.0, 0.0).decision
    assert alone.chosen is not None
    (pair,) = alone.others
    between_s = (alone.chosen.cost.ttft_s + pair.candidate.cost.ttft_s) / 2
    decision = made.weigh((Option(LONG),), 0.0, 0.0, bounds=Bounds(between_s, float("inf"))).decision
    assert (named(decision), decision.others) == (("fast", ""), ())
    assert [(each.instance_id, each.reason) for each in decision.rejected] == [
        ("p0", Reason.TTFT_BEYOND_BOUND),
        ("d0", Reason.TTFT_BEYOND_BOUND),
    ]
    assert decision.rejected[0].needs == pytest.approx(pair.candidate.cost.ttft_s)


def test_a_half_beside_a_pair_that_was_taken_says_what_it_lacks_itself_if_anything() -> None:
    """One that is about to start is not told to take half a request only."""
    loading = changed(D1, lifecycle=Lifecycle.LOADING)
    decision = router(P0, P1, D0, loading, policy=PD).choose(LONG, 0.0, 0.0)
    assert named(decision)[0] == "d0"
    assert [(each.instance_id, each.reason) for each in decision.rejected] == [("d1", Reason.NOT_READY)]


def test_halves_that_just_failed_say_so_beside_an_instance_that_failed_too() -> None:
    """Nothing sound is left, so that the choice alone is asked and no pair is looked for."""
    made = router(P0, D0, BOTH, policy=PD)
    for each in (P0, D0, BOTH):
        made.cooldowns.fail(each.key, 0.0, 0.0)
    decision = made.choose(LONG, 0.0, 0.0)
    assert (named(decision), decision.others) == (("both", ""), ())
    reasons = {each.instance_id: each.reason for each in decision.rejected}
    assert reasons == dict.fromkeys(("p0", "d0", "both"), Reason.COOLING_DOWN)


def test_a_half_in_another_domain_than_the_pair_that_was_possible_takes_part_in_none() -> None:
    far = instance("far", role=Role.DECODE, kv_domain="e", fabric="ib")
    told = explained(router(P0, D0, BOTH, far, policy=PD))
    assert [(each.instance, each.reason) for each in told.rejected] == [("far", Reason.ROLE_TAKES_HALF)]


UNKNOWN = {"models": ("zz",)}


@pytest.mark.parametrize(
    ("fleet", "asked", "stack", "texts"),
    [
        ((P0,), {}, HandOver.LLM_D, {"p0": "needs one that answers, has none"}),
        ((D0,), {}, HandOver.LLM_D, {"d0": "needs one that computes its prompts, has none"}),
        (
            (P0, D0),
            {},
            HandOver.NONE,
            {"p0": "needs --hand-over, has none", "d0": "needs --hand-over, has none"},
        ),
        (
            (P0, changed(D0, kv_domain="e"), changed(D1, kv_domain="f")),
            {},
            HandOver.LLM_D,
            {
                "p0": "needs one that answers in kv_domain d, has one only in e, f",
                "d0": "needs one that computes its prompts in kv_domain e, has one only in d",
                "d1": "needs one that computes its prompts in kv_domain f, has one only in d",
            },
        ),
        (
            (changed(P0, kv_domain=""), D0),
            {},
            HandOver.LLM_D,
            {"p0": "needs a kv_domain, has none", "d0": "needs one that computes its prompts, has none"},
        ),
        (
            (changed(P0, **UNKNOWN), changed(D0, **UNKNOWN)),
            {"model": "zz"},
            HandOver.LLM_D,
            dict.fromkeys(("p0", "d0"), "needs kv_bytes_per_token, or a model whose shape is known, has neither"),
        ),
        (
            (P0, D0),
            {"expected_output_tokens": 0},
            HandOver.LLM_D,
            dict.fromkeys(("p0", "d0"), "needs a request with output, has one without"),
        ),
        (
            (P0, changed(D0, lifecycle=Lifecycle.LOADING), changed(D1, max_model_len_tokens=9)),
            {},
            HandOver.LLM_D,
            {
                "p0": "needs one that answers, has d0 (not_ready), d1 (context_too_long)",
                "d0": "is Loading, not Ready",
                "d1": "needs 16,000 tokens of context, has 9",
            },
        ),
        (
            (P0, changed(D0, models=("another",))),
            {},
            HandOver.LLM_D,
            {"p0": "needs one that answers, has none", "d0": f"does not serve {MODEL}, but another"},
        ),
        (
            (changed(P0, tags={WORKER_ID_TAG: "7"}), changed(D0, tags={WORKER_ID_TAG: "x"}), D1),
            {},
            HandOver.DYNAMO,
            {
                "p0": "needs one that answers, has none",
                "d0": "needs the tag dynamo_worker_id with a decimal id, has x",
                "d1": "needs the tag dynamo_worker_id with a decimal id, has none",
            },
        ),
    ],
)
def test_where_no_pair_can_be_made_the_text_says_why(
    fleet: tuple[Instance, ...], asked: dict[str, object], stack: HandOver, texts: dict[str, str]
) -> None:
    """Nobody can tell "no partner" from "no switch" by the word that both are."""
    wanted = msgspec.structs.replace(LONG, **asked)
    told = explained(router(*fleet, policy=Policy(hand_over=stack)), wanted)
    assert told.chosen is None
    assert {each.instance: each.text for each in told.rejected} == texts
    assert told.miss is not None
    assert told.miss.text.startswith(f"{told.miss.instance} {texts[told.miss.instance]}")
    alone = instance("alone", models=(wanted.model,))
    beside = explained(router(*fleet, alone, policy=Policy(hand_over=stack)), wanted)
    assert beside.chosen == "alone"
    assert {each.instance: each.text for each in beside.rejected} == texts


def test_of_many_that_could_be_partners_the_nearest_few_are_named() -> None:
    starting = [changed(D0, id=f"d{number}", lifecycle=Lifecycle.STARTING) for number in range(9)]
    told = explained(router(P0, *starting, policy=PD))
    text = next(each.text for each in told.rejected if each.instance == "p0")
    assert text.startswith("needs one that answers, has d0 (not_ready), d1 (not_ready), ")
    assert text.endswith(" and 5 more")


def test_long_names_of_both_leave_the_table_within_its_columns() -> None:
    """As pods are named in Kubernetes."""
    prefill, decode = changed(P0, id="vllm-prefill-7c9f8d6b5-abcde"), changed(D0, id="vllm-decode-7c9f8d6b5-x2x4k")
    busy = changed(D1, id="vllm-decode-7c9f8d6b5-bbbbb", load=Load(running=40, waiting=3, kv_usage=0.5))
    text = as_text(explained(router(prefill, decode, busy, instance("slow", hardware="l40s"), policy=PD)))
    assert text.count("  with vllm-prefill-7c9f8d6b5-abcde") == 2
    assert max(map(len, text.splitlines())) <= COLUMNS
