"""The course of one request from its whole body to the reply: each step in its order, errands in between.

    body -> prompt -> request -> within its limits -> counted, if that could change the decision -> let in, perhaps held
    before -> a place taken, in strict mode -> RouteTo

It may end sooner: with an Answer where the client or the fleet is at fault, with PassOn where Envoy guesses better.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from urllib.parse import quote

from extproc.api import errors
from extproc.api.body import BodyError
from extproc.api.paths import Endpoint
from extproc.api.renaming import renamed
from extproc.core.eligibility.counting import wish_for
from extproc.core.features import request_of, with_count, with_ids
from extproc.core.reasons.retry_after import retry_after_s
from extproc.core.router import Router
from extproc.core.tokens.tokens import ExactCount
from extproc.core.values.decision import Decision, Reason
from extproc.core.values.option import Option
from extproc.core.values.request import Caller, Prompt, Request
from extproc.stream.destination import Gateway, answer, route_to, undecided
from extproc.stream.errands import CountTokens, Place, Steps, TakePlace
from extproc.stream.held import Admitting
from extproc.stream.limited import limited
from extproc.stream.messages import MODEL_HEADER, Answer, Headers, PassOn, RequestBody, RouteTo
from extproc.stream.rules import Rules

_HEADER_TEXT = "".join(map(chr, range(0x20, 0x7F))).replace("%", "")  # what a header's value may hold as it is

End = RouteTo | Answer | PassOn
"""The reply to the whole body."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """What a request's headers have told before its body came."""

    endpoint: Endpoint
    caller: Caller
    path: str = ""
    content_type: str = ""
    gateway: Gateway | None = None  # None: a proxy that balances by itself what is not decided upon


