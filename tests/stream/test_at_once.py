"""What is answered from a request's headers alone."""

from __future__ import annotations

import orjson
import pytest

from extproc.stream.at_once import no_room_answer
from extproc.stream.messages import RequestBody, RequestHeaders, ResponseHeaders
from tests.stream.conversation import CHAT, RULES


@pytest.mark.parametrize("path", ["/v1/messages", CHAT])
def test_who_finds_no_room_to_be_looked_at_is_refused_in_its_own_form(path: str) -> None:
    reply = no_room_answer(RequestHeaders("POST", path, last=False), RULES, 0.9)
    assert reply is not None
    assert (reply.status, reply.reason, reply.retry_after_s) == (503, "overloaded", 2)
    assert (orjson.loads(reply.body).get("type") == "error") == (path == "/v1/messages")


@pytest.mark.parametrize(
    "message", [RequestHeaders("GET", "/v1/files", last=True), ResponseHeaders(200, ""), RequestBody(b"")]
)
def test_what_is_no_inference_is_not_refused_for_want_of_room(
    message: RequestHeaders | ResponseHeaders | RequestBody,
) -> None:
    assert no_room_answer(message, RULES, 0.0) is None
