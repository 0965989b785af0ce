"""The step in which a request is held: what the shell is asked for, and what comes of each answer to it."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import orjson
import pytest

from extproc.api.caller import Trust
from extproc.core.admission.accounts import Account
from extproc.core.admission.admission import Admission
from extproc.core.reasons.explanation import explain
from extproc.core.reasons.explanation_text import as_line, as_text
from extproc.core.router import Router
from extproc.core.snapshot import Policy
from extproc.core.values.option import Choice, Option
from extproc.core.values.request import Request, RequestClass
from extproc.stream.errands import AwaitModel, Hold, Place, TakePlace
from extproc.stream.exchange import Exchange
from extproc.stream.messages import Answer, BodyMode, MoreTime, RequestBody, RequestHeaders, RouteTo
from extproc.stream.patience import MARGIN_S
from extproc.stream.rules import Destination, Rules
from tests.core.builders import MODEL, instance, request, router
from tests.stream.conversation import CHAT, chat, one

RULES = Rules(trust=Trust(class_header="x-class", tenant_header="x-tenant"))
BATCH = {"x-class": "batch", "x-tenant": "t"}


def full(policy: Policy | None = None) -> Router:
    """A router whose one instance has one place, which is taken."""
    made = router(instance("a"), policy=policy or Policy(max_in_flight=1, admission=Admission()))
    assert isinstance(made.admit((Option(other()),), 0.0, 0.0), Choice)
    return made


def other() -> Request:
    return msgspec.structs.replace(request(), id="other")


def asking(made: Router, rules: Rules = RULES, mode: BodyMode = BodyMode.BUFFERED) -> tuple[Exchange, Hold]:
    """An exchange whose request is held, and what its shell is asked for."""
    exchange = Exchange(made, "1", rules)
    exchange.receive(RequestHeaders("POST", CHAT, last=False, headers=BATCH, body_mode=mode), 0.0, 0.0)
    hold = one(exchange.receive(RequestBody(orjson.dumps(chat())), 0.0, 0.0))
    assert isinstance(hold, Hold)
    return exchange, hold


def turn(made: Router, now: float) -> Choice:
    """The choice with which the router lets go the one request that it holds."""
    (let_go,) = made.let_go(now, 0.0)
    assert let_go.request_id == "1"
    return let_go.choice


def test_a_held_request_is_routed_when_its_turn_comes() -> None:
    made = full()
    exchange, hold = asking(made)
    assert (hold.request_id, hold.request_class, hold.tenant) == ("1", RequestClass.BATCH, "t")
    assert exchange.held_s is None
    made.release("other", 1.0)
    reply = one(exchange.resume(turn(made, 1.0), 1.0, 0.0))
    assert isinstance(reply, RouteTo)
    assert exchange.held_s == 1.0
    assert made.ledger.in_flight() == {"a@1": 1}
    exchange.close(2.0)
    assert made.ledger.in_flight() == {}


def test_a_request_that_is_shed_is_refused_with_when_to_come_again() -> None:
    made = full()
    exchange, hold = asking(made)
    reply = one(exchange.resume(turn(made, hold.until_s), hold.until_s, 0.0))
    assert isinstance(reply, Answer)
    assert (reply.status, reply.reason) == (503, "overloaded")
    assert reply.retry_after_s is not None
    assert 1 <= reply.retry_after_s <= 60


def test_a_gateway_gets_the_429_of_its_protocol() -> None:
    made = full()
    exchange, hold = asking(made, replace(RULES, destination=Destination.GATEWAY))
    reply = one(exchange.resume(turn(made, hold.until_s), hold.until_s, 0.0))
    assert isinstance(reply, Answer)
    assert (reply.status, reply.reason) == (429, "overloaded")


def test_a_request_that_must_not_wait_any_longer_is_refused_and_held_no_more() -> None:
    made = full()
    exchange, _ = asking(made)
    reply = one(exchange.resume(None, 1.0, 0.0))
    assert isinstance(reply, Answer)
    assert (reply.status, reply.reason) == (503, "overloaded")
    assert made.wake_at_s == float("inf")


def test_a_stream_that_ends_while_its_request_is_held_withdraws_it() -> None:
    made = full()
    exchange, _ = asking(made)
    exchange.close(1.0)
    made.release("other", 1.0)
    assert made.let_go(1.0, 0.0) == ()
    assert made.ledger.in_flight() == {}


@pytest.mark.parametrize("mode", [BodyMode.BUFFERED, BodyMode.STREAMED_EARLY])
def test_envoy_is_asked_for_more_time_once_for_as_long_as_the_request_may_be_held(mode: BodyMode) -> None:
    """It heeds no second wish; so the first must do for all that may follow."""
    exchange, hold = asking(full(), mode=mode)
    assert exchange.wait(hold, 1.0) == (hold, MoreTime(hold.until_s - 1.0 + MARGIN_S))
    assert exchange.wait(hold, 1.0) == (hold, None)


def test_an_envoy_that_counts_no_time_is_not_asked_for_more() -> None:
    exchange, hold = asking(full(), mode=BodyMode.FULL_DUPLEX)
    assert exchange.wait(hold, 0.0) == (hold, None)


def test_in_strict_mode_who_finds_no_place_over_all_routers_is_held_again_and_for_no_longer() -> None:
    """Counted from when it first came; and the shell learns where no place was left."""
    policy = Policy(max_in_flight=1, admission=Admission())
    made = full(policy)
    exchange, hold = asking(made, replace(RULES, strict=True))
    made.release("other", 1.0)
    wish = one(exchange.resume(turn(made, 1.0), 1.0, 0.0))
    assert wish == TakePlace("1", (Place("a@1", 1),))
    again = one(exchange.resume(None, 2.0, 0.0))
    assert again == replace(hold, full=frozenset({"a@1"}))
    assert made.ledger.in_flight() == {}
    assert isinstance(one(exchange.resume(turn(made, 3.0), 3.0, 0.0)), TakePlace)
    assert isinstance(one(exchange.resume(0, 3.0, 0.0)), RouteTo)
    assert exchange.held_s == 2.0


def test_in_strict_mode_a_tenant_owes_once_for_a_request_that_is_tried_more_than_once() -> None:
    """It is served once; what each try would have cost is taken back."""
    debts = []
    for tries in (0, 3):
        policy = Policy(admission=Admission())
        made = router(*(instance(f"i{number}") for number in range(40)), policy=policy)
        exchange = Exchange(made, "1", replace(RULES, strict=True))
        exchange.receive(RequestHeaders("POST", CHAT, last=False, headers=BATCH), 0.0, 0.0)
        wish = one(exchange.receive(RequestBody(orjson.dumps(chat())), 0.0, 0.0))
        for _ in range(tries):
            assert isinstance(wish, TakePlace)
            wish = one(exchange.resume(None, 0.1, 0.0))
        assert isinstance(one(exchange.resume(0, 0.2, 0.0)), RouteTo)
        assert made.gate is not None
        debts.append(made.gate.room.rank(0.0, Account(MODEL, "t"), 0.0)[2])
    assert debts[0] == debts[1] > 0.0


def test_without_admission_nothing_is_held() -> None:
    made = router(instance("a"), policy=Policy(max_in_flight=1))
    made.choose(other(), 0.0, 0.0)
    exchange = Exchange(made, "1", RULES)
    exchange.receive(RequestHeaders("POST", CHAT, last=False), 0.0, 0.0)
    reply = one(exchange.receive(RequestBody(orjson.dumps(chat())), 0.0, 0.0))
    assert isinstance(reply, Answer)
    assert (reply.status, reply.reason) == (503, "at_concurrency_limit")


def test_an_explanation_tells_for_how_long_a_request_was_held() -> None:
    made = full()
    exchange, _ = asking(made)
    made.release("other", 1.0)
    exchange.resume(turn(made, 1.25), 1.25, 0.0)
    known = exchange.material()
    assert known is not None
    told = explain(known)
    assert told.held_s == 1.25
    assert "held=1.250s" in as_line(told)
    assert "was held for 1.25 s" in as_text(told)


def test_a_router_admits_on_a_clock_that_began_long_ago_and_after_a_long_silence() -> None:
    """A host's clock begins with its start; what tenants had then has faded, whatever the numbers are."""
    for now in (1e6, 3e6):
        made = router(instance("a"), policy=Policy(admission=Admission(), stale_after_s=1e9))
        for later_s in (0.0, 1e6):
            assert isinstance(made.admit((Option(other()),), now + later_s, 0.0), Choice)
            made.release("other", now + later_s)


def test_who_has_waited_for_its_model_is_held_no_longer_than_envoy_was_asked_for_then() -> None:
    """It heeds one wish only: what is left of that time is all that there is."""
    exchange, hold = asking(full())
    wait = AwaitModel("m", 21.0)
    assert exchange.wait(wait, 1.0) == (wait, MoreTime(20.0 + MARGIN_S))
    assert exchange.wait(hold, 15.0) == (replace(hold, until_s=21.0), None)


def test_who_was_held_waits_for_its_model_no_longer_than_envoy_was_asked_for() -> None:
    """The instance went while it was held: the second wait is in the time of the first."""
    exchange, hold = asking(full())
    assert exchange.wait(hold, 0.0) == (hold, MoreTime(hold.until_s + MARGIN_S))
    late = AwaitModel("m", hold.until_s + 20.0)
    assert exchange.wait(late, 1.0) == (AwaitModel("m", hold.until_s), None)
