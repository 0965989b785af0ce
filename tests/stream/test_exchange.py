"""One HTTP request through the ext_proc conversation, message by message, without a socket."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from extproc.api.caller import Trust
from extproc.core.pairs.hand_over import HandOver
from extproc.core.router import Router
from extproc.core.snapshot import Policy
from extproc.core.tokens.tokens import ExactCount
from extproc.core.values.instance import Instance, Lifecycle, Role
from extproc.core.values.request import Conversation
from extproc.stream.errands import CountTokens, Errand, Place, TakePlace
from extproc.stream.exchange import Exchange
from extproc.stream.messages import (
    EXPLANATION_HEADER,
    Annotate,
    Answer,
    Continue,
    PassOn,
    Reply,
    RequestBody,
    RequestHeaders,
    ResponseHeaders,
    RouteTo,
    Trailers,
)
from extproc.stream.rules import Rules
from tests.core.builders import MODEL, instance, publish, router
from tests.stream.conversation import CHAT, RULES, ask, chat, one

LONG_MESSAGE = {"role": "user", "content": "some words " * 60_000}


def test_a_chat_request_is_routed_and_released_when_its_stream_ends() -> None:
    made = router(instance("a", address="10.0.0.1:80", cluster="gpu"))
    exchange, reply = ask(made, chat())
    assert isinstance(reply, RouteTo)
    assert (reply.cluster, reply.endpoints) == ("gpu", ("10.0.0.1:80",))
    assert made.ledger.in_flight() == {"a@1": 1}
    assert one(exchange.receive(ResponseHeaders(200, "10.0.0.1:80"), 1.0, 0.0)) == Continue(ResponseHeaders)
    assert one(exchange.receive(Trailers(of_request=False), 2.0, 0.0)) == Continue(Trailers, False)
    assert made.ledger.in_flight() == {"a@1": 1}
    exchange.close(3.0)
    assert made.ledger.in_flight() == {}


@pytest.mark.parametrize("messages", [0, 1, 2, 3])
def test_a_stream_that_ends_after_any_message_leaves_nothing_in_flight(messages: int) -> None:
    made = router(instance())
    exchange = Exchange(made, "1", RULES)
    script = [
        RequestHeaders("POST", CHAT, last=False),
        RequestBody(orjson.dumps(chat())),
        ResponseHeaders(200, ""),
    ]
    for message in script[:messages]:
        exchange.receive(message, 0.0, 0.0)
    exchange.close(1.0)
    assert made.ledger.in_flight() == {}


def test_after_a_retry_the_request_counts_where_it_is_served() -> None:
    made = router(instance("a", address="10.0.0.1:80"), instance("b", address="10.0.0.2:80"))
    exchange, reply = ask(made, chat())
    assert isinstance(reply, RouteTo)
    exchange.receive(ResponseHeaders(200, reply.endpoints[1]), 1.0, 0.0)
    served = made.fleet.by_address(reply.endpoints[1])
    assert served is not None
    assert made.ledger.in_flight() == {served.instance.key: 1}


def test_after_a_retry_the_prefix_is_expected_where_the_request_was_served() -> None:
    made = router(instance("a", address="10.0.0.1:80"), instance("b", address="10.0.0.2:80"))
    exchange, reply = ask(made, chat(messages=[{"role": "user", "content": "some words " * 500}]))
    assert isinstance(reply, RouteTo)
    served = made.fleet.by_address(reply.endpoints[1])
    assert served is not None
    assert not made.prefixes.size(served.instance.key)
    exchange.receive(ResponseHeaders(200, reply.endpoints[1]), 1.0, 0.0)
    assert made.prefixes.size(served.instance.key)


def test_endpoints_are_named_within_the_chosen_cluster_and_alternatives_in_any() -> None:
    made = router(
        instance("a", cluster="one", hardware="h200_sxm", address="10.0.0.1:80"),
        instance("b", cluster="two", address="10.0.0.2:80"),
        instance("c", cluster="one", hardware="l40s", address="10.0.0.3:80"),
    )
    _, reply = ask(made, chat())
    assert isinstance(reply, RouteTo)
    assert reply.endpoints == ("10.0.0.1:80", "10.0.0.3:80")
    assert reply.alternatives == ("10.0.0.2:80", "10.0.0.3:80")  # for clusters of one instance each


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", "/v1/models"), ("POST", "/v1/unknown"), ("GET", CHAT), ("POST", "/"), ("DELETE", "/v1/files/x")],
)
def test_what_is_not_ours_is_passed_on_whatever_its_body(method: str, path: str) -> None:
    exchange = Exchange(router(instance()), "1", RULES)
    head = RequestHeaders(method, path, last=False)
    assert one(exchange.receive(head, 0.0, 0.0)) == PassOn(RequestHeaders, "unknown_path")
    assert one(exchange.receive(RequestBody(b"\xff"), 0.0, 0.0)) == Continue(RequestBody)
    assert one(exchange.receive(ResponseHeaders(200, ""), 0.0, 0.0)) == Continue(ResponseHeaders)


def test_without_any_known_instance_envoys_own_balancing_decides() -> None:
    _, reply = ask(router(), chat())
    assert reply == PassOn(RequestBody, "no_instance")


def test_without_any_known_instance_an_operator_may_have_requests_refused() -> None:
    _, reply = ask(router(), chat(), rules=Rules(refuse_unknown=True))
    assert isinstance(reply, Answer)
    assert (reply.status, reply.reason, reply.retry_after_s) == (503, "no_instance", 1)
    _, reply = ask(router(instance()), chat(), rules=Rules(refuse_unknown=True))
    assert isinstance(reply, RouteTo)


@pytest.mark.parametrize(
    ("body", "status", "code", "param"),
    [
        (b"", 400, "invalid_request_body", None),
        (b"null", 400, "invalid_request_body", None),
        (b"[]", 400, "invalid_request_body", None),
        (b'"x"', 400, "invalid_request_body", None),
        (b'{"model": "m"', 400, "invalid_request_body", None),
        (b"\xef\xbb\xbf{}", 400, "invalid_request_body", None),
        (b'{"model": "\xff"}', 400, "invalid_request_body", None),
        (b'{"model": "\\ud800"}', 400, "invalid_request_body", None),
        (b"[" * 10_000 + b"]" * 10_000, 400, "invalid_request_body", None),
        (chat(model=""), 400, "invalid_request_body", "model"),
        (chat(model=7), 400, "invalid_request_body", "model"),
        (chat(model=None), 400, "invalid_request_body", "model"),
        (chat(messages=[]), 400, "invalid_request_body", "messages"),
        (chat(messages="x"), 400, "invalid_request_body", "messages"),
        (chat(messages=[1]), 400, "invalid_request_body", "messages[0]"),
        (chat(max_tokens="x"), 400, "invalid_request_body", "max_tokens"),
        (chat(max_tokens=-1), 400, "invalid_request_body", "max_tokens"),
        (chat(n=1e400), 400, "invalid_request_body", None),
        (chat(model="nobody-has-it"), 404, "model_not_found", "model"),
        (chat(messages=[LONG_MESSAGE]), 400, "context_length_exceeded", "messages"),
    ],
)
def test_a_body_that_no_engine_would_take_gets_an_openai_shaped_error(
    body: Any, status: int, code: str, param: str | None
) -> None:
    data = orjson.dumps(body).replace(b'"n":null', b'"n":1e400') if isinstance(body, dict) else body
    made = router(instance())
    _, reply = ask(made, data)
    assert isinstance(reply, Answer)
    error = orjson.loads(reply.body)["error"]
    assert (reply.status, error["code"], error["param"]) == (status, code, param)
    assert error["message"]
    assert made.ledger.in_flight() == {}


def counting(*instances: Instance) -> tuple[Router, Exchange, Reply | Errand]:
    """A chat of about 1,000 tokens, between whose estimate and truth the instances' context limits may lie."""
    made = router(*instances)
    exchange = Exchange(made, "1", Rules(counted_models=frozenset((MODEL,))))
    exchange.receive(RequestHeaders("POST", CHAT, last=False), 0.0, 0.0)
    body = chat(messages=[{"role": "user", "content": "some words " * 500}], chat_template_kwargs={"thinking": False})
    return made, exchange, one(exchange.receive(RequestBody(orjson.dumps(body)), 0.0, 0.0))


