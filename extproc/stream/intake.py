"""A request's body that comes in chunks before its headers are answered, and goes on once they are.

Such are the modes in which a decision can wait for the whole body although it is made known with the headers' reply:
FULL_DUPLEX, where Envoy has let go of the body and gets it back from us, and STREAMED_EARLY, where Envoy keeps it and
wants a reply to each chunk.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import structs

from extproc.api.body import Chunk
from extproc.api.pieces import Pieces, cut, size_of
from extproc.stream.messages import (
    TRAILERS_HEADER,
    BodyMode,
    Continue,
    HandBack,
    PassOn,
    Replies,
    Reply,
    RequestBody,
    RequestHeaders,
    RouteTo,
    Substitute,
    Trailers,
)

COLLECTED = frozenset({BodyMode.FULL_DUPLEX, BodyMode.STREAMED_EARLY})
"""Modes of which this file speaks."""

UNSEEN = {
    BodyMode.NONE: "body_not_sent",
    BodyMode.STREAMED: "streamed_body",
    BodyMode.BUFFERED_PARTIAL: "truncated_body",
}
"""Why requests with a body are passed on, by the mode in which Envoy may show us no whole one."""

CHUNK_BYTES = 256 * 1024
"""Of a body in the client's place, how much goes into one message: all of it at once would take twice its memory."""
_MANY, _SMALL_BYTES = 256, 1024
"""So many chunks that are shorter on average go back as one: a message each costs more than to copy them."""


class Intake:
    """Chunks of one body. What came in a message goes back in one, and is not copied, unless they are many and tiny."""

    def __init__(self, mode: BodyMode, limit_bytes: int, content_length: str = "") -> None:
        self._mode = mode
        # In STREAMED_EARLY Envoy tells of trailers only after its chunks are answered: then nothing else tells the end.
        told = mode is BodyMode.STREAMED_EARLY and content_length.isdecimal() and len(content_length) < 16
        self._missing_bytes = int(content_length) if told else -1
        self._room_bytes = limit_bytes
        self._chunks: list[Chunk] = []
        self.has_trailers = False
        """Whether trailers ended the body: then no chunk is marked as the last."""

    def add(self, chunk: Chunk) -> bool:
        """Take a chunk in; False if the body is longer than allowed, and then forget it."""
        self._room_bytes -= len(chunk)
        self._missing_bytes -= len(chunk)
        self._chunks.append(chunk)
        if self._room_bytes < 0:
            self._chunks.clear()
        return self._room_bytes >= 0

    @property
    def full(self) -> bool:
        """Whether all is here that was announced, where that has to tell us the end."""
        return not self._missing_bytes

    def chunks(self) -> tuple[Chunk, ...]:
        """The body so far."""
        return tuple(self._chunks)

    def let_on(self, reply: RouteTo | PassOn) -> tuple[RouteTo | PassOn, Replies]:
        """What was decided as a reply to the headers, and the replies that let all that follows them go on."""
        reply, instead = structs.replace(reply, to=RequestHeaders), None
        if isinstance(reply, RouteTo):
            reply, instead = structs.replace(reply, body=None), reply.body
            if self.has_trailers and self._mode is BodyMode.FULL_DUPLEX:
                reply = structs.replace(reply, headers=(*reply.headers, (TRAILERS_HEADER, "1")))
        onward = self._onward(instead)
        return reply, (*onward, Continue(Trailers)) if self.has_trailers else onward

    def _onward(self, instead: Pieces | None) -> Replies:
        """Replies that let the body go on, or what is sent in place of it; it is forgotten then."""
        chunks, self._chunks = self._chunks, []
        if self._mode is BodyMode.STREAMED_EARLY:
            if instead is None:
                return tuple(Continue(RequestBody) for _ in chunks)
            # Envoy wants as many replies as it sent chunks.
            return tuple(map(Substitute, cut(instead, -(-size_of(instead) // len(chunks)), len(chunks))))
        if instead is None and len(chunks) > _MANY and size_of(chunks) < _SMALL_BYTES * len(chunks):
            instead = (b"".join(chunks),)
        if instead is not None:
            chunks = [*cut(instead, CHUNK_BYTES, -(-size_of(instead) // CHUNK_BYTES))]
        return tuple(_handed_back([chunk for chunk in chunks if chunk], ended=not self.has_trailers))


def _handed_back(chunks: list[Chunk], *, ended: bool) -> Iterator[Reply]:
    """Envoy ends a body with an empty chunk; the one before it can carry the mark, and saves a message."""
    for number, chunk in enumerate(chunks, 1):
        yield HandBack(chunk, last=ended and number == len(chunks))
    if ended and not chunks:
        yield HandBack(b"", last=True)
