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
    AWAITING    `resume`                    decided upon
    ROUTED      ResponseHeaders             ROUTED: Continue or Annotate
                RequestBody                 ROUTED: no reply in FULL_DUPLEX (Envoy may send a body's end twice)
    PASSED      RequestBody                 PASSED: goes on unchanged
                ResponseHeaders             PASSED: Continue or Annotate
    ANSWERED    RequestBody                 ANSWERED: no reply if it was collected; Envoy had sent it before our answer
    any         ResponseBody, Trailers      the same: goes on unchanged

Decided upon: ROUTED, ANSWERED or PASSED at the end of the request's course (`stream.course`); AWAITING while one of its
errands is run.
The reply is to the body, or, if it was collected, to the headers; then the body goes on, and the trailers if there are.
Anything of the request before its headers, and headers after the first, raise OutOfOrderError. An answer without a
request is none: a filter before us may have answered. `close` may come in every state and gives the reservation back.
"""

from __future__ import annotations

from enum import Enum, auto

from msgspec import structs

from extproc.api import errors
from extproc.api.body import Chunk
from extproc.api.caller import wants_explanation
from extproc.api.paths import Endpoint, endpoint_for
from extproc.api.pieces import size_of
from extproc.core.reasons.explanation import Material, explain, material
from extproc.core.reasons.explanation_text import as_line
from extproc.core.reasons.model_choice import told_models
from extproc.core.router import Router
from extproc.core.values.decision import Decision
from extproc.core.values.request import Request
from extproc.stream.at_once import models_answer
from extproc.stream.course import Course, End
from extproc.stream.destination import answer, undecided
from extproc.stream.errands import Errand, Resumed, Steps
from extproc.stream.head import gateway_of, head_of
from extproc.stream.intake import COLLECTED, UNSEEN, Intake
from extproc.stream.messages import (
    EXPLANATION_HEADER,
    Annotate,
    Answer,
    BodyMode,
    Continue,
    HandBack,
    Headers,
    Message,
    MoreTime,
    OutOfOrderError,
    PassOn,
    Replies,
    Reply,
    RequestBody,
    RequestHeaders,
    ResponseBody,
    ResponseHeaders,
    RouteTo,
    Trailers,
)
from extproc.stream.patience import Patience, Wait
from extproc.stream.rules import PARENT_HEADER, TRACE_HEADER, Rules
from extproc.stream.shadow import Shadow

_LONGEST_TRACE_ID = 64  # a UUID has 36


class _State(Enum):
    NEW = auto()
    BODY = auto()
    COLLECTING = auto()
    AWAITING = auto()
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
        self._state = _State.NEW
        self._mode = BodyMode.BUFFERED
        self._answer_mode = BodyMode.NONE
        self._course: Course | None = None  # of a request that is to be decided upon
        self._steps: Steps[End] | None = None  # while they go on
        self._intake: Intake | None = None  # of a body that is collected
        self._has_length = False  # the request tells its body's length
        self._explains = False  # the caller is to be told why
        self._patience = Patience()
        self.trace_id = ""
        self.trace_parent = ""  # of W3C's trace context; what is set before the headers come goes before theirs

    @property
    def request(self) -> Request | None:
        """What is asked for, None as long as it is not known."""
        return self._course.request if self._course else None

    @property
    def asked(self) -> str:
        """The name of the model that the client asks for, "" as long as it is not known."""
        return self._course.plan.asked if self._course and self._course.plan else ""

    @property
    def decision(self) -> Decision | None:
        """What was decided, None if nothing was."""
        return self._course.decision if self._course else None

    @property
    def shadow(self) -> Shadow | None:
        """What would have become of the request, None if it is rolled out, or that is not known yet."""
        return self._course.shadow if self._course else None

    @property
    def is_guess(self) -> bool:
        """Whether its body could not be read in time, so that what is asked for was guessed from its size."""
        return self._course is not None and self._course.is_guess

    @property
    def replied(self) -> bool:
        """Whether all has been said of the request."""
        return self._state in (_State.ROUTED, _State.PASSED, _State.ANSWERED)

    @property
    def held_s(self) -> float | None:
        """For how long the request was held, None if it was not, or still is."""
        return self._course.held_s if self._course else None

    def receive(self, message: Message, now: float, draw: float) -> Replies | Errand:
        """Reply to one message. `now` in seconds, `draw` in [0, 1) for near-ties. Raises OutOfOrderError."""
        match self._state, message:
            case _State.NEW, RequestHeaders():
                return self._begin(message, draw)
            case _State.BODY, RequestBody():
                if not message.last and self._mode in UNSEEN:
                    return self._pass_on(UNSEEN[self._mode], draw)
                return self._decide((message.body,), now, draw)
            case _State.ROUTED, ResponseHeaders():
                return (self._served(message, now),)
            case _State.PASSED, ResponseHeaders():
                return (self._passed(message, now),)
            case _State.COLLECTING, RequestBody():
                return self._collect(message, now, draw)
            case _State.COLLECTING, Trailers(of_request=True):
                assert self._intake is not None  # COLLECTING is entered with one
                self._intake.has_trailers = True
                return self._decide(self._intake.chunks(), now, draw)
            case (_, RequestHeaders()) | (_State.NEW, RequestBody() | Trailers(of_request=True)):
                raise OutOfOrderError(f"{type(message).__name__} came out of order: is request_header_mode SEND?")
            case _, RequestBody():
                return self._let_on(message)
            case _, ResponseBody() if self._answer_mode is BodyMode.FULL_DUPLEX:
                return (HandBack(message.body, message.last, of_request=False),)
            case _, Trailers():
                return (Continue(Trailers, message.of_request),)
        return (Continue(type(message)),)

    def resume(self, result: object, now: float, draw: float) -> Replies | Errand:
        """Go on with what came of an errand, to the next one or to the replies to the body."""
        assert self._steps is not None  # an errand is open only while there are steps
        try:
            return self._steps.send(Resumed(result, now, draw))
        except StopIteration as end:
            return self._decided(end.value)

    def wait(self, errand: Wait, now: float) -> tuple[Wait, MoreTime | None]:
        """An errand that may take long, for no longer than Envoy waits; and what to tell Envoy before, if anything."""
        return self._patience.wait(errand, self._mode, now)

    def close(self, now: float) -> None:
        """The stream has ended, in whatever way: the request is no longer in flight."""
        self._steps = None
        self._router.release(self._id, now)

    def read(self, body: bytes, now: float) -> Request:
        """The request that a body asks for; only where a body is expected. Raises BodyError."""
        assert self._course is not None  # a body is expected only after headers that began a course
        return self._course.read(body, now)

    def material(self) -> Material | None:
        """What explains the decision, None if there was none; to be asked for at once, while the state is the same."""
        course = self._course
        if course is None or course.request is None or course.decision is None:
            return None
        models = None if course.plan is None or course.choice is None else told_models(course.plan, course.choice)
        known = material(course.request, course.decision, self._router.snapshot(), course.decided_at_s, models)
        if course.shadow is not None:
            return structs.replace(known, shadow=course.shadow.text)
        return known if course.held_s is None else structs.replace(known, held_s=course.held_s)

    @property
    def _headers(self) -> Headers:
        """What the client is told in the answer's headers, whoever answers."""
        return self._course.headers if self._course else ()

    def _explanation(self, upstream: str = "") -> Headers:
        """The header that tells why, if the caller is to be told and there is something to tell."""
        known = self.material() if self._explains else None
        return () if known is None else ((EXPLANATION_HEADER, as_line(explain(known, self.trace_id), upstream)),)

    def _begin(self, head: RequestHeaders, draw: float) -> Replies:
        self._mode, self._answer_mode = head.body_mode, head.answer_mode
        self._has_length = "content-length" in head.headers
        page = models_answer(head, self._router, self._rules, self._id)
        if page is not None:
            return self._end(page)
        endpoint = endpoint_for(head.method, head.path)
        if endpoint is None:
            return self._end(self._undecided("unknown_path", head, None, draw))
        if head.body_mode is BodyMode.NONE and not head.last:
            return self._end(self._undecided(UNSEEN[BodyMode.NONE], head, endpoint, draw))
        self._course = Course(self._router, self._id, self._rules, head_of(head, endpoint, self._rules))
        if head.last:
            return self._end(self._course.refuse(errors.no_body(endpoint.dialect), draw, RequestHeaders))
        self._explains = wants_explanation(head.headers, self._rules.trust)
        self.trace_id = head.headers.get(TRACE_HEADER, "")[:_LONGEST_TRACE_ID]
        self.trace_parent = self.trace_parent or head.headers.get(PARENT_HEADER, "")
        if head.body_mode in COLLECTED:
            self._state = _State.COLLECTING
            length = head.headers.get("content-length", "")
            self._intake = Intake(head.body_mode, self._rules.body_limit_bytes, length)
            return ()
        self._state = _State.BODY
        return (Continue(RequestHeaders),)

    def _undecided(self, reason: str, head: RequestHeaders, endpoint: Endpoint | None, draw: float) -> PassOn | Answer:
        dialect = errors.Dialect.OPENAI if endpoint is None else endpoint.dialect
        return undecided(self._router, reason, RequestHeaders, draw, gateway_of(head, self._rules), dialect)

    def _pass_on(self, reason: str, draw: float) -> Replies:
        assert self._course is not None  # BODY is entered with one
        return self._decided(self._course.pass_on(reason, draw))

    def _collect(self, message: RequestBody, now: float, draw: float) -> Replies | Errand:
        assert self._intake is not None  # COLLECTING is entered with one
        assert self._course is not None
        if not self._intake.add(message.body):
            return self._end(answer(errors.too_large(self._course.dialect)))
        if message.last or self._intake.full:
            return self._decide(self._intake.chunks(), now, draw)
        return ()

    def _let_on(self, message: RequestBody) -> Replies:
        """What comes of a body after all has been said of it."""
        if self._state is _State.PASSED and self._mode is BodyMode.FULL_DUPLEX and self._intake is None:
            return (HandBack(message.body, message.last),)
        # Envoy 1.35 and later may send the end of a body twice (its issue 46237); what we answered needs no reply.
        if self._mode is BodyMode.FULL_DUPLEX or (self._intake and self._state is _State.ANSWERED):
            return ()
        return (Continue(RequestBody),)

    def _decide(self, chunks: tuple[Chunk, ...], now: float, draw: float) -> Replies | Errand:
        assert self._course is not None  # a body is expected only after headers that began a course
        self._state = _State.AWAITING
        self._steps = self._course.steps(chunks, now, draw)
        try:
            return next(self._steps)
        except StopIteration as end:
            return self._decided(end.value)

    def _decided(self, reply: End) -> Replies:
        """The reply to the body; if it was collected, to its headers, and then the body goes on."""
        self._steps = None
        intake = self._intake
        if intake is None and isinstance(reply, RouteTo) and reply.body is not None and self._has_length:
            # Envoy answers 500 if the two differ. A length where there was none would not go with chunks or trailers.
            reply = structs.replace(reply, headers=(*reply.headers, ("content-length", str(size_of(reply.body)))))
        if intake is None or isinstance(reply, Answer):
            return self._end(reply)
        to_headers, onward = intake.let_on(reply)
        return (*self._end(to_headers), *onward)

    def _end(self, reply: End) -> Replies:
        """Nothing more is to be said of the request."""
        match reply:
            case RouteTo():
                self._state = _State.ROUTED
            case PassOn():
                self._state = _State.PASSED
            case Answer():
                self._state = _State.ANSWERED
                reply = structs.replace(reply, headers=(*self._headers, *self._explanation()))
        return (reply,)

    def _served(self, head: ResponseHeaders, now: float) -> Reply:
        if self.request is not None:
            self._router.served_by(self.request, head.upstream, now, head.status)
        return self._annotated((*self._headers, *self._explanation(head.upstream)))

    def _passed(self, head: ResponseHeaders, now: float) -> Reply:
        if self._course is None or self._course.shadow is None:
            return self._annotated(self._headers)
        return Annotate(self._explanation(head.upstream), self._course.seen(head, now))

    def _annotated(self, headers: Headers) -> Reply:
        return Annotate(headers) if headers else Continue(ResponseHeaders)