def test_tokens_are_counted_where_that_tells_which_instance_has_room() -> None:
    small, large = instance("small", max_model_len_tokens=1000), instance("large", hardware="l40s")
    for tokens, name in ((1001, "large"), (999, "small"), (None, "large")):
        made, exchange, wish = counting(small, large)
        assert isinstance(wish, CountTokens)
        assert wish.model == MODEL
        assert isinstance(wish.what, Conversation)
        assert wish.what.arguments == {"thinking": False}
        assert made.ledger.in_flight() == {}
        reply = one(exchange.resume(None if tokens is None else ExactCount(tokens, 0), 0.0, 0.0))
        assert isinstance(reply, RouteTo)
        assert reply.features.instance_key == f"{name}@1"
        assert exchange.request is not None
        assert tokens is None or exchange.request.prompt_tokens == tokens
        exchange.close(1.0)
        assert made.ledger.in_flight() == {}


@pytest.mark.parametrize("limits", [(1000,), (1000, 1000), (100_000, 32_768), (50, 32_768), (None, 32_768)], ids=str)
def test_no_time_is_spent_on_a_count_that_could_not_change_the_choice(limits: tuple[int | None, ...]) -> None:
    named = [instance(f"i{number}", max_model_len_tokens=limit) for number, limit in enumerate(limits)]
    assert not isinstance(counting(*named)[2], CountTokens)


