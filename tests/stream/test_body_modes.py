"""The transition table of an exchange in Envoy's body modes, message by message."""

from __future__ import annotations

from itertools import pairwise

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.core.router import Router
from extproc.core.snapshot import Policy
from extproc.core.tokens.tokens import ExactCount
from extproc.stream.errands import CountTokens, Errand, TakePlace
from extproc.stream.exchange import Exchange
from extproc.stream.intake import CHUNK_BYTES
from extproc.stream.messages import (
    TRAILERS_HEADER,
    Answer,
    BodyMode,
    Continue,
    HandBack,
    Message,
    OutOfOrderError,
    PassOn,
    Replies,
    RequestBody,
    RequestHeaders,
    ResponseBody,
    ResponseHeaders,
    RouteTo,
    Trailers,
)
from extproc.stream.rules import Rules
from tests.core.builders import MODEL, instance, router
from tests.stream.conversation import CHAT, RULES, chat, one

BODY = orjson.dumps(chat())
LONG = orjson.dumps(chat(user="x" * 300_000))
DUPLEX, EARLY = BodyMode.FULL_DUPLEX, BodyMode.STREAMED_EARLY
STREAMED, PARTIAL = BodyMode.STREAMED, BodyMode.BUFFERED_PARTIAL


def cut(body: bytes, size_bytes: int) -> list[bytes]:
    return [body[place : place + size_bytes] for place in range(0, len(body), size_bytes)]


def head(mode: BodyMode, path: str = CHAT, *, last: bool = False, answers: BodyMode = BodyMode.NONE) -> RequestHeaders:
    return RequestHeaders("POST", path, last, body_mode=mode, answer_mode=answers)


def begun(mode: BodyMode, made: Router | None = None, rules: Rules = RULES) -> Exchange:
    exchange = Exchange(router(instance("a")) if made is None else made, "1", rules)
    exchange.receive(head(mode), 0.0, 0.0)
    return exchange


def told(exchange: Exchange, *messages: Message) -> list[Replies | Errand]:
    return [exchange.receive(message, 0.0, 0.0) for message in messages]


def routes(replies: Replies | Errand) -> tuple[RouteTo, Replies]:
    """The decision, which is the reply to the headers, and what follows it."""
    assert isinstance(replies, tuple)
    assert isinstance(replies[0], RouteTo)
    assert replies[0].to is RequestHeaders
    return replies[0], replies[1:]


@pytest.mark.parametrize(
    ("chunks", "back"),
    [
        ([BODY], [BODY]),
        ([BODY, b""], [BODY]),
        ([BODY[:7], BODY[7:], b""], [BODY[:7], BODY[7:]]),
        ([b"", BODY[:1], b"", BODY[1:]], [BODY[:1], BODY[1:]]),
        (cut(BODY, 1), cut(BODY, 1)),
        (cut(LONG, 1000), [LONG[:CHUNK_BYTES], LONG[CHUNK_BYTES:]]),
        (cut(LONG, 1100), cut(LONG, 1100)),
    ],
)
def test_full_duplex_answers_the_headers_after_the_last_chunk_and_hands_the_body_back(
    chunks: list[bytes], back: list[bytes]
) -> None:
    """Nothing is said before; the end is marked once, on the last chunk that holds anything. Tiny ones go together."""
    made = router(instance("a", cluster="gpu"))
    exchange = Exchange(made, "1", RULES)
    assert exchange.receive(head(DUPLEX), 0.0, 0.0) == ()
    *before, final = [
        exchange.receive(RequestBody(chunk, last=number == len(chunks)), 0.0, 0.0)
        for number, chunk in enumerate(chunks, 1)
    ]
    assert before == [()] * (len(chunks) - 1)
    decision, onward = routes(final)
    assert decision.cluster == "gpu"
    assert onward == tuple(HandBack(chunk, last=number == len(back)) for number, chunk in enumerate(back, 1))
    assert made.ledger.in_flight() == {"a@1": 1}
    assert told(exchange, ResponseHeaders(200, "")) == [(Continue(ResponseHeaders),)]
    exchange.close(1.0)
    assert made.ledger.in_flight() == {}