class Course:
    """`request` and `decision` are the latest; None before there are any."""

    def __init__(self, router: Router, request_id: str, rules: Rules, head: Head) -> None:
        self._router = router
        self._id = request_id
        self._rules = rules
        self._head = head
        self._admitting = Admitting(router, request_id)
        self.request: Request | None = None
        self.decision: Decision | None = None
        self.decided_at_s = 0.0
        self.headers: Headers = ()  # of the answer, whoever gives it
        self._receipt = ""  # for what was charged to limits

    def steps(self, body: bytes, now: float, draw: float) -> Steps[End]:
        """From the body to the reply. `now` in seconds, `draw` in [0, 1) for near-ties."""
        try:
            prompt = self._prompt(body)
        except BodyError as error:
            return answer(errors.bad_body(error, self.dialect))
        request = self._request(prompt, now, len(body))
        charged = yield from limited(self._rules.limits, request, self.dialect, now, draw)
        now, draw, self.headers, self._receipt = charged.now, charged.draw, charged.headers, charged.receipt
        if charged.refusal is not None:
            return answer(charged.refusal)
        if not request.model:  # some APIs leave it out; the engine has a default, and we do not know it
            return self.pass_on("no_model", draw)
        if self._may_count(prompt):
            request, now, draw = yield from self._counted(request, prompt, now, draw)
        asked = prompt.model
        del prompt  # it may be held for long
        decide = self._placed if self._rules.strict else self._decided
        decision, now, draw = yield from decide(request, now, draw)
        if decision.chosen is None:
            return self._turned_away(request, decision, now, draw)
        assert self.request is not None  # as it was decided upon
        gateway = self._head.gateway is not None
        reply = route_to(self._router, self.request, decision, self._rules, in_header=gateway)
        if self._receipt:
            reply = replace(reply, features=replace(reply.features, charge=self._receipt))
        return self._renamed(reply, body, asked, self.request.model)

    def _renamed(self, reply: RouteTo, body: bytes, old: str, new: str) -> RouteTo:
        """The reply that also names the model that was chosen, where the client's call names another."""
        if new == old:
            return reply
        head = self._head
        changed = renamed(head.endpoint, head.path, head.content_type, body, old, new)
        self.headers = (*self.headers, (MODEL_HEADER, quote(new, safe=_HEADER_TEXT)))
        return replace(reply, path=changed.path, body=changed.body)

    def read(self, body: bytes, now: float) -> Request:
        """The request that a body asks for. Raises BodyError."""
        return self._request(self._prompt(body), now, len(body))

    @property
    def held_s(self) -> float | None:
        """For how long the request was held, None if it was not."""
        return self._admitting.held_s

    @property
    def dialect(self) -> errors.Dialect:
        """Whose error shape the client understands."""
        return self._head.endpoint.dialect

    def _prompt(self, body: bytes) -> Prompt:
        """The body's prompt, without what the operator does not let bodies say."""
        prompt = self._head.endpoint.parse(body, self._head.content_type)
        if prompt.priority is None or self._rules.trust.body_priority:
            return prompt
        return replace(prompt, priority=None)

    def _request(self, prompt: Prompt, now: float, body_bytes: int) -> Request:
        share, beliefs = self._router.policy.tenants_share_prefixes, self._router.beliefs
        caller = self._head.caller
        self.request = request_of(prompt, caller, self._id, beliefs, now, share_prefixes=share, body_bytes=body_bytes)
        return self.request

    def _may_count(self, prompt: Prompt) -> bool:
        """Whether token ids are at hand, or can be had."""
        if prompt.token_ids:
            return prompt.choices == 1 and not prompt.pieces
        return prompt.countable is not None and prompt.model in self._rules.counted_models

    def _counted(
        self, request: Request, prompt: Prompt, now: float, draw: float
    ) -> Steps[tuple[Request, float, float]]:
        """The request with its tokens counted, where that could change the decision and is possible in time."""
        wish = wish_for(request, self._router.snapshot(), draw)
        if wish is None:
            return request, now, draw
        if prompt.token_ids:
            request = with_ids(request, prompt, wish.layouts)
        elif prompt.countable is not None and (what := prompt.countable()) is not None:
            resumed = yield CountTokens(request.model, what, want_ids=bool(wish.layouts))
            now, draw = resumed.now, resumed.draw
            if isinstance(resumed.result, ExactCount):
                request = with_count(request, prompt, resumed.result, wish.layouts)
        self.request = request
        return request, now, draw

    def _decided(
        self, request: Request, now: float, draw: float, full: frozenset[str] = frozenset()
    ) -> Steps[tuple[Decision, float, float]]:
        """The decision. `full`: keys of instances without a place left over all routers."""
        choice, now, draw = yield from self._admitting.steps((Option(request),), now, draw, full)
        self.request, self.decision, self.decided_at_s = choice.option.request, choice.decision, now
        return choice.decision, now, draw

    def _placed(self, request: Request, now: float, draw: float) -> Steps[tuple[Decision, float, float]]:
        """The decision, with a place taken that no other router has; what is left is decided upon anew."""
        full: frozenset[str] = frozenset()
        while True:
            decision, now, draw = yield from self._decided(request, now, draw, full)
            if decision.chosen is None:
                return decision, now, draw
            ranked = [candidate.instance for candidate in decision.candidates]
            places = tuple(Place(each.key, self._router.limit(each)) for each in ranked)
            resumed = yield TakePlace(self._id, places)
            now, draw, place = resumed.now, resumed.draw, resumed.result
            if isinstance(place, int):
                decision = self.decision = decision.with_chosen(place)
                assert decision.chosen is not None
                if place:
                    assert self.request is not None
                    self._router.place(self.request, decision.chosen, now, decision.partner)
                return decision, now, draw
            self._router.release(self._id, now)
            full |= {each.key for each in ranked}

    def _turned_away(self, request: Request, decision: Decision, now: float, draw: float) -> Answer | PassOn:
        """Refuse, unless no instance is known at all: then Envoy's own balancing may be the better guess."""
        gateway = self._head.gateway
        if decision.reason is Reason.NO_INSTANCE and not self._rules.refuse_unknown and gateway is None:
            return self.pass_on(decision.reason, draw)
        ahead_s = self._router.held_ahead_s((Option(request),), now)
        wait_s = retry_after_s(request, decision, self._router.snapshot(), now, draw, ahead_s)
        return answer(errors.unroutable(request, decision, wait_s, self.dialect, gateway=gateway is not None))

    def pass_on(self, reason: str, draw: float) -> PassOn | Answer:
        """The reply that lets the request go on undecided."""
        return undecided(self._router, reason, RequestBody, draw, self._head.gateway, self.dialect)
