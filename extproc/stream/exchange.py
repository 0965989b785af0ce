"""One HTTP request as ext_proc sees it, without I/O: messages in, replies out, a reservation in between.

States and what may come in each:

    NEW       RequestHeaders            -> BODY if a body is expected that we route by, else PASSED
    BODY      RequestBody               -> ROUTED, or REFUSED
    ROUTED    ResponseHeaders, Trailers -> ROUTED, until `close`
    PASSED    anything                  -> PASSED; goes on unchanged
    REFUSED   nothing

`close` may come in every state and gives the reservation back.
"""

from __future__ import annotations

from enum import Enum, auto

from extproc.api import errors
from extproc.api.body import BodyError, decode
from extproc.api.paths import Parser, parser_for
from extproc.core.features import request_of
from extproc.core.model import Decision, Reason, Request
from extproc.core.router import Router
from extproc.stream.messages import (
    Continue,
    Message,
    PassOn,
    Refuse,
    Reply,
    RequestBody,
    RequestHeaders,
    ResponseHeaders,
    RouteTo,
    Trailers,
)


class _State(Enum):
    NEW = auto()
    BODY = auto()
    ROUTED = auto()
    PASSED = auto()
    REFUSED = auto()


class Exchange:
    """One request from its headers to the end of its stream.

    After `receive`, `request` and `decision` are set once they are known; the shell reports them to metrics.
    """

    def __init__(self, router: Router, exchange_id: str) -> None:
        self._router = router
        self._id = exchange_id
        self._state = _State.NEW
        self._parser: Parser | None = None
        self.request: Request | None = None
        self.decision: Decision | None = None

    def receive(self, message: Message, now: float, draw: float) -> Reply:
        """Reply to one message. `now` in seconds, `draw` in [0, 1) for near-ties."""
        match self._state, message:
            case _State.NEW, RequestHeaders():
                return self._begin(message)
            case _State.BODY, RequestBody():
                return self._route(message.body, now, draw)
            case _State.ROUTED, ResponseHeaders():
                if message.upstream:
                    self._router.served_by(self._id, message.upstream)
                return Continue(ResponseHeaders)
            case _, Trailers():
                return Continue(Trailers, message.of_request)
        return Continue(type(message))

    def close(self, now: float) -> None:
        """The stream has ended, in whatever way: the request is no longer in flight."""
        self._router.release(self._id, now)

    def _begin(self, head: RequestHeaders) -> Reply:
        self._parser = parser_for(head.method, head.path)
        if self._parser is None:
            self._state = _State.PASSED
            return PassOn(RequestHeaders)
        if head.last:
            return self._refuse(errors.no_body())
        self._state = _State.BODY
        return Continue(RequestHeaders)

    def _route(self, body: bytes, now: float, draw: float) -> Reply:
        assert self._parser is not None  # the state BODY is entered with a parser
        try:
            prompt = self._parser(decode(body))
        except BodyError as error:
            return self._refuse(errors.bad_body(error))
        self.request = request_of(prompt, self._id, self._router.beliefs)
        self.decision = self._router.choose(self.request, now, draw)
        chosen = self.decision.chosen
        if chosen is None:
            return self._turn_away(self.request, self.decision)
        self._state = _State.ROUTED
        candidates = (chosen, *self.decision.alternatives)
        endpoints = tuple(c.instance.address for c in candidates if c.instance.cluster == chosen.instance.cluster)
        features = self._router.features(self.request, chosen)
        return RouteTo(chosen.instance.cluster, endpoints, features)

    def _turn_away(self, request: Request, decision: Decision) -> Reply:
        """Refuse, unless we know of no instance at all: then Envoy's own balancing is the better guess."""
        if decision.reason is Reason.NO_INSTANCE:
            self._state = _State.PASSED
            return PassOn(RequestBody)
        return self._refuse(errors.unroutable(request.model, decision))

    def _refuse(self, refusal: errors.Refusal) -> Reply:
        self._state = _State.REFUSED
        return Refuse(refusal.status, refusal.body, refusal.code, refusal.retry_after_s)
