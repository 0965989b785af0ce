"""A request is held against its limits before anything is decided of it, and its client is told how it stands."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from typing import Any

import orjson
import pytest

from extproc.api.caller import Trust
from extproc.core.limits.charge import Receipt, State, Verdict
from extproc.core.limits.rules import EACH, Kind, Limits, OnLoss, Rule
from extproc.core.router import Router
from extproc.stream.errands import Charge, Errand
from extproc.stream.exchange import Exchange
from extproc.stream.messages import (
    EXPLANATION_HEADER,
    Annotate,
    Answer,
    BodyMode,
    Continue,
    PassOn,
    Replies,
    RequestBody,
    RequestHeaders,
    ResponseHeaders,
    RouteTo,
)
from extproc.stream.rules import Rules
from tests.core.builders import MODEL, instance, router
from tests.stream.conversation import CHAT, chat, one

LIMITS = Limits(
    rules=(
        Rule(tenants=EACH, requests_per_minute=60, tokens_per_minute=6000),
        Rule(tenants=frozenset("x"), concurrent=1),
    ),
    names={"key of x": "x"},
)
TRUST = Trust(tenant_header="x-tenant", explain_header="x-why")
RULES = Rules(trust=TRUST, limits=LIMITS)
AT_US = 1_800_000_000_000_000
HEADERS = {
    "x-ratelimit-limit-requests": "60",
    "x-ratelimit-remaining-requests": "59",
    "x-ratelimit-reset-requests": "1s",
    "x-ratelimit-limit-tokens": "6000",
}


def begun(
    made: Router, rules: Rules = RULES, body: Any = None, path: str = CHAT, **headers: str
) -> tuple[Exchange, Replies | Errand]:
    """An exchange, and what it says to the whole body."""
    exchange = Exchange(made, "7", rules)
    head = {"x-tenant": "acme"} | {name.replace("_", "-"): value for name, value in headers.items()}
    exchange.receive(RequestHeaders("POST", path, last=False, headers=head), 0.0, 0.0)
    return exchange, exchange.receive(RequestBody(orjson.dumps(body or chat())), 0.0, 0.0)


def verdict(charge: Charge, *, full: Kind | None = None, wait_s: float = 2.5) -> Verdict:
    """All buckets as they are after this one charge; or one of them was full."""
    states = []
    for bucket in charge.buckets:
        used = charge.tokens if bucket.kind is Kind.TOKENS else 1.0
        is_full = bucket.kind is full
        states.append(State(bucket, bucket.capacity if is_full else used, wait_s if is_full else 0.0))
    return Verdict(full is None, AT_US, tuple(states))


def asked(errand: Replies | Errand) -> Charge:
    assert isinstance(errand, Charge)
    return errand


def test_a_request_within_its_limits_is_routed_with_a_receipt_and_its_answer_tells_what_is_left() -> None:
    """What was charged comes back with the outcome, at whichever router."""
    exchange, errand = begun(router(instance("a", address="10.0.0.1:80")))
    charge = asked(errand)
    assert {bucket.kind for bucket in charge.buckets} == {Kind.REQUESTS, Kind.TOKENS}
    assert (charge.request_id, charge.tenant, charge.model) == ("7", "acme", MODEL)
    reply = one(exchange.resume(verdict(charge), 1.0, 0.0))
    assert isinstance(reply, RouteTo)
    assert exchange.request is not None
    assert charge.tokens == exchange.request.prompt_tokens + exchange.request.expected_output_tokens
    assert Receipt.read(reply.features.charge, "acme") == Receipt(charge.tokens, AT_US, "acme", MODEL)
    answered = one(exchange.receive(ResponseHeaders(200, "10.0.0.1:80"), 2.0, 0.0))
    assert isinstance(answered, Annotate)
    told = dict(answered.headers)
    assert HEADERS.items() <= told.items()
    assert told["x-ratelimit-remaining-tokens"] == str(6000 - charge.tokens)


@pytest.mark.parametrize(
    ("kind", "wait_s", "retry_s"), [(Kind.REQUESTS, 2.5, 3), (Kind.TOKENS, 0.1, 1), (Kind.CONCURRENT, inf, 1)]
)
def test_a_request_beyond_a_limit_is_refused_before_anything_is_decided(
    kind: Kind, wait_s: float, retry_s: int
) -> None:
    """Nothing is booked anywhere; the client is told when to come again."""
    made = router(instance())
    exchange, errand = begun(made, x_tenant="key of x")
    reply = one(exchange.resume(verdict(asked(errand), full=kind, wait_s=wait_s), 1.0, 0.0))
    assert isinstance(reply, Answer)
    assert (reply.status, reply.reason, reply.retry_after_s) == (429, f"limit_{kind.value}", retry_s)
    assert dict(reply.headers)["x-ratelimit-limit-requests"] == "60"
    assert exchange.decision is None
    assert made.ledger.in_flight() == {}


def test_anthropics_clients_are_told_in_their_own_terms() -> None:
    """Headers and error."""
    body = {"model": MODEL, "max_tokens": 9, "messages": [{"role": "user", "content": "x"}]}
    exchange, errand = begun(router(instance()), body=body, path="/v1/messages")
    reply = one(exchange.resume(verdict(asked(errand), full=Kind.TOKENS), 1.0, 0.0))
    assert isinstance(reply, Answer)
    assert orjson.loads(reply.body)["error"]["type"] == "rate_limit_error"
    assert dict(reply.headers)["anthropic-ratelimit-tokens-remaining"] == "0"


@pytest.mark.parametrize(("on_loss", "routed"), [(OnLoss.ALLOW, True), (OnLoss.REFUSE, False)])
def test_where_nobody_knows_it_is_the_operators_choice(on_loss: OnLoss, routed: bool) -> None:
    """Without a receipt nothing is settled, and nothing is told of what is not known."""
    exchange, errand = begun(router(instance()), replace(RULES, limits=replace(LIMITS, on_loss=on_loss)))
    asked(errand)
    reply = one(exchange.resume(None, 1.0, 0.0))
    if routed:
        assert isinstance(reply, RouteTo)
        assert reply.features.charge == ""
        assert one(exchange.receive(ResponseHeaders(200, ""), 2.0, 0.0)) == Continue(ResponseHeaders)
    else:
        assert isinstance(reply, Answer)
        assert (reply.status, reply.reason, reply.retry_after_s) == (503, "limits_unknown", 1)


def test_a_request_that_no_limit_holds_for_pays_no_round_trip() -> None:
    """The same with rules for others as without any."""
    limits = Limits(rules=(Rule(tenants=frozenset({"other"}), concurrent=1),))
    for rules in (replace(RULES, limits=limits), Rules(trust=TRUST)):
        _, replies = begun(router(instance()), rules)
        reply = one(replies)
        assert isinstance(reply, RouteTo)
        assert reply.features.charge == ""


def test_without_a_limit_of_tokens_there_is_no_receipt() -> None:
    """Nothing is to be settled."""
    limits = Limits(rules=(Rule(requests_per_minute=60),))
    exchange, errand = begun(router(instance()), replace(RULES, limits=limits))
    reply = one(exchange.resume(verdict(asked(errand)), 1.0, 0.0))
    assert isinstance(reply, RouteTo)
    assert reply.features.charge == ""


def test_a_request_without_a_model_is_within_limits_too() -> None:
    """It goes on undecided, and its client is told how it stands: leaving the model out is no way around."""
    exchange, errand = begun(router(instance()), body={"query": "q", "documents": ["d"]}, path="/v1/rerank")
    assert asked(errand).model == ""
    assert one(exchange.resume(verdict(asked(errand)), 1.0, 0.0)) == PassOn(RequestBody, "no_model")
    answered = one(exchange.receive(ResponseHeaders(200, ""), 2.0, 0.0))
    assert isinstance(answered, Annotate)
    assert HEADERS.items() <= dict(answered.headers).items()


def test_what_is_refused_for_another_reason_tells_how_it_stands_beside_why() -> None:
    """Both on an answer of ours and on an engine's."""
    exchange, errand = begun(router(instance()), body=chat(model="nobody-has-it"), x_why="1")
    reply = one(exchange.resume(verdict(asked(errand)), 1.0, 0.0))
    assert isinstance(reply, Answer)
    assert reply.status == 404
    assert {EXPLANATION_HEADER, *HEADERS} <= dict(reply.headers).keys()
    exchange, errand = begun(router(instance()), x_why="1")
    exchange.resume(verdict(asked(errand)), 1.0, 0.0)
    answered = one(exchange.receive(ResponseHeaders(200, ""), 2.0, 0.0))
    assert isinstance(answered, Annotate)
    assert {EXPLANATION_HEADER, *HEADERS} <= dict(answered.headers).keys()


def test_a_body_that_was_collected_is_refused_in_the_place_of_its_headers() -> None:
    """FULL_DUPLEX: nothing of it is handed back."""
    exchange = Exchange(router(instance()), "7", RULES)
    head = RequestHeaders("POST", CHAT, last=False, headers={"x-tenant": "acme"}, body_mode=BodyMode.FULL_DUPLEX)
    assert exchange.receive(head, 0.0, 0.0) == ()
    charge = asked(exchange.receive(RequestBody(orjson.dumps(chat()), last=True), 0.0, 0.0))
    reply = one(exchange.resume(verdict(charge, full=Kind.REQUESTS), 1.0, 0.0))
    assert isinstance(reply, Answer)
    assert reply.status == 429
