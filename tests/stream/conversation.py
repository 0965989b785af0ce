"""How tests hold an ext_proc conversation: chat bodies, and the one reply that most messages get."""

from __future__ import annotations

from typing import Any

import orjson

from extproc.core.router import Router
from extproc.stream.errands import Errand
from extproc.stream.exchange import Exchange
from extproc.stream.messages import Continue, Replies, Reply, RequestBody, RequestHeaders
from extproc.stream.rules import Rules
from tests.core.builders import MODEL

RULES = Rules()
CHAT = "/v1/chat/completions"


def one(replies: Replies | Errand) -> Reply | Errand:
    """The only reply, or the errand before it."""
    if isinstance(replies, tuple):
        (reply,) = replies
        return reply
    return replies


def ask(made: Router, body: Any, path: str = CHAT, rules: Rules = RULES) -> tuple[Exchange, Reply]:
    """An exchange after its body, and the reply to that, in BUFFERED mode."""
    exchange = Exchange(made, "1", rules)
    assert exchange.receive(RequestHeaders("POST", path, last=False), 0.0, 0.0) == (Continue(RequestHeaders),)
    data = body if isinstance(body, bytes) else orjson.dumps(body)
    reply = one(exchange.receive(RequestBody(data), 0.0, 0.0))
    assert not isinstance(reply, Errand)
    return exchange, reply


def chat(**changes: Any) -> dict[str, Any]:
    """A body for CHAT."""
    return {"model": MODEL, "messages": [{"role": "user", "content": "hello"}]} | changes
