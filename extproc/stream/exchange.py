"""One HTTP request as ext_proc sees it, without I/O: messages in, replies out, a reservation in between.

States and what may come in each:

    state       message                     next state, and replies
    NEW         RequestHeaders              ANSWERED, where we know the answer or no body comes that must come
                                            PASSED, where the path is none that we route, or the body is not sent to us
                                            BODY: Continue; in the modes of `intake.COLLECTED` COLLECTING: no reply
    BODY        RequestBody                 decided upon; if only a part of the body (STREAMED, BUFFERED_PARTIAL) PASSED
    COLLECTING  RequestBody                 COLLECTING, no reply; ANSWERED with 413 if too long
                RequestBody that ends it    decided upon
                Trailers of the request     decided upon
    COUNTING    `counted`                   decided upon
    PLACING     `placed`                    decided upon
    ROUTED      ResponseHeaders             ROUTED: Continue or Annotate
                RequestBody                 ROUTED: no reply in FULL_DUPLEX (Envoy may send a body's end twice)
    PASSED      RequestBody                 PASSED: goes on unchanged
    ANSWERED    RequestBody                 ANSWERED: no reply if it was collected; Envoy had sent it before our answer
    any         ResponseBody, Trailers      the same: goes on unchanged

Decided upon: ROUTED, ANSWERED or PASSED; COUNTING if a count could change that, PLACING before ROUTED in strict mode.
The reply is to the body, or, if it was collected, to the headers; then the body goes on, and the trailers if there are.
Anything of the request before its headers, and headers after the first, raise OutOfOrderError. An answer without a
request is none: a filter before us may have answered. `close` may come in every state and gives the reservation back.
"""

from __future__ import annotations

from dataclasses import replace
from enum import Enum, auto

from extproc.api import errors
from extproc.api.body import BodyError
from extproc.api.caller import caller_of, wants_explanation
from extproc.api.models_page import is_models_page, models_page
from extproc.api.paths import Endpoint, endpoint_for
from extproc.core.eligibility.counting import Wish, wish_for
from extproc.core.features import request_of, with_count, with_ids
from extproc.core.reasons.explanation import Material, explain, material
from extproc.core.reasons.explanation_text import as_line
from extproc.core.reasons.retry_after import retry_after_s
from extproc.core.router import Router
from extproc.core.tokens.tokens import ExactCount
from extproc.core.values.decision import Decision, Reason
from extproc.core.values.request import Caller, Prompt, Request
from extproc.stream.destination import anyone, confined, route_to
from extproc.stream.intake import COLLECTED, UNSEEN, Intake
from extproc.stream.messages import (
    TRAILERS_HEADER,
    Annotate,
    Answer,
    BodyMode,
    Continue,
    CountTokens,
    Errand,
    HandBack,
    Message,
    OutOfOrderError,
    PassOn,
    Place,
    Replies,
    Reply,
    RequestBody,
    RequestHeaders,
    ResponseBody,
    ResponseHeaders,
    TakePlace,
    Trailers,
)
from extproc.stream.rules import TRACE_HEADER, Destination, Rules

_LONGEST_TRACE_ID = 64  # a UUID has 36


class _State(Enum):
    NEW = auto()
    BODY = auto()
    COLLECTING = auto()
    COUNTING = auto()
    PLACING = auto()
    ROUTED = auto()
    PASSED = auto()
    ANSWERED = auto()


