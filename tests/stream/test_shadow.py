"""A request that is not rolled out: decided upon and counted, and nothing that Envoy, an engine or a client sees."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from extproc.api.caller import Trust
from extproc.core.admission.admission import Admission
from extproc.core.limits.charge import State, Verdict
from extproc.core.limits.rules import EACH, Limits, Rule
from extproc.core.models.cold import ColdPolicy, ColdRule, Way
from extproc.core.models.virtual import ModelPolicy, VirtualModel
from extproc.core.rollout import Would
from extproc.core.router import Router
from extproc.core.snapshot import Policy
from extproc.core.values.instance import Instance
from extproc.core.values.option import Option
from extproc.stream.errands import Charge
from extproc.stream.exchange import Exchange
from extproc.stream.messages import (
    EXPLANATION_HEADER,
    Annotate,
    Answer,
    BodyMode,
    Continue,
    HandBack,
    PassOn,
    RequestBody,
    RequestHeaders,
    ResponseHeaders,
    RouteTo,
)
from extproc.stream.rules import Destination, Rules
from tests.core.builders import MODEL, instance, request, router
from tests.stream.conversation import CHAT, ask, chat, one

SHADOW = Rules(rollout_share=0.0)
FAST = instance("fast", address="10.0.0.1:80")
SLOW = instance("slow", address="10.0.0.2:80", hardware="l40s")


def busy(made: Router, requests: int) -> None:
    """The router's one instance has so many long prompts to compute."""
    for number in range(requests):
        asked = request(f"busy-{number}", prompt_tokens=8000)
        chosen = made.weigh((Option(asked),), 0.0, 0.0).decision.chosen
        assert chosen is not None
        made.book(asked, chosen, 0.0)


def passed(reply: object) -> PassOn:
    """The reply, which has to be one that tells Envoy nothing."""
    assert isinstance(reply, PassOn)
    assert (reply.reason, reply.endpoints) == ("shadow", ())
    return reply


def answered(exchange: Exchange, by: Instance, status: int = 200, now: float = 0.01) -> Annotate:
    reply = one(exchange.receive(ResponseHeaders(status, by.address), now, 0.0))
    assert isinstance(reply, Annotate)
    return reply


def test_it_is_decided_upon_and_counts_nowhere_before_envoy_says_where_it_went() -> None:
    made = router(FAST, SLOW)
    exchange, reply = ask(made, chat(), rules=SHADOW)
    believed = passed(reply).features
    assert believed is not None
    assert (believed.instance_key, believed.shadow_key) == (FAST.key, FAST.key)
    assert exchange.decision is not None
    assert exchange.decision.chosen is not None
    assert exchange.decision.chosen.instance.id == "fast"
    assert exchange.shadow is not None
    assert exchange.shadow.text == "routed"
    assert made.ledger.in_flight() == {}
    assert not made.prefixes.entries


def test_it_counts_where_envoy_sent_it_and_is_believed_of_there_until_it_ends() -> None:
    made = router(FAST, SLOW)
    exchange, reply = ask(made, chat(), rules=SHADOW)
    first = passed(reply).features
    there = answered(exchange, SLOW)
    assert there.headers == ()
    assert there.features is not None
    assert first is not None
    assert (there.features.instance_key, there.features.shadow_key) == (SLOW.key, FAST.key)
    assert there.features.ttft_s > there.features.shadow_ttft_s == first.ttft_s
    assert made.ledger.in_flight() == {SLOW.key: 1}
    assert exchange.shadow is not None
    assert exchange.shadow.went is not None
    assert not exchange.shadow.went.agrees
    assert (exchange.shadow.went.regret_s or 0.0) > 0.0
    exchange.close(1.0)
    assert made.ledger.in_flight() == {}


def test_an_answer_that_begins_twice_is_booked_once() -> None:
    """What is booked twice would never be released."""
    made = router(FAST, SLOW)
    exchange, _ = ask(made, chat(), rules=SHADOW)
    answered(exchange, SLOW)
    answered(exchange, FAST)
    assert made.ledger.in_flight() == {SLOW.key: 1}
    exchange.close(1.0)
    assert made.ledger.in_flight() == {}
    assert made.ledger.work(SLOW.key).booked_tokens == 0


def test_an_address_that_is_no_instance_of_ours_tells_nothing() -> None:
    made = router(FAST)
    exchange, _ = ask(made, chat(), rules=SHADOW)
    assert answered(exchange, instance("x", address="10.9.9.9:1")) == Annotate(())
    assert exchange.shadow is not None
    assert exchange.shadow.went is None
    assert made.ledger.in_flight() == {}


