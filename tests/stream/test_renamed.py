"""A request that goes on under the name of the model that was chosen, message by message in each body mode."""

from __future__ import annotations

import gc
import sys
from itertools import pairwise

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.api.caller import Trust
from extproc.core.router import Router
from extproc.core.values.instance import Instance
from extproc.stream.errands import Errand, TakePlace
from extproc.stream.exchange import Exchange
from extproc.stream.intake import CHUNK_BYTES
from extproc.stream.messages import (
    EXPLANATION_HEADER,
    MODEL_HEADER,
    Annotate,
    Answer,
    BodyMode,
    Continue,
    HandBack,
    Replies,
    Reply,
    RequestBody,
    RequestHeaders,
    ResponseHeaders,
    RouteTo,
    Substitute,
    Trailers,
)
from extproc.stream.rules import Rules
from tests.core.aliases import Aliases
from tests.core.builders import MODEL, instance
from tests.stream.conversation import CHAT, RULES, chat, one

BODY = orjson.dumps(chat(model="auto"))
RENAMED = orjson.dumps(chat())
DUPLEX, EARLY = BodyMode.FULL_DUPLEX, BodyMode.STREAMED_EARLY


def aliased(*instances: Instance, model: str = MODEL) -> Router:
    return Aliases({"auto": model}, *(instances or (instance("a", models=(model,)),)))


def begun(
    mode: BodyMode, path: str = CHAT, made: Router | None = None, rules: Rules = RULES, **headers: str
) -> Exchange:
    exchange = Exchange(made or aliased(), "1", rules)
    told = {name.replace("_", "-"): value for name, value in headers.items()}
    exchange.receive(RequestHeaders("POST", path, False, told, mode), 0.0, 0.0)
    return exchange


def routed(replies: Replies | Errand) -> tuple[RouteTo, Replies]:
    assert isinstance(replies, tuple)
    assert isinstance(replies[0], RouteTo)
    return replies[0], replies[1:]


def received(exchange: Exchange, *chunks: bytes, trailers: bool = False) -> tuple[RouteTo, Replies]:
    """The decision on a body that comes in these chunks, and what follows it."""
    for number, chunk in enumerate(chunks, 1):
        replies = exchange.receive(RequestBody(chunk, last=number == len(chunks) and not trailers), 0.0, 0.0)
    return routed(exchange.receive(Trailers(of_request=True), 0.0, 0.0) if trailers else replies)


@pytest.mark.parametrize("length", ["", str(len(BODY))])
def test_a_buffered_body_is_replaced_and_its_length_told_anew_where_it_was_told(length: str) -> None:
    """Envoy answers 500 where the two differ; a length beside chunks would be one too many."""
    exchange = begun(BodyMode.BUFFERED, content_length=length) if length else begun(BodyMode.BUFFERED)
    reply, _ = received(exchange, BODY)
    assert (reply.body, reply.path) == ((RENAMED,), None)
    assert dict(reply.headers).get("content-length", "") == (str(len(RENAMED)) if length else "")


@given(st.lists(st.integers(0, len(BODY)), max_size=6), st.booleans())
def test_a_full_duplex_body_goes_back_renamed_however_it_was_cut(cuts: list[int], trailers: bool) -> None:
    """The reply to the headers holds none of it; the end is marked once, or by the trailers."""
    edges = [0, *sorted(cuts), len(BODY)]
    reply, onward = received(begun(DUPLEX), *[BODY[a:b] for a, b in pairwise(edges)], trailers=trailers)
    assert (reply.to, reply.body) == (RequestHeaders, None)
    assert "content-length" not in dict(reply.headers)
    wanted: tuple[Reply, ...] = (HandBack(RENAMED, last=not trailers),)
    assert onward == ((*wanted, Continue(Trailers)) if trailers else wanted)


