"""The course of one request from its whole body to the reply: each step in its order, errands in between.

    body -> prompt -> the models that may serve it -> within its limits -> counted, if that could change the decision
    -> let in, perhaps held before -> a place taken, in strict mode -> RouteTo

A model that is loaded nowhere may be waited for, and is then decided upon anew (`stream.cold`).

It may end sooner: with an Answer where the client or the fleet is at fault, with PassOn where Envoy guesses better.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from urllib.parse import quote

from extproc.api import errors
from extproc.api.body import BodyError
from extproc.api.paths import Endpoint
from extproc.api.renaming import renamed
from extproc.core.eligibility.counting import wish_for
from extproc.core.features import request_of, with_count, with_ids
from extproc.core.models.cold import Outlook
from extproc.core.models.plan import Plan
from extproc.core.reasons.retry_after import retry_after_s
from extproc.core.router import Router
from extproc.core.tokens.tokens import ExactCount
from extproc.core.values.decision import Decision, Reason
from extproc.core.values.option import Choice, Option
from extproc.core.values.request import Caller, Prompt, Request
from extproc.stream.choice import only_first, plan_of
from extproc.stream.cold import outlook_of, warmed, worth_trying
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
    headers: Mapping[str, str] = field(default_factory=dict)  # those that were asked for, by lower-case name
    content_type: str = ""
    gateway: Gateway | None = None  # None: a proxy that balances by itself what is not decided upon


class Course:
    """`request`, `decision` and the rest are the latest; None before there are any."""

    def __init__(self, router: Router, request_id: str, rules: Rules, head: Head) -> None:
        self._router = router
        self._id = request_id
        self._rules = rules
        self._head = head
        self._admitting = Admitting(router, request_id)
        self.request: Request | None = None
        self.decision: Decision | None = None
        self.plan: Plan | None = None  # what the model's name led to
        self.choice: Choice | None = None  # between its options
        self.decided_at_s = 0.0
        self.headers: Headers = ()  # of the answer, whoever gives it
        self._receipt = ""  # for what was charged to limits

    def steps(self, body: bytes, now: float, draw: float) -> Steps[End]:
        """From the body to the reply. `now` in seconds, `draw` in [0, 1) for near-ties."""
        try:
            prompt = self._prompt(body)
        except BodyError as error:
            return answer(errors.bad_body(error, self.dialect))
        options = self._options(prompt, now, len(body))
        asked = replace(self._likeliest(options, prompt, now), model=prompt.model)
        charged = yield from limited(self._rules.limits, asked, self.dialect, now, draw)
        now, draw, self.headers, self._receipt = charged.now, charged.draw, charged.headers, charged.receipt
        if charged.refusal is not None:
            return answer(charged.refusal)
        if not prompt.model:  # some APIs leave it out; the engine has a default, and we do not know it
            return self.pass_on("no_model", draw)
        if not options:
            return self._no_option(prompt, now, draw)
        if only_first(options) and self._may_count(prompt, options[0].request):
            counted, now, draw = yield from self._counted(options[0].request, prompt, now, draw)
            options = (replace(options[0], request=counted), *options[1:])
        options = worth_trying(self._router, options, now)
        named = prompt.model
        del prompt  # it may be held for long
        decide = self._placed if self._rules.strict else self._decided
        choice, now, draw = yield from decide(options, now, draw)
        choice, now, draw = yield from warmed(self._router, choice, partial(decide, options), now, draw)
        request, decision = choice.option.request, choice.decision
        if decision.chosen is None:
            return self._turned_away(request, decision, now, draw)
        reply = route_to(self._router, request, decision, self._rules, in_header=self._head.gateway is not None)
        if self._receipt:
            reply = replace(reply, features=replace(reply.features, charge=self._receipt))
        return self._renamed(reply, body, named, request.model)

    def _renamed(self, reply: RouteTo, body: bytes, old: str, new: str) -> RouteTo:
        """The reply that also names the model that was chosen, where the client's call names another."""
        if new == old:
            return reply
        head = self._head
        changed = renamed(head.endpoint, head.path, head.content_type, body, old, new)
        self.headers = (*self.headers, (MODEL_HEADER, quote(new, safe=_HEADER_TEXT)))
        return replace(reply, path=changed.path, body=changed.body)

    def read(self, body: bytes, now: float) -> Request:
        """The request that a body asks for, as the likeliest model would get it. Raises BodyError."""
        prompt = self._prompt(body)
        return self._likeliest(self._options(prompt, now, len(body)), prompt, now)

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

    def _likeliest(self, options: tuple[Option, ...], prompt: Prompt, now: float) -> Request:
        """The request as the first of the models would get it; under the name that the client says if there is none."""
        if options:
            return options[0].request
        share = self._router.policy.tenants_share_prefixes
        return request_of(prompt, self._head.caller, self._id, self._router.beliefs, now, share_prefixes=share)

    def _options(self, prompt: Prompt, now: float, body_bytes: int) -> tuple[Option, ...]:
        """Models that may serve the prompt, each with the request as it would get it; none if none may."""
        head = self._head
        self.plan = plan_of(self._router, prompt, head.caller, head.headers, self._id, now, body_bytes)
        if self.plan.options:
            self.request = self.plan.options[0].request
        return self.plan.options

    def _may_count(self, prompt: Prompt, request: Request) -> bool:
        """Whether token ids are at hand, or can be had."""
        if prompt.token_ids:
            return prompt.choices == 1 and not prompt.pieces
        return prompt.countable is not None and request.model in self._rules.counted_models

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
        return request, now, draw

    def _decided(
        self, options: tuple[Option, ...], now: float, draw: float, full: frozenset[str] = frozenset()
    ) -> Steps[tuple[Choice, float, float]]:
        """The choice. `full`: keys of instances without a place left over all routers."""
        choice, now, draw = yield from self._admitting.steps(options, now, draw, full)
        return self._chose(choice, now), now, draw

    def _placed(self, options: tuple[Option, ...], now: float, draw: float) -> Steps[tuple[Choice, float, float]]:
        """The choice, with a place taken that no other router has; what is left is decided upon anew."""
        full: frozenset[str] = frozenset()
        while True:
            choice, now, draw = yield from self._decided(options, now, draw, full)
            decision = choice.decision
            if decision.chosen is None:
                return choice, now, draw
            ranked = [candidate.instance for candidate in decision.candidates]
            places = tuple(Place(each.key, self._router.limit(each)) for each in ranked)
            resumed = yield TakePlace(self._id, places)
            now, draw, place = resumed.now, resumed.draw, resumed.result
            if isinstance(place, int):
                decision = decision.with_chosen(place)
                choice = self._chose(replace(choice, decision=decision), self.decided_at_s)
                assert decision.chosen is not None
                if place:
                    self._router.place(choice.option.request, decision.chosen, now, decision.partner)
                return choice, now, draw
            self._router.release(self._id, now)
            full |= {each.key for each in ranked}

    def _chose(self, choice: Choice, now: float) -> Choice:
        self.choice, self.request, self.decision, self.decided_at_s = (
            choice,
            choice.option.request,
            choice.decision,
            now,
        )
        return choice

    def _no_option(self, prompt: Prompt, now: float, draw: float) -> Answer | PassOn:
        """No model may serve it, whatever its instances do."""
        assert self.plan is not None
        request = self._likeliest((), prompt, now)
        self._chose(Choice(Option(request), self.plan.refused()), now)
        return self._turned_away(request, self.plan.refused(), now, draw)

    def _turned_away(self, request: Request, decision: Decision, now: float, draw: float) -> Answer | PassOn:
        """Refuse, unless no instance is known at all: then Envoy's own balancing may be the better guess.

        Not of a name that no engine knows: it would be sent on with that name.
        """
        gateway = self._head.gateway
        outlook = outlook_of(self._router, self.choice, now)
        if outlook is not None:
            return self._cold(outlook, draw)
        assert self.plan is not None
        stands_in = self.plan.asked != request.model or bool(self.plan.virtual)
        known = self._rules.refuse_unknown or gateway is not None or stands_in
        if decision.reason is Reason.NO_INSTANCE and not known:
            return self.pass_on(decision.reason, draw)
        ahead_s = self._router.held_ahead_s(self.plan.options or (Option(request),), now)
        wait_s = retry_after_s(request, decision, self._router.snapshot(), now, draw, ahead_s)
        if stands_in and decision.reason is Reason.MODEL_NOT_SERVED:
            return answer(errors.nothing_behind(self.plan.asked, wait_s, self.dialect))
        asked = replace(request, model=self.plan.asked)
        return answer(errors.unroutable(asked, decision, wait_s, self.dialect, gateway=gateway is not None))

    def _cold(self, outlook: Outlook, draw: float) -> Answer:
        """Refuse for want of a loaded model."""
        assert self.plan is not None
        assert self.choice is not None
        self._chose(replace(self.choice, decision=outlook.told(self.choice.decision)), self.decided_at_s)
        wait_s = outlook.retry_after_s(draw)
        return answer(errors.cold_model(self.plan.asked, outlook, wait_s, self.dialect))

    def pass_on(self, reason: str, draw: float) -> PassOn | Answer:
        """The reply that lets the request go on undecided."""
        return undecided(self._router, reason, RequestBody, draw, self._head.gateway, self.dialect)