def test_a_stream_that_ends_while_its_tokens_are_counted_leaves_nothing_behind() -> None:
    made, exchange, wish = counting(instance("a", max_model_len_tokens=1000), instance("b"))
    assert isinstance(wish, CountTokens)
    exchange.close(1.0)
    assert made.ledger.in_flight() == {}


def placing(**rules: int) -> tuple[Router, Exchange, Reply | Errand]:
    made = router(instance("a"), instance("b", hardware="l40s", max_num_seqs=8), policy=Policy(**rules))
    exchange = Exchange(made, "1", Rules(strict=True))
    exchange.receive(RequestHeaders("POST", CHAT, last=False), 0.0, 0.0)
    return made, exchange, one(exchange.receive(RequestBody(orjson.dumps(chat())), 0.0, 0.0))


@pytest.mark.parametrize(
    ("rules", "limits"),
    [({"max_in_flight": 5}, (5, 5)), ({"max_queued": 2}, (258, 10)), ({"max_in_flight": 9, "max_queued": 2}, (9, 9))],
)
def test_in_strict_mode_a_place_is_taken_over_all_routers_before_a_request_is_routed(
    rules: dict[str, int], limits: tuple[int, int]
) -> None:
    for place, key in ((0, "a@1"), (1, "b@1")):
        made, exchange, wish = placing(**rules)
        assert wish == TakePlace("1", (Place("a@1", limits[0]), Place("b@1", limits[1])))
        assert made.ledger.in_flight() == {"a@1": 1}  # the next decision does not wait for Redis
        reply = one(exchange.resume(place, 0.0, 0.0))
        assert isinstance(reply, RouteTo)
        assert reply.features.instance_key == key
        assert made.ledger.in_flight() == {key: 1}
        assert len(reply.endpoints) == 1  # a retry may not go where no place was taken
        assert not reply.alternatives
        exchange.close(1.0)
        assert made.ledger.in_flight() == {}


def test_in_strict_mode_a_last_resort_is_asked_for_a_place_when_no_sound_instance_has_one() -> None:
    """Not in the same breath: another model of the request's may have one before."""
    made = router(instance("a"), instance("b"), policy=Policy(max_in_flight=5))
    made.backpressure.push_back("b@1", 0.0, 0.0)
    exchange = Exchange(made, "1", Rules(strict=True))
    exchange.receive(RequestHeaders("POST", CHAT, last=False), 0.0, 0.0)
    wish = one(exchange.receive(RequestBody(orjson.dumps(chat())), 0.0, 0.0))
    assert wish == TakePlace("1", (Place("a@1", 5),))
    assert one(exchange.resume(None, 0.0, 0.0)) == TakePlace("1", (Place("b@1", 5),))
    reply = one(exchange.resume(0, 0.0, 0.0))
    assert isinstance(reply, RouteTo)
    assert (reply.features.instance_key, reply.alternatives) == ("b@1", ())