@given(st.lists(st.integers(0, len(BODY)), max_size=6), st.booleans())
def test_however_a_body_is_cut_it_goes_back_byte_by_byte(cuts: list[int], trailers: bool) -> None:
    """With exactly one mark at its end, or, where trailers follow, none."""
    edges = [0, *sorted(cuts), len(BODY)]
    chunks = [BODY[start:end] for start, end in pairwise(edges)]
    exchange = begun(DUPLEX)
    for chunk in chunks:
        assert exchange.receive(RequestBody(chunk, last=False), 0.0, 0.0) == ()
    end = Trailers(of_request=True) if trailers else RequestBody(b"", last=True)
    decision, onward = routes(exchange.receive(end, 0.0, 0.0))
    assert (TRAILERS_HEADER in dict(decision.headers)) == trailers
    if trailers:
        *onward_chunks, final = onward
        assert final == Continue(Trailers, True)
    else:
        onward_chunks = list(onward)
    assert all(isinstance(reply, HandBack) and reply.of_request for reply in onward_chunks)
    assert b"".join(reply.body for reply in onward_chunks if isinstance(reply, HandBack)) == BODY
    assert [reply.last for reply in onward_chunks if isinstance(reply, HandBack)] == (
        [False] * (len(onward_chunks) - 1) + [not trailers]
    )


@pytest.mark.parametrize(("end", "replies"), [(RequestBody(b"", True), 3), (Trailers(of_request=True), 2)])
def test_a_streamed_body_that_does_not_wait_gets_one_reply_a_message(end: Message, replies: int) -> None:
    """Envoy keeps the chunks itself; the headers' reply is held back until the last of them is here."""
    exchange = begun(EARLY)
    assert told(exchange, RequestBody(BODY[:5], False), RequestBody(BODY[5:], False)) == [(), ()]
    _, onward = routes(exchange.receive(end, 0.0, 0.0))
    wanted: Replies = tuple(Continue(RequestBody) for _ in range(replies))
    assert onward == (wanted if replies == 3 else (*wanted, Continue(Trailers, True)))


def test_a_streamed_body_is_whole_when_all_that_was_announced_is_here() -> None:
    """Envoy holds its end back until the chunks are answered, if trailers follow it."""
    announced = RequestHeaders("POST", CHAT, False, {"content-length": str(len(BODY))}, EARLY)
    exchange = Exchange(router(instance("a")), "1", RULES)
    waiting, replies = told(exchange, announced, RequestBody(BODY[:-1], False)), RequestBody(BODY[-1:], False)
    assert waiting == [(), ()]
    _, onward = routes(exchange.receive(replies, 0.0, 0.0))
    assert onward == (Continue(RequestBody), Continue(RequestBody))
    after = told(exchange, RequestBody(b"", True), Trailers(of_request=True))
    assert after == [(Continue(RequestBody),), (Continue(Trailers, True),)]


@pytest.mark.parametrize("length", ["", "x", "-1", "9" * 5000, "\u0663"])
def test_an_announced_length_that_is_none_is_waited_past(length: str) -> None:
    exchange = Exchange(router(instance("a")), "1", RULES)
    announced = RequestHeaders("POST", CHAT, False, {"content-length": length}, EARLY)
    assert told(exchange, announced, RequestBody(BODY, False)) == [(), ()]
    routes(exchange.receive(RequestBody(b"", True), 0.0, 0.0))


@pytest.mark.parametrize(
    ("mode", "reason"), [(STREAMED, "streamed_body"), (PARTIAL, "truncated_body"), (BodyMode.NONE, "body_not_sent")]
)
def test_a_body_that_is_not_seen_whole_is_passed_on_and_counted(mode: BodyMode, reason: str) -> None:
    """A part of it is never read: it would look like a broken body and be refused."""
    exchange = Exchange(router(instance()), "1", RULES)
    first = one(exchange.receive(head(mode), 0.0, 0.0))
    if mode is BodyMode.NONE:
        assert first == PassOn(RequestHeaders, reason)
        return
    assert first == Continue(RequestHeaders)
    replies = told(exchange, RequestBody(BODY[:9], False), RequestBody(BODY[9:], False), RequestBody(b"", True))
    assert replies == [(PassOn(RequestBody, reason),), (Continue(RequestBody),), (Continue(RequestBody),)]
    assert exchange.decision is None


