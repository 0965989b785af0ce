"""One HTTP request as ext_proc sees it, without I/O: messages in, replies out, a reservation in between.

States and what may come in each:

    NEW       RequestHeaders            -> BODY if a body is to come that we route by, else PASSED or ANSWERED
    BODY      RequestBody               -> ROUTED, or ANSWERED, or PASSED; COUNTING if a count could change that
    COUNTING  `counted`                 -> as BODY
    PLACING   `placed`                  -> ROUTED, or ANSWERED; entered before ROUTED in strict mode
    ROUTED    ResponseHeaders, Trailers -> ROUTED, until `close`
    PASSED    anything                  -> PASSED; goes on unchanged
    ANSWERED  nothing

`close` may come in every state and gives the reservation back.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum, auto

from extproc.api import errors
from extproc.api.body import BodyError
from extproc.api.caller import Trust, caller_of, wants_explanation
from extproc.api.models_page import is_models_page, models_page
from extproc.api.paths import Endpoint, endpoint_for
from extproc.core.features import request_of, with_count, with_ids
from extproc.core.pairs.hand_over import hand_over_headers, names_who_answers
from extproc.core.reasons.explanation import Material, explain, material
from extproc.core.reasons.explanation_text import as_line
from extproc.core.reasons.retry_after import retry_after_s
from extproc.core.router import Router
from extproc.core.tokens.counting import Wish, wish_for
from extproc.core.tokens.tokens import ExactCount
from extproc.core.values.decision import Decision, Reason
from extproc.core.values.request import Caller, Prompt, Request
from extproc.stream.messages import (
    Annotate,
    Answer,
    Continue,
    CountTokens,
    Errand,
    Message,
    PassOn,
    Place,
    Reply,
    RequestBody,
    RequestHeaders,
    ResponseHeaders,
    RouteTo,
    TakePlace,
    Trailers,
)

_TRACE_HEADER = "x-request-id"  # Envoy makes one if the client did not
_LONGEST_TRACE_ID = 64  # a UUID has 36


class _State(Enum):
    NEW = auto()
    BODY = auto()
    COUNTING = auto()
    PLACING = auto()
    ROUTED = auto()
    PASSED = auto()
    ANSWERED = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What the operator chose of how requests are read."""

    trust: Trust = field(default_factory=Trust)
    refuse_unknown: bool = False  # while no instance is known, answer 503; else Envoy balances by itself
    answer_models: bool = False  # GET /v1/models is answered from the registry, not passed on
    strict: bool = False  # a place is taken over all routers before a request is routed
    counted_models: frozenset[str] = frozenset()  # whose tokens the shell can count exactly

    @property
    def headers(self) -> frozenset[str]:
        """Names of the request headers that an exchange looks at, beside method and path."""
        return self.trust.headers | {"content-type", _TRACE_HEADER}


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
        self._full: frozenset[str] = frozenset()  # instances without a place left over all routers
        self._asked: tuple[Prompt, Wish] | None = None  # what is being counted
        self._explains = False  # the caller is to be told why
        self._decided_at_s = 0.0
        self.trace_id = ""
        self.request: Request | None = None
        self.decision: Decision | None = None

    def receive(self, message: Message, now: float, draw: float) -> Reply | Errand:
        """Reply to one message. `now` in seconds, `draw` in [0, 1) for near-ties."""
        match self._state, message:
            case _State.NEW, RequestHeaders():
                return self._begin(message)
            case _State.BODY, RequestBody():
                return self._route(message.body, now, draw)
            case _State.ROUTED, ResponseHeaders():
                if self.request is not None:
                    self._router.served_by(self.request, message.upstream, now, message.status)
                return Annotate(self._explanation(message.upstream)) if self._explains else Continue(ResponseHeaders)
            case _, Trailers():
                return Continue(Trailers, message.of_request)
        return Continue(type(message))

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

    def _begin(self, head: RequestHeaders) -> Reply:
        if self._rules.answer_models and is_models_page(head.method, head.path):
            return self._answer(errors.Refusal(200, "models", models_page(self._router.fleet.members())))
        self._endpoint = endpoint_for(head.method, head.path)
        if self._endpoint is None:
            return self._pass_on(RequestHeaders, "unknown_path")
        if head.last:
            return self._answer(errors.no_body(self._endpoint.dialect))
        self._caller = caller_of(head.headers, self._rules.trust)
        self._explains = wants_explanation(head.headers, self._rules.trust)
        self.trace_id = head.headers.get(_TRACE_HEADER, "")[:_LONGEST_TRACE_ID]
        self._content_type = head.headers.get("content-type", "")
        self._state = _State.BODY
        return Continue(RequestHeaders)

    def read(self, body: bytes, now: float) -> Request:
        """The request that a body asks for; only where a body is expected. Raises BodyError."""
        return self._request(self._prompt(body), now, len(body))

    def _request(self, prompt: Prompt, now: float, body_bytes: int) -> Request:
        share, beliefs = self._router.policy.tenants_share_prefixes, self._router.beliefs
        return request_of(prompt, self._caller, self._id, beliefs, now, share_prefixes=share, body_bytes=body_bytes)

    def _prompt(self, body: bytes) -> Prompt:
        assert self._endpoint is not None  # the state BODY is entered with an endpoint
        return self._believed(self._endpoint.parse(body, self._content_type))

    def counted(self, exact: ExactCount | None, now: float, draw: float) -> Reply | TakePlace:
        """Reply to the body now that its tokens are counted, or could not be counted in time (None)."""
        assert self._state is _State.COUNTING
        assert self.request is not None  # COUNTING is entered with one
        assert self._asked is not None
        prompt, wish = self._asked
        if exact is not None:
            self.request = with_count(self.request, prompt, exact, wish.layouts)
        self._asked = None
        return self._choose(self.request, now, draw)

    def placed(self, place: int | None, now: float, draw: float) -> Reply | TakePlace:
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
        return self._go(self.request, self.decision)

    def _route(self, body: bytes, now: float, draw: float) -> Reply | Errand:
        try:
            prompt = self._prompt(body)
        except BodyError as error:
            return self._answer(errors.bad_body(error, self._dialect))
        request = self.request = self._request(prompt, now, len(body))
        if not request.model:  # some APIs leave it out; the engine has a default, and we do not know it
            return self._pass_on(RequestBody, "no_model")
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

    def _choose(self, request: Request, now: float, draw: float) -> Reply | TakePlace:
        decision = self.decision = self._router.choose(request, now, draw, self._full)
        self._decided_at_s = now
        if decision.chosen is None:
            return self._turn_away(request, decision, now, draw)
        if not self._rules.strict:
            return self._go(request, decision)
        self._state = _State.PLACING
        ranked = (candidate.instance for candidate in decision.candidates)
        return TakePlace(self._id, tuple(Place(each.key, self._router.limit(each)) for each in ranked))

    def _go(self, request: Request, decision: Decision) -> Reply:
        chosen = decision.chosen
        assert chosen is not None
        self._state = _State.ROUTED
        # In strict mode a retry must not go where no place was taken, nor any to whom its headers do not name.
        stack = self._router.policy.hand_over
        only = self._rules.strict or names_who_answers(stack)
        candidates = decision.candidates[:1] if only else decision.candidates
        endpoints = tuple(c.instance.address for c in candidates if c.instance.cluster == chosen.instance.cluster)
        features = self._router.features(request, chosen, decision.partner)
        prefills = None if decision.partner is None else decision.partner.instance
        headers = hand_over_headers(stack, chosen.instance, prefills)
        return RouteTo(chosen.instance.cluster, endpoints, features, headers)

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
        if decision.reason is Reason.NO_INSTANCE and not self._rules.refuse_unknown:
            return self._pass_on(RequestBody, decision.reason)
        wait_s = retry_after_s(request, decision, self._router.snapshot(), now, draw)
        return self._answer(errors.unroutable(request, decision, wait_s, self._dialect))

    def _pass_on(self, to: type[Message], reason: str) -> PassOn:
        self._state = _State.PASSED
        return PassOn(to, reason)

    def _answer(self, refusal: errors.Refusal) -> Answer:
        self._state = _State.ANSWERED
        explanation = self._explanation() if self._explains else ""
        return Answer(refusal.status, refusal.body, refusal.code, refusal.retry_after_s, explanation)