def test_where_no_place_is_left_over_all_routers_the_client_may_come_again() -> None:
    made, exchange, _ = placing(max_in_flight=5)
    reply = one(exchange.resume(None, 0.0, 0.0))
    assert isinstance(reply, Answer)
    assert (reply.status, reply.reason) == (503, "at_concurrency_limit")
    assert reply.retry_after_s
    assert made.ledger.in_flight() == {}


def test_who_finds_no_place_is_believed_to_be_held_nowhere() -> None:
    """Its prompt was never sent: what shares its beginning has no reason to follow it there."""
    made = router(instance("a"), policy=Policy(max_in_flight=5))
    exchange = Exchange(made, "1", Rules(strict=True))
    exchange.receive(RequestHeaders("POST", CHAT, last=False), 0.0, 0.0)
    long = {"model": MODEL, "messages": [{"role": "user", "content": "some words " * 1000}]}
    assert isinstance(one(exchange.receive(RequestBody(orjson.dumps(long)), 0.0, 0.0)), TakePlace)
    assert made.prefixes.entries > 0
    exchange.resume(None, 0.0, 0.0)
    assert (made.prefixes.entries, made.recent.blocks) == (0, 0)


def test_instances_beyond_the_first_few_are_asked_too_before_a_request_is_refused() -> None:
    names = "abcdefgh"
    made = router(*(instance(name) for name in names), policy=Policy(max_in_flight=5))
    exchange = Exchange(made, "1", Rules(strict=True))
    exchange.receive(RequestHeaders("POST", CHAT, last=False), 0.0, 0.0)
    reply = one(exchange.receive(RequestBody(orjson.dumps(chat())), 0.0, 0.0))
    asked = []
    while isinstance(reply, TakePlace):
        asked += [place.key for place in reply.places]
        reply = one(exchange.resume(None, 0.0, 0.0))
    assert sorted(asked) == [f"{name}@1" for name in names]
    assert isinstance(reply, Answer)
    assert made.ledger.in_flight() == {}


def test_many_prompts_in_one_body_are_held_against_the_context_one_by_one() -> None:
    texts = ["some words " * 1000] * 60
    _, reply = ask(router(instance()), {"model": MODEL, "input": texts}, "/v1/embeddings")
    assert isinstance(reply, RouteTo)
    assert reply.features.prompt_tokens > 32_768
    _, reply = ask(router(instance()), {"model": MODEL, "input": ["x", "some words " * 60_000]}, "/v1/embeddings")
    assert isinstance(reply, Answer)
    assert orjson.loads(reply.body)["error"]["param"] == "input"


def test_a_request_that_may_leave_its_model_out_is_passed_on_without_one() -> None:
    _, reply = ask(router(instance()), {"query": "q", "documents": ["d"]}, "/v1/rerank")
    assert reply == PassOn(RequestBody, "no_model")


def test_errors_have_the_shape_of_the_api_they_are_for() -> None:
    _, reply = ask(router(instance()), {"model": "nobody", "max_tokens": 1, "messages": []}, "/v1/messages")
    assert isinstance(reply, Answer)
    assert orjson.loads(reply.body)["type"] == "error"


def test_a_request_without_a_body_is_refused_at_once() -> None:
    reply = one(Exchange(router(instance()), "1", RULES).receive(RequestHeaders("POST", CHAT, last=True), 0.0, 0.0))
    assert isinstance(reply, Answer)
    assert reply.status == 400


def test_a_model_that_is_loading_is_a_503_with_retry_after_not_a_404() -> None:
    _, reply = ask(router(instance(lifecycle=Lifecycle.LOADING, models=())), chat())
    assert isinstance(reply, Answer)
    assert (reply.status, reply.reason, reply.retry_after_s) == (503, "not_ready", 1)


@pytest.mark.parametrize(
    "beside", [{"models": ()}, {"models": (), "lifecycle": Lifecycle.LOADING, "asleep": True, "loadable": ("another",)}]
)
def test_a_name_that_nobody_serves_nor_will_is_a_404_whatever_else_is_there(beside: dict[str, Any]) -> None:
    """An instance that lists no models is not there for all of them."""
    made = router(instance("a", models=("known",)), instance("b", **beside))
    _, reply = ask(made, chat())
    assert isinstance(reply, Answer)
    assert (reply.status, reply.reason) == (404, "model_not_found")