@pytest.mark.parametrize("mode", [STREAMED, PARTIAL, BodyMode.BUFFERED])
def test_a_body_that_comes_whole_is_decided_upon_in_its_own_reply(mode: BodyMode) -> None:
    """In STREAMED Envoy heeds it only if it still holds the headers; the ledger follows the answer."""
    made = router(instance("a", address="10.0.0.1:80"), instance("b", address="10.0.0.2:80"))
    exchange = begun(mode, made)
    reply = one(exchange.receive(RequestBody(BODY, True), 0.0, 0.0))
    assert isinstance(reply, RouteTo)
    assert reply.to is RequestBody
    told(exchange, ResponseHeaders(200, reply.endpoints[1]))
    served = made.fleet.by_address(reply.endpoints[1])
    assert served is not None
    assert made.ledger.in_flight() == {served.instance.key: 1}


def test_a_buffered_body_with_trailers_is_decided_upon_although_something_follows() -> None:
    exchange = begun(BodyMode.BUFFERED)
    assert isinstance(one(exchange.receive(RequestBody(BODY, last=False), 0.0, 0.0)), RouteTo)


@pytest.mark.parametrize("mode", [DUPLEX, EARLY])
def test_a_collected_body_beyond_the_limit_is_413_and_what_still_comes_is_dropped(mode: BodyMode) -> None:
    made = router(instance("a"))
    exchange = begun(mode, made, Rules(body_limit_bytes=len(BODY)))
    assert told(exchange, RequestBody(BODY, False)) == [()]
    refused = one(exchange.receive(RequestBody(b"x", False), 0.0, 0.0))
    assert isinstance(refused, Answer)
    assert (refused.status, orjson.loads(refused.body)["error"]["code"]) == (413, "request_too_large")
    assert told(exchange, RequestBody(BODY, False), RequestBody(b"", True)) == [(), ()]
    assert made.ledger.in_flight() == {}


def test_a_collected_body_of_exactly_the_limit_is_taken() -> None:
    exchange = begun(DUPLEX, rules=Rules(body_limit_bytes=len(BODY)))
    routes(exchange.receive(RequestBody(BODY, True), 0.0, 0.0))


@pytest.mark.parametrize("mode", [DUPLEX, EARLY])
def test_a_refused_collected_body_does_not_go_on(mode: BodyMode) -> None:
    """The answer is the only reply."""
    for body in (b"null", b"", orjson.dumps(chat(model="nobody-has-it"))):
        answer = one(begun(mode).receive(RequestBody(body, True), 0.0, 0.0))
        assert isinstance(answer, Answer)


def test_a_collected_body_that_nobody_can_decide_upon_is_passed_on_whole() -> None:
    """The reply is to its headers, then the body follows."""
    exchange = begun(DUPLEX, router())
    assert told(exchange, RequestBody(BODY[:4], False), RequestBody(BODY[4:], True))[-1] == (
        PassOn(RequestHeaders, "no_instance"),
        HandBack(BODY[:4], False),
        HandBack(BODY[4:], True),
    )


@pytest.mark.parametrize("mode", [DUPLEX, EARLY, STREAMED, PARTIAL, BodyMode.BUFFERED])
def test_on_a_path_that_is_not_routed_every_chunk_goes_on_at_once(mode: BodyMode) -> None:
    """Nothing is collected."""
    exchange = Exchange(router(instance()), "1", RULES)
    replies = [exchange.receive(head(mode, "/v1/files"), 0.0, 0.0)]
    assert replies == [(PassOn(RequestHeaders, "unknown_path"),)]
    chunks = told(exchange, RequestBody(b"ab", False), RequestBody(b"", True), Trailers(of_request=True))
    if mode is DUPLEX:
        assert chunks[:2] == [(HandBack(b"ab", False),), (HandBack(b"", True),)]
    else:
        assert chunks[:2] == [(Continue(RequestBody),)] * 2
    assert chunks[2] == (Continue(Trailers, True),)


