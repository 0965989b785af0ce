"""A large body is read by the shell, while the exchange waits; then all goes on as if it had been read here."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from msgspec.structs import replace

from extproc.api.body import BodyError
from extproc.api.reading import abridged, read_prompt, restored
from extproc.core.features import read_text
from extproc.core.models.virtual import ModelPolicy, VirtualModel
from extproc.core.router import Router
from extproc.core.snapshot import Policy
from extproc.stream.errands import Errand, ReadBody
from extproc.stream.exchange import Exchange
from extproc.stream.messages import Answer, BodyMode, HandBack, PassOn, Replies, RequestBody, RequestHeaders, RouteTo
from extproc.stream.rules import Rules
from tests.core.builders import MODEL, instance, publish, router
from tests.stream.conversation import CHAT, ask, chat

RULES = Rules(read_apart_bytes=1000)
TEXT = "The router counts seconds, not requests. " * 100


def body(**changes: Any) -> bytes:
    return orjson.dumps(chat(messages=[{"role": "user", "content": TEXT}], **changes))


def begun(made: Router, data: bytes, mode: BodyMode = BodyMode.BUFFERED) -> tuple[Exchange, ReadBody]:
    """An exchange that waits for its body to be read, and what is to be done for it."""
    exchange = Exchange(made, "1", RULES)
    exchange.receive(RequestHeaders("POST", CHAT, last=False, body_mode=mode), 0.0, 0.0)
    if mode is BodyMode.FULL_DUPLEX:
        exchange.receive(RequestBody(data[:700], last=False), 0.0, 0.0)
        data = data[700:]
    errand = exchange.receive(RequestBody(memoryview(data)), 0.0, 0.0)
    assert isinstance(errand, ReadBody)
    return exchange, errand


def read_elsewhere(errand: ReadBody) -> Any:
    """What a shell finds."""
    unread = errand.unread
    prompt = read_prompt(unread.path, unread.content_type, b"".join(unread.chunks))
    read = read_text(prompt)
    told = abridged(prompt, read)
    return restored(told, {salt: read.chain(salt) for salt in errand.salts(told.prompt)}, unread)


def only(replies: Replies | Errand) -> Any:
    assert isinstance(replies, tuple)
    return replies[0]


def test_a_body_up_to_the_bound_is_read_at_once() -> None:
    """So small ones cost no more than before."""
    data = orjson.dumps(chat())
    _, reply = ask(router(instance("a")), data, rules=Rules(read_apart_bytes=len(data)))
    assert isinstance(reply, RouteTo)


@pytest.mark.parametrize("mode", [BodyMode.BUFFERED, BodyMode.FULL_DUPLEX])
def test_a_body_that_was_read_elsewhere_is_decided_upon_as_one_that_was_read_here(mode: BodyMode) -> None:
    """The same place, and the same features."""
    served = instance("a")
    exchange, errand = begun(router(served), body(), mode)
    reply = only(exchange.resume(read_elsewhere(errand), 0.0, 0.0))
    other, here = ask(router(served), body())
    assert isinstance(here, RouteTo)
    assert replace(reply, to=RequestBody) == here
    assert exchange.request == other.request


def test_a_collected_body_is_handed_back_after_it_was_read_elsewhere() -> None:
    """Its chunks as they came."""
    exchange, errand = begun(router(instance("a")), body(), BodyMode.FULL_DUPLEX)
    replies = exchange.resume(read_elsewhere(errand), 0.0, 0.0)
    assert isinstance(replies, tuple)
    assert b"".join(reply.body for reply in replies if isinstance(reply, HandBack)) == body()


def test_a_bad_body_is_refused_whoever_has_read_it() -> None:
    """With the engine's own status."""
    exchange, _ = begun(router(instance("a")), body())
    reply = only(exchange.resume(BodyError("'messages' must not be so.", "messages"), 0.0, 0.0))
    assert isinstance(reply, Answer)
    assert (reply.status, orjson.loads(reply.body)["error"]["param"]) == (400, "messages")


def test_a_body_that_could_not_be_read_in_time_is_decided_upon_by_its_size() -> None:
    """By the model that it names, without its prefix; better than to let the proxy guess."""
    made = router(instance("a"), instance("b", models=("another",)))
    exchange, _ = begun(made, body())
    reply = only(exchange.resume(None, 0.0, 0.0))
    assert isinstance(reply, RouteTo)
    assert exchange.is_guess
    request = exchange.request
    assert request is not None
    assert (request.model, request.prefix, request.token_error) == (MODEL, (), 1.0)
    assert request.prompt_tokens > 500


def test_a_body_that_could_not_be_read_in_time_is_renamed_where_its_model_was_found() -> None:
    """It is not searched, and what others are named `model` stays."""
    made = Router(Policy(models=ModelPolicy(aliases={"auto": MODEL})))
    publish(made, instance("a"), 0.0)
    data = body(model="auto", tools=[{"type": "function", "function": {"name": "f", "parameters": {"model": "auto"}}}])
    exchange, _ = begun(made, data)
    reply = only(exchange.resume(None, 0.0, 0.0))
    assert isinstance(reply, RouteTo)
    assert reply.body is not None
    assert b"".join(reply.body) == data.replace(b'"auto"', b'"%b"' % MODEL.encode(), 1)


def test_a_body_that_nobody_has_read_and_that_names_no_model_is_passed_on() -> None:
    """There is nothing to decide by."""
    exchange, _ = begun(router(instance("a")), body().replace(b'"model"', b'"nodel"'))
    reply = only(exchange.resume(None, 0.0, 0.0))
    assert isinstance(reply, PassOn)
    assert reply.reason == "unread_body"


def test_blocks_are_asked_for_under_every_model_that_a_name_may_come_to_stand_for() -> None:
    """Or a virtual model's choice would not see who holds the prompt."""
    virtual = VirtualModel(name="any", models=(MODEL, "m2"))
    policy = ModelPolicy(
        virtual={"any": virtual},
        aliases={"some": "any"},
        fallbacks={"any": ("m3",), "m2": ("m4",)},
        context_fallbacks={"m2": ("long",)},
    )
    assert policy.behind("any") == ("any", MODEL, "m2", "m3", "m4", "long")
    assert set(policy.behind("some")) == {"some", *policy.behind("any")}
    assert policy.behind("m9") == ("m9",)
    made = Router(Policy(models=policy))
    _, errand = begun(made, body(model="any"))
    salts = errand.salts(read_prompt(CHAT, "", body(model="any", cache_salt="s")))
    assert [salt.split("\0") for salt in salts] == [[name, "", "s"] for name in policy.behind("any")]


def test_a_stream_that_ends_while_its_body_is_read_holds_nothing() -> None:
    """The client has gone; nothing was booked, and closing is no error."""
    made = router(instance("a"))
    exchange, _ = begun(made, body())
    exchange.close(0.0)
    assert made.ledger.in_flight() == {}