def test_the_partner_of_a_pair_is_named_in_a_header_of_its_own() -> None:
    """The request goes to the one that answers; the prompt is over when the answer begins."""
    made = Router(Policy(hand_over=HandOver.LLM_D))
    publish(made, instance("q", kv_domain="d", role=Role.DECODE, address="10.0.0.2:80"), 0.0)
    _, reply = ask(made, chat())
    assert isinstance(reply, Answer)
    assert reply.reason == "role_takes_half"
    publish(made, instance("p", kv_domain="d", role=Role.PREFILL, address="10.0.0.1:80"), 0.0)
    exchange, reply = ask(made, chat())
    assert isinstance(reply, RouteTo)
    assert (reply.endpoints, reply.headers) == (("10.0.0.2:80",), (("x-prefiller-host-port", "10.0.0.1:80"),))
    assert reply.features.partner_key == "p@1"
    assert made.ledger.in_flight() == {"p@1": 1, "q@1": 1}
    exchange.receive(ResponseHeaders(200, ""), 1.0, 0.0)
    assert made.ledger.in_flight() == {"q@1": 1}
    exchange.close(2.0)
    assert made.ledger.in_flight() == {}


@pytest.mark.parametrize(("stack", "alternatives"), [(HandOver.LLM_D, ("10.0.0.3:80",)), (HandOver.DYNAMO, ())])
def test_a_pair_is_retried_with_the_same_partner_unless_its_headers_name_who_answers(
    stack: HandOver, alternatives: tuple[str, ...]
) -> None:
    """As docs/failover.md says."""
    made = Router(Policy(hand_over=stack))
    for number, role in enumerate((Role.PREFILL, Role.DECODE, Role.DECODE), start=1):
        tags, address = {"dynamo_worker_id": str(number)}, f"10.0.0.{number}:80"
        publish(made, instance(f"i{number}", kv_domain="d", role=role, tags=tags, address=address), 0.0)
    _, reply = ask(made, chat())
    assert isinstance(reply, RouteTo)
    assert reply.features.partner_key == "i1@1"
    assert (reply.endpoints, reply.alternatives) == (("10.0.0.2:80", *alternatives), alternatives)


def test_where_the_headers_name_who_answers_no_retry_goes_elsewhere() -> None:
    """A worker of Dynamo that is not the named one would send the request on to the one that failed."""
    made = Router(Policy(hand_over=HandOver.DYNAMO))
    for number in (1, 2, 3):
        tags = {"dynamo_worker_id": str(number)}
        publish(made, instance(f"w{number}", tags=tags, address=f"10.0.0.{number}:80"), 0.0)
    _, reply = ask(made, chat())
    assert isinstance(reply, RouteTo)
    worker = reply.endpoints[0].removeprefix("10.0.0.").removesuffix(":80")
    assert (len(reply.endpoints), dict(reply.headers)["x-worker-instance-id"]) == (1, worker)


@pytest.mark.parametrize(
    ("text", "reason"), [("zone=us-*", "zone_not_allowed"), ("zoen=eu-*", "placement_unreadable"), ("zone=eu-*", "")]
)
def test_demands_of_a_trusted_header_are_heeded_or_refused(text: str, reason: str) -> None:
    """400: no repetition would help. What was not understood is told to who wrote it."""
    made, rules = router(instance("a", zone="eu-1")), Rules(trust=Trust(placement_header="x-placement"))
    exchange = Exchange(made, "1", rules)
    exchange.receive(RequestHeaders("POST", CHAT, False, {"x-placement": text}), 0.0, 0.0)
    reply = one(exchange.receive(RequestBody(orjson.dumps(chat())), 0.0, 0.0))
    if not reason:
        assert isinstance(reply, RouteTo)
        return
    assert isinstance(reply, Answer)
    assert (reply.status, reply.reason) == (400, reason)
    assert ("zoen=eu-*" in orjson.loads(reply.body)["error"]["message"]) == (reason == "placement_unreadable")