@pytest.mark.parametrize("body", [b"{", chat(messages=3), b""])
def test_what_would_be_refused_for_its_body_goes_on(body: Any) -> None:
    exchange, reply = ask(router(FAST), body, rules=SHADOW)
    assert passed(reply).features is None
    assert exchange.shadow is not None
    assert exchange.shadow.would is Would.REFUSED


def test_what_would_be_refused_for_want_of_a_body_goes_on() -> None:
    exchange = Exchange(router(FAST), "1", SHADOW)
    assert one(exchange.receive(RequestHeaders("POST", CHAT, last=True), 0.0, 0.0)) == PassOn(RequestHeaders, "shadow")
    assert exchange.shadow is not None
    assert exchange.shadow.text == "refused: invalid_request_body"


COLD = ColdPolicy(models={"cold": ColdRule(way=Way.HOLD, start_s=5.0), "away": ColdRule(way=Way.REFUSE)})


@pytest.mark.parametrize(
    ("policy", "changes", "text"),
    [
        (Policy(), {"model": "nobody's"}, "refused: model_not_found"),
        (Policy(max_in_flight=1), {}, "refused: at_concurrency_limit"),
        (Policy(max_in_flight=1, admission=Admission()), {}, "held"),
        (Policy(cold=COLD), {"model": "cold"}, "held: model_cold"),
        (Policy(cold=COLD), {"model": "away"}, "refused: model_cold"),
    ],
)
def test_what_would_not_be_routed_goes_on_and_is_counted(policy: Policy, changes: dict[str, Any], text: str) -> None:
    made = router(FAST, policy=policy)
    busy(made, 1)
    made.tail.begins_s = 2.0
    exchange, reply = ask(made, chat(**changes), rules=SHADOW)
    passed(reply)
    assert exchange.shadow is not None
    assert exchange.shadow.text == text
    assert made.tail.begins_s == 2.0  # the tail of those that are sent knows nothing of it
    assert not made.cold.wishes.waiting.total()
    answered(exchange, FAST)
    assert made.ledger.in_flight() == {FAST.key: 2}


def test_without_any_instance_it_would_be_passed_on_or_refused_as_the_operator_says() -> None:
    for refuse, text in ((False, "passed_on: no_instance"), (True, "refused: no_instance")):
        exchange, reply = ask(router(), chat(), rules=Rules(rollout_share=0.0, refuse_unknown=refuse))
        passed(reply)
        assert exchange.shadow is not None
        assert exchange.shadow.text == text


def test_nobody_is_held_in_shadow_and_who_would_be_is_weighed_all_the_same() -> None:
    made = router(FAST, policy=Policy(admission=Admission()))
    busy(made, 400)  # far more than can be served well
    made.tail.begins_s = 2.0
    exchange, reply = ask(made, chat(), rules=SHADOW)
    assert passed(reply).features is not None
    assert exchange.shadow is not None
    assert exchange.shadow.text == "held"
    assert made.tail.begins_s == 2.0
    assert made.wake_at_s == float("inf")


def test_what_would_go_to_a_fallback_for_want_of_room_goes_on() -> None:
    """Where the first model's instances are only too busy, a fallback is looked at with bounds and not without."""
    models = ModelPolicy(fallbacks={MODEL: ("spare",)})
    spare = instance("spare", address="10.0.0.3:80", models=("spare",))
    made = router(FAST, spare, policy=Policy(models=models, admission=Admission()))
    busy(made, 400)
    exchange, reply = ask(made, chat(), rules=SHADOW)
    assert passed(reply).features is None  # of an answer by another model
    assert exchange.shadow is not None
    assert exchange.shadow.text == "routed"
    assert exchange.request is not None
    assert exchange.request.model == "spare"
    answered(exchange, FAST)
    assert exchange.shadow.went is not None
    assert not exchange.shadow.went.agrees


LIMITS = Limits(rules=(Rule(tenants=EACH, requests_per_minute=60),))