class Exchange:
    """One request from its headers to the end of its stream.

    After `receive`, `request` and `decision` are set once they are known; the shell reports them to metrics.
    """

    def __init__(self, router: Router, exchange_id: str, rules: Rules) -> None:
        self._router = router
        self._id = exchange_id
        self._rules = rules
        self._caller = Caller()
        self._state = _State.NEW
        self._endpoint: Endpoint | None = None
        self._content_type = ""
        self._mode = BodyMode.BUFFERED
        self._answer_mode = BodyMode.NONE
        self._intake: Intake | None = None  # of a body that is collected
        self._trailers = False  # they ended that body
        self._gateway = rules.destination is Destination.GATEWAY
        self._subset: frozenset[str] | None = None  # endpoints that the gateway allows
        self._full: frozenset[str] = frozenset()  # instances without a place left over all routers
        self._asked: tuple[Prompt, Wish] | None = None  # what is being counted
        self._explains = False  # the caller is to be told why
        self._decided_at_s = 0.0
        self.trace_id = ""
        self.request: Request | None = None
        self.decision: Decision | None = None

    def receive(self, message: Message, now: float, draw: float) -> Replies | Errand:
        """Reply to one message. `now` in seconds, `draw` in [0, 1) for near-ties. Raises OutOfOrderError."""
        match self._state, message:
            case _State.NEW, RequestHeaders():
                return self._begin(message, draw)
            case _State.BODY, RequestBody():
                if not message.last and self._mode in UNSEEN:
                    return self._replies(self._pass_on(UNSEEN[self._mode], draw))
                return self._route(message.body, now, draw)
            case _State.ROUTED, ResponseHeaders():
                return (self._served(message, now),)
            case _State.COLLECTING, RequestBody():
                return self._collect(message, now, draw)
            case _State.COLLECTING, Trailers(of_request=True):
                assert self._intake is not None  # COLLECTING is entered with one
                self._trailers = True
                return self._route(self._intake.whole(), now, draw)
            case (_, RequestHeaders()) | (_State.NEW, RequestBody() | Trailers(of_request=True)):
                raise OutOfOrderError(f"{type(message).__name__} came out of order: is request_header_mode SEND?")
            case _, RequestBody():
                return self._let_on(message)
            case _, ResponseBody() if self._answer_mode is BodyMode.FULL_DUPLEX:
                return (HandBack(message.body, message.last, of_request=False),)
            case _, Trailers():
                return (Continue(Trailers, message.of_request),)
        return (Continue(type(message)),)

    def close(self, now: float) -> None:
        """The stream has ended, in whatever way: the request is no longer in flight."""
        self._router.release(self._id, now)

    def material(self) -> Material | None:
        """What explains the decision, None if there was none; to be asked for at once, while the state is the same."""
        if self.request is None or self.decision is None:
            return None
        return material(self.request, self.decision, self._router.snapshot(), self._decided_at_s)

    def _explanation(self, upstream: str = "") -> str:
        known = self.material()
        return "" if known is None else as_line(explain(known, self.trace_id), upstream)

    def _begin(self, head: RequestHeaders, draw: float) -> Replies:
        self._mode, self._answer_mode = head.body_mode, head.answer_mode
        if head.subset is not None:
            self._subset, self._gateway = head.subset, True
        if self._rules.answer_models and is_models_page(head.method, head.path):
            return (self._answer(errors.Refusal(200, "models", models_page(self._router.fleet.members()))),)
        self._endpoint = endpoint_for(head.method, head.path)
        if self._endpoint is None:
            return (self._pass_on("unknown_path", draw, RequestHeaders),)
        if head.last:
            return (self._answer(errors.no_body(self._endpoint.dialect)),)
        if head.body_mode is BodyMode.NONE:
            return (self._pass_on(UNSEEN[BodyMode.NONE], draw, RequestHeaders),)
        self._caller = caller_of(head.headers, self._rules.trust)
        if head.subset is not None:
            self._caller = confined(self._caller, head.subset)
        self._explains = wants_explanation(head.headers, self._rules.trust)
        self.trace_id = head.headers.get(TRACE_HEADER, "")[:_LONGEST_TRACE_ID]
        self._content_type = head.headers.get("content-type", "")
        if head.body_mode in COLLECTED:
            self._state = _State.COLLECTING
            length = head.headers.get("content-length", "")
            self._intake = Intake(head.body_mode, self._rules.body_limit_bytes, length)
            return ()
        self._state = _State.BODY
        return (Continue(RequestHeaders),)

    def _collect(self, message: RequestBody, now: float, draw: float) -> Replies | Errand:
        assert self._intake is not None  # COLLECTING is entered with one
        if not self._intake.add(message.body):
            return (self._answer(errors.too_large(self._dialect)),)
        if message.last or self._intake.full:
            return self._route(self._intake.whole(), now, draw)
        return ()

    def _let_on(self, message: RequestBody) -> Replies:
        """What comes of a body after all has been said of it."""
        if self._state is _State.PASSED and self._mode is BodyMode.FULL_DUPLEX and self._intake is None:
            return (HandBack(message.body, message.last),)
        # Envoy 1.35 and later may send the end of a body twice (its issue 46237); what we answered needs no reply.
        if self._mode is BodyMode.FULL_DUPLEX or (self._intake and self._state is _State.ANSWERED):
            return ()
        return (Continue(RequestBody),)

    def _replies(self, reply: Reply) -> Replies:
        """The reply to a body, and, if it was collected, what lets it go on after it."""
        if self._intake is None or self._state is _State.ANSWERED:
            return (reply,)
        onward = self._intake.onward(ended=not self._trailers)
        return (reply, *onward, Continue(Trailers)) if self._trailers else (reply, *onward)

    def _served(self, head: ResponseHeaders, now: float) -> Reply:
        if self.request is not None:
            self._router.served_by(self.request, head.upstream, now, head.status)
        return Annotate(self._explanation(head.upstream)) if self._explains else Continue(ResponseHeaders)

    def read(self, body: bytes, now: float) -> Request:
        """The request that a body asks for; only where a body is expected. Raises BodyError."""
        return self._request(self._prompt(body), now, len(body))

    def _request(self, prompt: Prompt, now: float, body_bytes: int) -> Request:
        share, beliefs = self._router.policy.tenants_share_prefixes, self._router.beliefs
        return request_of(prompt, self._caller, self._id, beliefs, now, share_prefixes=share, body_bytes=body_bytes)

    def _prompt(self, body: bytes) -> Prompt:
        assert self._endpoint is not None  # the state BODY is entered with an endpoint
        return self._believed(self._endpoint.parse(body, self._content_type))

    def counted(self, exact: ExactCount | None, now: float, draw: float) -> Replies | TakePlace:
        """Reply to the body now that its tokens are counted, or could not be counted in time (None)."""
        assert self._state is _State.COUNTING
        assert self.request is not None  # COUNTING is entered with one
        assert self._asked is not None
        prompt, wish = self._asked
        if exact is not None:
            self.request = with_count(self.request, prompt, exact, wish.layouts)
        self._asked = None
        return self._choose(self.request, now, draw)

    def placed(self, place: int | None, now: float, draw: float) -> Replies | TakePlace:
        """Reply to the body now that a place was taken, the one of this number, or that none was left (None).

        Then what is left is decided upon anew.
        """
        assert self._state is _State.PLACING
        assert self.request is not None
        assert self.decision is not None
        if place is None:
            self._router.release(self._id, now)
            self._full |= {candidate.instance.key for candidate in self.decision.candidates}
            return self._choose(self.request, now, draw)
        self.decision = self.decision.with_chosen(place)
        assert self.decision.chosen is not None
        if place:
            self._router.place(self.request, self.decision.chosen, now, self.decision.partner)
        return self._replies(self._go(self.request, self.decision))

    def _route(self, body: bytes, now: float, draw: float) -> Replies | Errand:
        try:
            prompt = self._prompt(body)
        except BodyError as error:
            return (self._answer(errors.bad_body(error, self._dialect)),)
        request = self.request = self._request(prompt, now, len(body))
        if not request.model:  # some APIs leave it out; the engine has a default, and we do not know it
            return self._replies(self._pass_on("no_model", draw))
        wish = wish_for(request, self._router.snapshot(), draw) if self._may_count(prompt) else None
        if wish is not None and prompt.token_ids:
            request = self.request = with_ids(request, prompt, wish.layouts)
        elif wish is not None and prompt.countable is not None and (what := prompt.countable()) is not None:
            self._asked = prompt, wish
            self._state = _State.COUNTING
            return CountTokens(request.model, what, want_ids=bool(wish.layouts))
        return self._choose(request, now, draw)

    def _may_count(self, prompt: Prompt) -> bool:
        """Whether token ids are at hand, or can be had."""
        if prompt.token_ids:
            return prompt.choices == 1 and not prompt.pieces
        return prompt.countable is not None and prompt.model in self._rules.counted_models

    def _choose(self, request: Request, now: float, draw: float) -> Replies | TakePlace:
        decision = self.decision = self._router.choose(request, now, draw, self._full)
        self._decided_at_s = now
        if decision.chosen is None:
            return self._replies(self._turn_away(request, decision, now, draw))
        if not self._rules.strict:
            return self._replies(self._go(request, decision))
        self._state = _State.PLACING
        ranked = (candidate.instance for candidate in decision.candidates)
        return TakePlace(self._id, tuple(Place(each.key, self._router.limit(each)) for each in ranked))

    def _go(self, request: Request, decision: Decision) -> Reply:
        self._state = _State.ROUTED
        reply = route_to(self._router, request, decision, self._rules, in_header=self._gateway)
        if self._intake is None:
            return reply
        no_retry = ((TRAILERS_HEADER, "1"),) if self._trailers and self._mode is BodyMode.FULL_DUPLEX else ()
        return replace(reply, to=RequestHeaders, headers=(*reply.headers, *no_retry))

    @property
    def _dialect(self) -> errors.Dialect:
        return errors.Dialect.OPENAI if self._endpoint is None else self._endpoint.dialect

    def _believed(self, prompt: Prompt) -> Prompt:
        """The prompt without what the operator does not let bodies say."""
        if prompt.priority is None or self._rules.trust.body_priority:
            return prompt
        return replace(prompt, priority=None)

    def _turn_away(self, request: Request, decision: Decision, now: float, draw: float) -> Reply:
        """Refuse, unless no instance is known at all: then Envoy's own balancing may be the better guess."""
        if decision.reason is Reason.NO_INSTANCE and not (self._rules.refuse_unknown or self._gateway):
            return self._pass_on(decision.reason, draw)
        wait_s = retry_after_s(request, decision, self._router.snapshot(), now, draw)
        return self._answer(errors.unroutable(request, decision, wait_s, self._dialect, gateway=self._gateway))

    def _pass_on(self, reason: str, draw: float, to: type[Message] | None = None) -> PassOn | Answer:
        """Let it go on undecided. A gateway that balances nothing by itself is given endpoints, or an error."""
        self._state = _State.PASSED
        endpoints = anyone(self._router, self._subset, draw) if self._gateway else ()
        if self._gateway and not endpoints:
            return self._answer(errors.no_endpoint(Reason.NO_INSTANCE.value, self._dialect))
        return PassOn(to or (RequestBody if self._intake is None else RequestHeaders), reason, endpoints)

    def _answer(self, refusal: errors.Refusal) -> Answer:
        self._state = _State.ANSWERED
        explanation = self._explanation() if self._explains else ""
        return Answer(refusal.status, refusal.body, refusal.code, refusal.retry_after_s, explanation)