def test_the_size_of_the_body_is_known_to_the_decision() -> None:
    """Images count, which are few tokens and many bytes."""
    exchange, _ = ask(router(instance()), chat())
    assert exchange.request is not None
    assert exchange.request.body_bytes == len(orjson.dumps(chat()))


def told_why(made: Router, headers: dict[str, str], trust: Trust, body: Any = None) -> tuple[Reply | Errand, Reply]:
    """Replies to the body and to the head of the answer that the first instance gives."""
    exchange = Exchange(made, "1", Rules(trust=trust))
    exchange.receive(RequestHeaders("POST", CHAT, last=False, headers=headers), 0.0, 0.0)
    routed = one(exchange.receive(RequestBody(orjson.dumps(body or chat())), 0.0, 0.0))
    answered = one(exchange.receive(ResponseHeaders(200, "10.0.0.1:80"), 1.0, 0.0))
    exchange.close(2.0)
    assert not isinstance(answered, Errand)
    return routed, answered


TRUST = Trust(explain_header="x-debug")
SECRET = Trust(explain_header="x-debug", explain_secret="open sesame")


def why(reply: Annotate | Answer) -> str:
    return dict(reply.headers).get(EXPLANATION_HEADER, "")


@pytest.mark.parametrize(
    ("headers", "trust", "told"),
    [
        ({"x-debug": "1"}, TRUST, True),
        ({"x-debug": ""}, TRUST, False),
        ({}, TRUST, False),
        ({"x-debug": "1"}, Trust(), False),
        ({"": "1"}, Trust(), False),
        ({"x-debug": "open sesame"}, SECRET, True),
        ({"x-debug": "1"}, SECRET, False),
        ({"x-debug": "open sesame "}, SECRET, False),
        ({"x-debug": "\u00e9"}, SECRET, False),
        ({}, SECRET, False),
    ],
)
def test_only_a_trusted_caller_is_told_why(headers: dict[str, str], trust: Trust, told: bool) -> None:
    """Neither with the switch off, nor without the header, nor with a wrong secret does a word get out."""
    made = router(instance("a", address="10.0.0.1:80"), instance("b", hardware="l40s"))
    _, answered = told_why(made, headers, trust)
    if told:
        assert isinstance(answered, Annotate)
        assert why(answered).startswith("id=1; instance=a; cost=")
        assert "second: b would have cost" in why(answered)
    else:
        assert answered == Continue(ResponseHeaders)
    refused, _ = told_why(made, headers, trust, chat(model="nobody-has-it"))
    assert isinstance(refused, Answer)
    assert bool(why(refused)) == told


def test_a_trusted_caller_is_told_the_nearest_miss_and_envoys_id() -> None:
    """A refusal is explained too; the id is the one that Envoy's own logs have."""
    made = router(instance("a", lifecycle=Lifecycle.LOADING))
    refused, _ = told_why(made, {"x-debug": "1", "x-request-id": "0815" * 50}, TRUST)
    assert isinstance(refused, Answer)
    assert why(refused) == f"id={'0815' * 16}; instance=none; not_ready: a is Loading, not Ready"


def test_a_body_that_cannot_be_read_has_no_explanation() -> None:
    """Nothing was decided."""
    exchange = Exchange(router(instance()), "1", Rules(trust=TRUST))
    exchange.receive(RequestHeaders("POST", CHAT, last=False, headers={"x-debug": "1"}), 0.0, 0.0)
    reply = one(exchange.receive(RequestBody(b"null"), 0.0, 0.0))
    assert isinstance(reply, Answer)
    assert why(reply) == ""


def test_alternatives_reach_envoy_in_the_order_of_their_cost() -> None:
    """A retry goes to the second best, then to the third; the policy says how many are named."""
    kinds = {"h200_sxm": "10.0.0.4:80", "h100_sxm": "10.0.0.2:80", "a100_sxm": "10.0.0.1:80", "l40s": "10.0.0.3:80"}
    for alternatives in (0, 1, 2, 3):
        fleet = [instance(kind, hardware=kind, address=address) for kind, address in sorted(kinds.items())]
        _, reply = ask(router(*fleet, policy=Policy(alternatives=alternatives)), chat())
        assert isinstance(reply, RouteTo)
        assert reply.endpoints == tuple(kinds.values())[: 1 + alternatives]
