"""Calls of every API through the whole stream: as clients make them, and with as little in them as may be."""

from __future__ import annotations

from typing import Any

import pytest

from extproc.api.paths import APIS, endpoint_for
from extproc.core.features import with_count
from extproc.core.tokens.tokens import ExactCount
from extproc.core.values.request import Prompt
from extproc.stream.exchange import Exchange
from extproc.stream.messages import Answer, RequestBody, RequestHeaders, RouteTo
from tests.api.test_payloads import EXPECTED, payload
from tests.core.builders import MODEL, instance, router
from tests.stream.conversation import RULES, ask, chat, one

EMPTIEST: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": chat(messages=[{"role": "user", "content": ""}]),
    "/v1/completions": {"prompt": ""},
    "/v1/responses": {"input": ""},
    "/v1/messages": {"max_tokens": 1, "messages": [{"role": "user", "content": ""}]},
    "/v1/messages/count_tokens": {"messages": []},
    "/v1/embeddings": {"input": ""},
    "/v1/rerank": {"query": "", "documents": [""]},
    "/v1/score": {"text_1": "", "text_2": ""},
    "/v1/audio/speech": {"input": "", "voice": ""},
    "/v1/images/generations": {"prompt": ""},
    "/v1/images/edits": {"prompt": ""},
    "/tokenize": {"prompt": ""},
    "/detokenize": {"tokens": []},
    "/pooling": {"input": ""},
    "/classify": {"input": ""},
    "/generate": {"text": ""},
}


@pytest.mark.parametrize("name", EXPECTED)
def test_what_clients_ask_for_is_routed(name: str) -> None:
    """By every library whose calls are kept, whatever their bodies hold."""
    call, body = payload(name)
    model = EXPECTED[name].get("model", "qwen3-8b")
    exchange = Exchange(router(instance("a", models=(model,))), "1", RULES)
    exchange.receive(RequestHeaders(call["method"], call["path"], False, call["headers"]), 0.0, 0.0)
    reply = one(exchange.receive(RequestBody(body), 0.0, 0.0))
    assert isinstance(reply, RouteTo), reply


@pytest.mark.parametrize("path", EMPTIEST)
def test_a_call_without_a_prompt_is_routed_or_refused_in_the_engines_words(path: str) -> None:
    """Some have none by their nature: to count tokens or to turn them into text is no work of a GPU."""
    made = router(instance("a"))
    exchange, reply = ask(made, {"model": MODEL} | EMPTIEST[path], path)
    if isinstance(reply, Answer):
        assert reply.status == 400, reply.body
    else:
        assert isinstance(reply, RouteTo)
        assert exchange.request is not None
        assert exchange.request.prompt_tokens >= 1
        assert exchange.request.tokens_per_block > 0.0
    exchange.close(1.0)
    assert not made.ledger.in_flight()


def test_every_api_whose_body_may_be_json_is_among_them() -> None:
    found = {endpoint.api for path in EMPTIEST if (endpoint := endpoint_for("POST", path)) is not None}
    assert found == APIS - {"transcription", "translation"}


def test_a_prompt_of_which_the_tokenizer_makes_no_token_is_routed() -> None:
    """As of an empty text where the vocabulary puts nothing before it."""
    made = router(instance("a"))
    exchange, _ = ask(router(instance("a")), {"model": MODEL, "prompt": ""}, "/v1/completions")
    assert exchange.request is not None
    counted = with_count(exchange.request, Prompt(api="completions", model=MODEL, pieces=(b"",)), ExactCount(0, 0))
    assert made.choose(counted, 0.0, 0.0).chosen is not None