@pytest.mark.parametrize("allowed", [True, False])
def test_limits_count_it_and_refuse_nothing_nor_tell_the_client(allowed: bool) -> None:
    rules = Rules(rollout_share=0.0, limits=LIMITS, trust=Trust(tenant_header="x-tenant"))
    made = router(FAST)
    made.tail.begins_s = 2.0
    exchange = Exchange(made, "1", rules)
    exchange.receive(RequestHeaders("POST", CHAT, last=False, headers={"x-tenant": "acme"}), 0.0, 0.0)
    charge = one(exchange.receive(RequestBody(orjson.dumps(chat())), 0.0, 0.0))
    assert isinstance(charge, Charge)
    states = tuple(State(bucket, 0.0, 0.0 if allowed else 2.0) for bucket in charge.buckets)
    reply = passed(one(exchange.resume(Verdict(allowed, 0, states), 0.0, 0.0)))
    assert reply.features is not None
    assert exchange.shadow is not None
    assert exchange.shadow.would is (Would.ROUTED if allowed else Would.REFUSED)
    assert (made.tail.begins_s < 2.0) == allowed  # the tail is that of requests which are sent
    assert answered(exchange, FAST).headers == ()


def test_no_place_is_taken_in_strict_mode() -> None:
    _, reply = ask(router(FAST), chat(), rules=Rules(rollout_share=0.0, strict=True))
    passed(reply)


def test_no_model_is_renamed_and_nothing_is_believed_of_an_answer_of_another_model() -> None:
    models = ModelPolicy(virtual={"auto": VirtualModel(name="auto", models=(MODEL,))})
    made = router(FAST, policy=Policy(models=models))
    exchange, reply = ask(made, chat(model="auto"), rules=SHADOW)
    assert passed(reply).features is None
    assert exchange.request is not None
    assert exchange.request.model == MODEL
    assert answered(exchange, FAST) == Annotate(())


def test_a_trusted_caller_is_told_that_it_was_in_shadow_and_where_it_went() -> None:
    rules = Rules(rollout_share=0.0, trust=Trust(explain_header="x-why"))
    exchange = Exchange(router(FAST, SLOW), "1", rules)
    exchange.receive(RequestHeaders("POST", CHAT, last=False, headers={"x-why": "1"}), 0.0, 0.0)
    passed(one(exchange.receive(RequestBody(orjson.dumps(chat())), 0.0, 0.0)))
    ((name, told),) = answered(exchange, SLOW).headers
    assert name == EXPLANATION_HEADER
    assert "shadow: would be routed; instance=fast; served by=slow" in told


def test_a_gateway_that_balances_nothing_gets_endpoints_without_a_decision() -> None:
    _, reply = ask(router(FAST, SLOW), chat(), rules=Rules(rollout_share=0.0, destination=Destination.GATEWAY))
    assert isinstance(reply, PassOn)
    assert (reply.reason, reply.endpoints) == ("shadow", (FAST.address, SLOW.address))
    assert reply.features is not None


def test_a_body_that_was_collected_goes_on_whole() -> None:
    exchange = Exchange(router(FAST), "1", SHADOW)
    head = RequestHeaders("POST", CHAT, last=False, body_mode=BodyMode.FULL_DUPLEX)
    assert exchange.receive(head, 0.0, 0.0) == ()
    body = orjson.dumps(chat())
    replies = exchange.receive(RequestBody(body), 0.0, 0.0)
    assert isinstance(replies, tuple)
    first, second = replies
    assert passed(first).to is RequestHeaders
    assert second == HandBack(body, last=True)


def test_the_models_page_is_the_engines_own() -> None:
    for share, kind in ((0.0, PassOn), (1.0, Answer)):
        exchange = Exchange(router(FAST), "1", Rules(rollout_share=share, answer_models=True))
        assert isinstance(one(exchange.receive(RequestHeaders("GET", "/v1/models", last=True), 0.0, 0.0)), kind)


def test_a_conversation_is_drawn_by_the_session_in_its_header_or_its_body() -> None:
    """All of its turns are routed, or none; of many sessions some are and some are not."""
    sides = []
    for number in range(30):
        headers, body = {"x-session-id": f"{number}"}, chat(session_id=f"{number}")
        kinds = set()
        for turn in range(4):
            exchange = Exchange(router(FAST), f"{number}-{turn}", Rules(rollout_share=0.5))
            told = headers if turn % 2 else {}
            head = RequestHeaders("POST", CHAT, last=False, headers=told)
            assert exchange.receive(head, 0.0, 0.0) == (Continue(RequestHeaders),)
            kinds.add(type(one(exchange.receive(RequestBody(orjson.dumps(chat() if turn % 2 else body)), 0.0, 0.0))))
        assert len(kinds) == 1
        sides.append(kinds.pop())
    assert set(sides) == {RouteTo, PassOn}
