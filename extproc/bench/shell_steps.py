"""Where the microseconds of one request go: each step of the service alone, called in its order without gRPC."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from extproc.adapters import wire
from extproc.bench.envoy_messages import access_log, conversation
from extproc.bench.request_path import _body, bench_instance
from extproc.core.values.outcome import Outcome
from extproc.observe.observer import Observer
from extproc.server.shell import Shell
from extproc.stream.errands import Errand
from extproc.stream.exchange import Exchange
from extproc.stream.messages import Replies, RouteTo

_WARM_UP = 50  # requests that are not counted
_ENTRIES = 16  # of one message of the access log
_SAID = ("headers", "body", "answer", "trailers")

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Step:
    """Seconds that one step takes of one request, where nothing disturbs it: the tenth percentile."""

    name: str
    took_s: float


def shell_steps(shell: Shell, rounds: int, body_bytes: int = 4 * 1024) -> tuple[Step, ...]:
    """Time the steps of so many requests. `read` and `decide` are the core's and no part of the shell."""
    walk = _Walk(shell, body_bytes)
    for number in range(rounds + _WARM_UP):
        if number == _WARM_UP:
            walk.times_s.clear()
        walk.request(f"bench-{number}")
    took_s = {name: sorted(times_s)[len(times_s) // 10] for name, times_s in walk.times_s.items()}
    took_s["stream: body"] = max(0.0, took_s["stream: body"] - took_s["read"] - took_s["decide"])
    return tuple(Step(name, each_s) for name, each_s in took_s.items())


class _Walk:
    """Goes the way of `server.ext_proc` and `server.access_log`, a clock in its hand."""

    def __init__(self, shell: Shell, body_bytes: int) -> None:
        self.times_s: dict[str, list[float]] = {}
        self._shell = shell
        self._body = _body(body_bytes)
        self._upstream = bench_instance(1).address
        self._messages = conversation(self._body, self._upstream)

    def request(self, request_id: str) -> None:
        """One request from its headers to its outcome."""
        shell = self._shell
        self._core(request_id)
        exchange = self._timed("begin", Exchange, shell.router, request_id, shell.rules)
        messages, routed = list(self._messages), b""
        for number, said in enumerate(_SAID):
            message = self._timed(f"decode: {said}", wire.decode_message, messages[number], shell.rules.headers)
            replies = _replies(self._timed(f"stream: {said}", exchange.receive, message, shell.clock(), 0.5))
            encoded = self._timed(f"encode: {said}", _encoded, replies)
            self._timed(f"observe: {said}", _observed, shell.observer, exchange, replies)
            if isinstance(replies[0], RouteTo):
                routed = encoded
                self._upstream = replies[0].endpoints[0]
                messages = list(conversation(self._body, self._upstream))
        self._timed("close", exchange.close, shell.clock())
        self._outcome(access_log([(routed, self._upstream)] * _ENTRIES))

    def _core(self, request_id: str) -> None:
        """What of the stream's way is reading the body and deciding."""
        router, now = self._shell.router, self._shell.clock()
        exchange = Exchange(router, f"{request_id}-core", self._shell.rules)
        exchange.receive(wire.decode_message(self._messages[0], self._shell.rules.headers), now, 0.5)
        request = self._timed("read", exchange.read, self._body, now)
        self._timed("decide", router.choose, request, now, 0.5)
        exchange.close(now)

    def _outcome(self, entries: bytes) -> None:
        shell = self._shell
        outcome = self._timed("decode: access log", wire.decode_access_log, entries)[0]
        self.times_s["decode: access log"][-1] /= _ENTRIES
        assert isinstance(outcome, Outcome)
        assert outcome.features is not None
        self._timed("learn", shell.router.learn, outcome, shell.clock())
        self._timed("observe: outcome", shell.observer.finished, outcome)

    def _timed(self, name: str, step: Callable[..., T], *arguments: Any) -> T:
        began_s = time.perf_counter()
        result = step(*arguments)
        took_s = time.perf_counter() - began_s
        self.times_s.setdefault(name, []).append(took_s)
        return result


def _replies(replies: Replies | Errand) -> Replies:
    assert isinstance(replies, tuple)  # neither counting nor strict mode is on
    return replies


def _encoded(replies: Replies | Errand) -> bytes:
    return b"".join(wire.encode_reply(reply, "x-upstream-cluster") for reply in _replies(replies))


def _observed(observer: Observer, exchange: Exchange, replies: Replies) -> None:
    for reply in replies:
        observer.replied(exchange, reply, 0.001)
