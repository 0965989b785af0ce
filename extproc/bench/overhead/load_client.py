"""A client's connection: sends one request at a time, and says what became of it. HTTP/1.1 as Envoy answers it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

from extproc.bench.overhead.headers import ECHO_HEADER

_LIMIT_BYTES = 64 * 1024 * 1024


class Client(asyncio.Protocol):
    """A connection that has at most one request under way."""

    def __init__(self, done: Callable[[Client, str], None], decided: bool) -> None:
        self._done = done
        self._decided = decided
        self._transport: Any = None
        self._got = bytearray()
        self._end = 0  # bytes of the answer once its head is there
        self.busy = False
        self.due_s = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A request may be sent."""
        self._transport = transport
        self._transport.set_write_buffer_limits(high=_LIMIT_BYTES)

    def serve(self, done: Callable[[Client, str], None], decided: bool) -> None:
        """Tell somebody else of what is sent from now on."""
        self._done, self._decided = done, decided

    def send(self, pieces: Iterable[bytes], due_s: float) -> None:
        """Send a whole request."""
        self.busy, self.due_s = True, due_s
        self._transport.writelines(pieces)

    def close(self) -> None:
        """Hang up."""
        self._transport.abort()

    @property
    def gone(self) -> bool:
        """Whether nothing can be sent."""
        return bool(self._transport.is_closing())

    def data_received(self, data: bytes) -> None:
        """Wait for the end of the answer."""
        got = self._got
        got += data
        if not self._end:
            head = got.find(b"\r\n\r\n")
            if head < 0:
                return
            self._end = _end_of_answer(got, head)
        if self._end < 0:
            if not got.endswith(b"0\r\n\r\n"):
                return
        elif len(got) < self._end:
            return
        wrong = _what_is_wrong(bytes(got), self._decided)
        got.clear()
        self._end = 0
        self._finish(wrong)

    def connection_lost(self, error: Exception | None) -> None:
        """The other side hung up."""
        if self.busy:
            self._finish("connection lost")

    def _finish(self, wrong: str) -> None:
        if self.busy:
            self.busy = False
            self._done(self, wrong)


def _end_of_answer(got: bytearray, head: int) -> int:
    """Bytes of the whole answer; -1 if it comes in chunks."""
    at = got.find(b"\r\ncontent-length: ", 0, head + 2)
    if at < 0:
        return -1
    at += len(b"\r\ncontent-length: ")
    return head + 4 + int(got[at : got.find(b"\r\n", at)])


_ECHO = f"\r\n{ECHO_HEADER}: ".encode()


def _what_is_wrong(got: bytes, decided: bool) -> str:
    """Name of the error, "" for an answer as it should be."""
    if got[9:12] != b"200":
        return f"status {got[9:12].decode(errors='replace')}"
    if decided and _ECHO not in got:
        return "undecided"
    return ""