@pytest.mark.parametrize("size", [CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, 3 * CHUNK_BYTES])
def test_a_long_body_goes_back_in_chunks_of_bounded_size(size: int) -> None:
    """One message of all of it would be held twice."""
    room = size - len(orjson.dumps(chat(messages=[{"role": "user", "content": ""}])))
    wanted = orjson.dumps(chat(messages=[{"role": "user", "content": "x" * room}]))
    asked = wanted.replace(MODEL.encode(), b"auto")
    _, onward = received(begun(DUPLEX), asked)
    chunks = [reply for reply in onward if isinstance(reply, HandBack)]
    assert b"".join(chunk.body for chunk in chunks) == wanted
    assert [len(chunk.body) for chunk in chunks[:-1]] == [CHUNK_BYTES] * ((size - 1) // CHUNK_BYTES)
    assert [chunk.last for chunk in chunks] == [False] * (len(chunks) - 1) + [True]


@given(st.lists(st.integers(0, len(BODY)), max_size=30), st.booleans())
def test_a_streamed_body_gets_a_reply_a_chunk_that_together_are_the_renamed_one(
    cuts: list[int], trailers: bool
) -> None:
    """Envoy waits for as many replies as it sent chunks, empty ones too."""
    edges = [0, *sorted(cuts), len(BODY)]
    reply, onward = received(begun(EARLY), *[BODY[a:b] for a, b in pairwise(edges)], trailers=trailers)
    assert (reply.to, reply.body) == (RequestHeaders, None)
    chunks = [each for each in onward if isinstance(each, Substitute)]
    assert len(chunks) == len(edges) - 1
    assert b"".join(chunk.body for chunk in chunks) == RENAMED
    assert onward[len(chunks) :] == ((Continue(Trailers),) if trailers else ())


@pytest.mark.parametrize("mode", [BodyMode.BUFFERED, DUPLEX])
def test_the_end_of_a_body_that_comes_twice_is_not_answered_with_a_second_body(mode: BodyMode) -> None:
    """Envoy 1.35 and later may do that in FULL_DUPLEX (its issue 46237)."""
    exchange = begun(mode)
    received(exchange, BODY)
    again = exchange.receive(RequestBody(b"", last=True), 0.0, 0.0)
    assert again == (() if mode is DUPLEX else (Continue(RequestBody),))


def test_a_path_that_names_the_model_is_told_in_the_reply_to_whatever_it_answers() -> None:
    """A body that names none stays the client's."""
    path, wanted = (f"/openai/deployments/{name}/chat/completions" for name in ("auto", MODEL))
    body = orjson.dumps({name: value for name, value in chat().items() if name != "model"})
    for mode in (BodyMode.BUFFERED, DUPLEX, EARLY):
        reply, onward = received(begun(mode, path), body)
        assert (reply.path, reply.body) == (wanted, None)
        assert onward == {DUPLEX: (HandBack(body, last=True),), EARLY: (Continue(RequestBody),)}.get(mode, ())


def test_a_request_that_names_its_model_goes_on_as_it_came() -> None:
    """And its client is told nothing."""
    exchange = begun(BodyMode.BUFFERED, made=aliased(instance("a")), content_length="1")
    reply, _ = received(exchange, RENAMED)
    assert (reply.path, reply.body, reply.headers) == (None, None, ())
    assert exchange.receive(ResponseHeaders(200, ""), 0.0, 0.0) == (Continue(ResponseHeaders),)


@pytest.mark.parametrize(
    ("model", "told"), [(MODEL, MODEL), ("org/é 100%", "org/%C3%A9 100%25"), ("a\r\nb", "a%0D%0Ab")]
)
def test_every_client_is_told_which_model_answers(model: str, told: str) -> None:
    """In printable ASCII: whatever a name holds, it ends no header."""
    exchange = begun(BodyMode.BUFFERED, made=aliased(model=model))
    received(exchange, BODY)
    assert exchange.receive(ResponseHeaders(200, ""), 0.0, 0.0) == (Annotate(((MODEL_HEADER, told),)),)


def test_a_trusted_caller_is_told_both_the_model_and_why() -> None:
    """Two headers."""
    exchange = begun(BodyMode.BUFFERED, rules=Rules(trust=Trust(explain_header="x-debug")), x_debug="1")
    received(exchange, BODY)
    answered = one(exchange.receive(ResponseHeaders(200, ""), 0.0, 0.0))
    assert isinstance(answered, Annotate)
    assert [name for name, _ in answered.headers] == [MODEL_HEADER, EXPLANATION_HEADER]


def test_in_strict_mode_the_name_is_that_of_the_model_whose_place_was_taken() -> None:
    """The place is taken after the choice."""
    exchange = begun(BodyMode.BUFFERED, made=aliased(instance("a"), instance("b")), rules=Rules(strict=True))
    assert isinstance(exchange.receive(RequestBody(BODY), 0.0, 0.0), TakePlace)
    reply, _ = routed(exchange.resume(1, 0.0, 0.0))
    assert reply.body == (RENAMED,)
    assert exchange.request is not None
    assert exchange.request.model == MODEL


def test_a_refusal_tells_no_model() -> None:
    """None answers."""
    exchange = begun(BodyMode.BUFFERED, made=aliased(instance("a"), model="nobody-has-it"))
    assert isinstance(one(exchange.receive(RequestBody(BODY), 0.0, 0.0)), Answer)
    assert exchange.receive(ResponseHeaders(404, ""), 0.0, 0.0) == (Continue(ResponseHeaders),)


@pytest.mark.parametrize("mode", [BodyMode.BUFFERED, DUPLEX, EARLY])
def test_neither_body_is_kept_while_the_answer_is_waited_for(mode: BodyMode) -> None:
    """Not the client's nor the renamed one: answers may take minutes."""
    exchange = begun(mode)
    body = orjson.dumps(chat(model="auto", user="x" * 100_000))
    replies = exchange.receive(RequestBody(body), 0.0, 0.0)
    del replies
    gc.collect()
    held = [each for each in _reachable(exchange) if isinstance(each, (bytes, memoryview)) and len(each) > 10_000]
    assert not held
    assert sys.getrefcount(body) == 2


def _reachable(thing: object) -> list[object]:
    """All that an object refers to, whatever in between."""
    seen: dict[int, object] = {}
    todo = [thing]
    while todo:
        each = todo.pop()
        if id(each) in seen or isinstance(each, type) or type(each).__name__ in ("module", "function"):
            continue
        seen[id(each)] = each
        todo.extend(gc.get_referents(each))
    return list(seen.values())
