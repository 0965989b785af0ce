"""What Envoy allows as replies, whatever it has sent: one exchange's messages and replies, looked at as they go by.

After the descriptions in Envoy's `external_processor.proto` and `processing_mode.proto`.
"""

from __future__ import annotations

from envoy.service.ext_proc.v3 import external_processor_pb2 as ext_proc

from extproc.adapters.wire import encode_reply
from extproc.stream.messages import (
    Answer,
    BodyMode,
    Message,
    Replies,
    Reply,
    RequestBody,
    RequestHeaders,
    ResponseBody,
    ResponseHeaders,
    Trailers,
)

_KIND = {
    RequestHeaders: "request_headers",
    RequestBody: "request_body",
    ResponseHeaders: "response_headers",
    ResponseBody: "response_body",
}
_OWN_PACE = (BodyMode.FULL_DUPLEX, BodyMode.STREAMED_EARLY)  # not one reply a message


def kind_of(message: Message) -> str:
    """The kind of the reply that belongs to a message."""
    if isinstance(message, Trailers):
        return "request_trailers" if message.of_request else "response_trailers"
    return _KIND[type(message)]


class Protocol:
    """Raises AssertionError for replies that do not fit what was sent before."""

    def __init__(self, *, same_body: bool = True) -> None:
        self._same_body = same_body  # else another may go on
        self._mode = BodyMode.BUFFERED
        self._answer_mode = BodyMode.NONE
        self._got: list[str] = []  # kinds of messages that no reply has come to yet
        self._in = b""
        self._out = b""
        self._ended_in = self._ended_out = False
        self._too_late = False  # the message came after the body's end, as Envoy may send that twice
        self.answered = False

    def replied(self, message: Message, replies: Replies) -> None:
        """Replies that came to a message, errands included."""
        if isinstance(message, RequestHeaders):
            self._mode, self._answer_mode = message.body_mode, message.answer_mode
        if isinstance(message, RequestBody):
            self._too_late = self._ended_in
            self._in += message.body
            self._ended_in = self._ended_in or message.last
        kind = kind_of(message)
        self._got.append(kind)
        assert not any(isinstance(reply, Answer) for reply in replies[:-1]), "a reply after the answer"
        for reply in replies:
            self._take(reply, kind)
        if self._keeps_pace(kind):
            assert len(replies) == 1, (kind, replies)

    def _keeps_pace(self, kind: str) -> bool:
        """Whether Envoy waits for exactly one reply to such a message."""
        if kind.startswith("request"):
            return self._mode not in _OWN_PACE
        return kind != "response_body" or self._answer_mode is not BodyMode.FULL_DUPLEX

    def _take(self, reply: Reply, to: str) -> None:
        answer = ext_proc.ProcessingResponse.FromString(encode_reply(reply, "x-upstream-cluster"))
        kind = answer.WhichOneof("response")
        if isinstance(reply, Answer):
            assert kind == "immediate_response"
            assert to.startswith("request")
            assert 200 <= answer.immediate_response.status.code < 600
            self.answered = True
            return
        if kind == "request_body" and answer.request_body.response.body_mutation.HasField("streamed_response"):
            self._hand_back(answer.request_body.response.body_mutation.streamed_response)
            return
        if kind == "response_body" and self._answer_mode is BodyMode.FULL_DUPLEX:
            return
        assert kind in self._got, f"{kind} is answered that was not sent, or twice"
        self._got.remove(kind)

    def _hand_back(self, chunk: ext_proc.StreamedBodyResponse) -> None:
        assert self._mode is BodyMode.FULL_DUPLEX
        assert not self._ended_out or self._too_late, "a chunk after the last one"
        self._out += chunk.body
        self._ended_out = chunk.end_of_stream
        if self._same_body:
            assert self._in.startswith(self._out), "another body than came in"
            assert self._in == self._out or not chunk.end_of_stream, "a part of the body is missing"
