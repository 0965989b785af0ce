"""Readers of what clients send: bodies of every API, and headers. It comes from anybody at all."""

from __future__ import annotations

import base64
from functools import partial

import orjson

from extproc.adapters import wire
from extproc.api.caller import Trust, caller_of, wants_explanation
from extproc.api.paths import endpoint_for
from extproc.api.reading import joined
from extproc.api.renaming import renamed
from extproc.core.router import Router
from extproc.core.values.request import Caller
from extproc.stream.errands import Errand
from extproc.stream.exchange import Exchange
from extproc.stream.messages import Answer, RequestBody, RequestHeaders
from extproc.stream.rules import Rules
from tests.api.test_fuzz import PAYLOADS, check
from tests.core.builders import MODEL, instance, router
from tests.fuzz.mutations import Form
from tests.fuzz.reader import Reader

TRUST = Trust(
    tenant_header="authorization", priority_header="x-priority", timeout_header="x-timeout", class_header="x-class",
    placement_header="x-placement", quality_header="x-quality", max_cost_header="x-max-cost", body_priority=True,
    explain_header="x-explain", explain_secret="secret",
)  # fmt: skip
RULES = Rules(trust=TRUST)
SERVED = instance("any", models=(MODEL, "m", "gpt-4o-mini"))


def _body(path: str, content_type: str, data: bytes) -> None:
    """It is refused or read; and the exchange that it comes to ends with a reply that can be sent.

    What can be read can also be written down for a tokenizer, and be sent on for another model.
    """
    prompt, endpoint = check(path, data, content_type), endpoint_for("POST", path)
    if prompt is not None and endpoint is not None:
        if prompt.countable is not None:
            prompt.countable()
        written = renamed(endpoint, path, content_type, data, prompt.model, "another")
        again = check(written.path or path, data if written.body is None else joined(written.body), content_type)
        assert again is not None
        assert again.model == "another"
        assert again.pieces == prompt.pieces
    _asked(path, {"content-type": content_type}, data)


def _asked(path: str, headers: dict[str, str], data: bytes) -> None:
    made = router(SERVED)
    exchange = Exchange(made, "1", RULES)
    exchange.receive(RequestHeaders("POST", path, last=False, headers=headers), 1.0, 0.5)
    replies = exchange.receive(RequestBody(data), 1.0, 0.5)
    assert not isinstance(replies, Errand)
    for reply in replies:
        assert wire.encode_reply(reply, "x-upstream-cluster")
        if isinstance(reply, Answer):
            assert 400 <= reply.status < 600
            orjson.loads(reply.body)
    exchange.material()
    exchange.close(2.0)
    assert_nothing_booked(made)


def assert_nothing_booked(made: Router) -> None:
    """No request is in flight."""
    assert made.ledger.in_flight() == {}
    assert not made.ledger.booked()


def _headers(data: bytes) -> None:
    """As Envoy sends them: text, in which bytes that are none were replaced."""
    lines = data.decode("utf-8", "replace").split("\n")
    headers = {name: value for name, _, value in (line.partition(": ") for line in lines)}
    caller = caller_of(headers, TRUST)
    assert isinstance(caller, Caller)
    assert caller.timeout_s is None or 0 <= caller.timeout_s < 1e12
    assert max(len(each) for each in (caller.tenant, caller.session, caller.min_quality, caller.max_cost)) <= 200
    wants_explanation(headers, TRUST)
    body = b'{"model":"m","messages":[{"role":"user","content":"hi"}],"max_tokens":5}'
    _asked("/v1/chat/completions", headers, body)


def _path(data: bytes) -> None:
    """Paths and methods are the client's too."""
    method, _, path = data.decode("utf-8", "replace").partition(" ")
    made = router(SERVED)
    exchange = Exchange(made, "1", Rules(answer_models=True))
    exchange.receive(RequestHeaders(method, path, last=False), 1.0, 0.5)
    exchange.receive(RequestBody(b'{"model":"m","messages":[],"prompt":"x","input":"x"}'), 1.0, 0.5)
    exchange.close(2.0)
    assert_nothing_booked(made)


HEADERS = b"\n".join(
    (
        b"authorization: Bearer key", b"x-session-id: s-1", b"x-priority: -3", b"x-timeout: 1500ms", b"x-class: batch",
        b"x-placement: zone=eu-1a,eu-1b;hardware=h100_sxm;tp>=2;precision=fp8", b"x-quality: good", b"x-max-cost: 0.5",
        b"x-explain: secret", b"x-request-id: 7f0b", b"content-type: application/json; charset=utf-8",
        b"content-length: 72", b"traceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
    )
)  # fmt: skip
PATHS = (
    b"POST /v1/chat/completions", b"POST /openai/deployments/m/chat/completions?api-version=1", b"GET /v1/models",
    b"POST /v2/models/m/generate", b"POST /v1/messages", b"POST //v1//completions/",
)  # fmt: skip


def _bodies() -> list[Reader]:
    found = []
    for file in PAYLOADS:
        payload = orjson.loads(file.read_bytes())
        body = payload["body"].encode() if "body" in payload else base64.b64decode(payload["body_base64"])
        content_type = payload["headers"]["content-type"]
        form = Form.JSON if body[:1] == b"{" else Form.BINARY
        read = partial(_body, payload["path"], content_type)
        found.append(Reader(name=f"body-{file.stem}", form=form, examples=[body], read=read))
    return found


READERS = (
    *_bodies(),
    Reader(name="headers", form=Form.LINES, examples=[HEADERS], read=_headers),
    Reader(name="path", form=Form.LINES, examples=PATHS, read=_path),
)
"""All of them."""