def test_the_end_of_a_body_that_comes_twice_is_heeded_once() -> None:
    """Envoy 1.35 and later do so now and then (its issue 46237)."""
    made = router(instance("a"))
    exchange = begun(DUPLEX, made)
    routes(exchange.receive(RequestBody(BODY, True), 0.0, 0.0))
    assert told(exchange, RequestBody(BODY, True), RequestBody(b"", True)) == [(), ()]
    assert made.ledger.in_flight() == {"a@1": 1}


@pytest.mark.parametrize(
    ("mode", "reply"),
    [
        (DUPLEX, HandBack(b"data: x\n\n", False, of_request=False)),
        (BodyMode.STREAMED, Continue(ResponseBody)),
        (BodyMode.BUFFERED, Continue(ResponseBody)),
        (None, Continue(ResponseBody)),
    ],
)
def test_chunks_of_an_answer_go_on_unread(mode: BodyMode | None, reply: HandBack | Continue) -> None:
    """Also of one that has no request (None), by a filter before us."""
    exchange = Exchange(router(instance()), "1", RULES)
    if mode is not None:
        told(exchange, head(BodyMode.BUFFERED, answers=mode), RequestBody(BODY))
    assert told(exchange, ResponseHeaders(200, ""), ResponseBody(b"data: x\n\n", False))[1] == (reply,)


def test_tokens_are_counted_and_places_taken_before_the_headers_are_answered() -> None:
    """An errand does not lose what was collected."""
    small, large = instance("small", max_model_len_tokens=1000), instance("large", hardware="l40s")
    made = router(small, large, policy=Policy(max_in_flight=5))
    exchange = begun(DUPLEX, made, Rules(strict=True, counted_models=frozenset((MODEL,))))
    body = orjson.dumps(chat(messages=[{"role": "user", "content": "some words " * 500}]))
    errand = told(exchange, RequestBody(body[:100], False), RequestBody(body[100:], True))[-1]
    assert isinstance(errand, CountTokens)
    wish = exchange.resume(ExactCount(999, 0), 0.0, 0.0)
    assert isinstance(wish, TakePlace)
    decision, onward = routes(exchange.resume(0, 0.0, 0.0))
    assert decision.features.prompt_tokens == 999
    assert onward == (HandBack(body[:100], False), HandBack(body[100:], True))


WRONG = [
    [RequestBody(BODY)],
    [Trailers(of_request=True)],
    [head(BodyMode.BUFFERED), head(BodyMode.BUFFERED)],
    [head(DUPLEX), head(DUPLEX)],
    [head(DUPLEX), RequestBody(BODY), head(DUPLEX)],
]


@pytest.mark.parametrize("messages", WRONG)
def test_what_the_protocol_never_sends_is_a_declared_error(messages: list[Message]) -> None:
    exchange = Exchange(router(instance()), "1", RULES)
    told(exchange, *messages[:-1])
    with pytest.raises(OutOfOrderError, match="out of order"):
        exchange.receive(messages[-1], 0.0, 0.0)


ANY = st.sampled_from(
    [
        *(head(mode) for mode in BodyMode),
        head(DUPLEX, "/v1/files"),
        head(DUPLEX, last=True, answers=DUPLEX),
        RequestBody(BODY, True),
        RequestBody(BODY, False),
        RequestBody(b"", True),
        ResponseHeaders(200, ""),
        ResponseBody(b"x", False),
        Trailers(of_request=True),
        Trailers(of_request=False),
    ]
)


@given(st.lists(ANY, max_size=8))
def test_no_order_of_messages_does_anything_undeclared_or_leaves_anything_in_flight(messages: list[Message]) -> None:
    made = router(instance("a"))
    exchange = Exchange(made, "1", RULES)
    for message in messages:
        try:
            replies = exchange.receive(message, 0.0, 0.0)
        except OutOfOrderError:
            continue
        assert isinstance(replies, tuple)
        assert sum(isinstance(reply, RouteTo | Answer) for reply in replies) <= 1
    exchange.close(1.0)
    assert made.ledger.in_flight() == {}
