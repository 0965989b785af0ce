"""The course of one request from its whole body to the reply: each step in its order, errands in between.

    body -> prompt, read elsewhere if it is large -> the models that may serve it -> within its limits
    -> counted, if that could change the decision -> let in, perhaps held before -> a place taken, in strict mode
    -> RouteTo

A model that is loaded nowhere may be waited for; then it is decided anew. The course may end sooner: with an Answer
where the client or the fleet is at fault, with PassOn where Envoy guesses better.
"""

from __future__ import annotations

from functools import partial
from urllib.parse import quote

from msgspec import structs

from extproc.api import errors
from extproc.api.body import BodyError, Chunk
from extproc.api.reading import Unread, guessed, joined
from extproc.api.renaming import Renamed, renamed, renamed_at
from extproc.core.features import request_of
from extproc.core.models.plan import Plan
from extproc.core.prefixes.prefix_chain import prefix_salt
from extproc.core.rollout import Would
from extproc.core.router import Router
from extproc.core.values.decision import Decision
from extproc.core.values.model_site import ModelSite
from extproc.core.values.option import Choice, Option
from extproc.core.values.outcome import Features
from extproc.core.values.request import Prompt, Request
from extproc.stream.choice import plan_of
from extproc.stream.cold import outlook_of, warmed, worth_trying
from extproc.stream.counted import counted
from extproc.stream.destination import answer, route_to, undecided
from extproc.stream.errands import Moment, ReadBody, Steps
from extproc.stream.head import Head
from extproc.stream.held import Admitting
from extproc.stream.limited import limited
from extproc.stream.messages import (
    MODEL_HEADER,
    Answer,
    Headers,
    Message,
    PassOn,
    RequestBody,
    ResponseHeaders,
    RouteTo,
)
from extproc.stream.placed import placed
from extproc.stream.rules import Rules, in_rollout
from extproc.stream.shadow import REASON, Shadow, seen, shadowed
from extproc.stream.turned_away import turned_away

_HEADER_TEXT = "".join(map(chr, range(0x20, 0x7F))).replace("%", "")  # what a header's value may hold as it is

End = RouteTo | Answer | PassOn
"""The reply to the whole body."""


class Course:
    """What is known of it on its way: `plan`, `choice` and what follows from them are None before there are any."""

    def __init__(self, router: Router, request_id: str, rules: Rules, head: Head) -> None:
        self._router = router
        self._id = request_id
        self._rules = rules
        self._head = head
        self._admitting = Admitting(router, request_id)
        self.plan: Plan | None = None  # what the model's name leads to
        self.choice: Choice | None = None  # the latest
        self.decided_at_s = 0.0
        self.is_guess = False  # the body could not be read in time: what is asked for is guessed from its size
        self._site: ModelSite | None = None  # where the body names the model, if whoever read it has looked for that
        self.shadow: Shadow | None = None  # of a request that is not rolled out
        self.headers: Headers = ()  # of the answer, whoever gives it

    def steps(self, chunks: tuple[Chunk, ...], now: float, draw: float) -> Steps[End]:
        """From the body, as it came, to the reply. `now` in seconds, `draw` in [0, 1) for near-ties."""
        router, rules, moment = self._router, self._rules, Moment(now, draw)
        try:
            prompt = yield from self._read(chunks, moment)
        except BodyError as error:
            return self.refuse(errors.bad_body(error, self.dialect), moment.draw)
        if prompt is None:
            return self.pass_on("unread_body", moment.draw)
        plan = self._planned(prompt, moment.now, sum(map(len, chunks)))
        likeliest = self._likeliest(plan, prompt, moment.now)
        if rules.rollout_share < 1.0 and not in_rollout(rules, self._head.caller, self._id, prompt.session):
            return (yield from self._in_shadow(prompt, plan, likeliest, moment))
        within = yield from limited(rules.limits, likeliest, prompt.model, self.dialect, moment)
        self.headers = within.headers
        if within.refusal is not None:
            return answer(within.refusal)
        if not prompt.model:  # some APIs leave it out; the engine has a default, and we do not know it
            return self.pass_on("no_model", moment.draw)
        if not plan.options:
            return self._turned_away(plan, Choice(Option(likeliest), plan.refused()), moment)
        options = yield from counted(router, plan.options, prompt, rules.counted_models, moment)
        del prompt  # it may be held for long
        decide = partial(self._decided, worth_trying(router, options, moment.now), moment)
        choice = yield from warmed(router, (yield from decide()), decide, moment)
        if choice.decision.chosen is None:
            return self._turned_away(plan, choice, moment)
        return self._routed(choice, chunks, within.receipt)

    @property
    def request(self) -> Request | None:
        """What is asked for, as the chosen model gets it, or the likeliest one."""
        if self.choice is not None:
            return self.choice.option.request
        return self.plan.options[0].request if self.plan is not None and self.plan.options else None

    @property
    def decision(self) -> Decision | None:
        """Where it goes, or why nowhere."""
        return None if self.choice is None else self.choice.decision

    @property
    def held_s(self) -> float | None:
        """For how long the request was held, None if it was not."""
        return self._admitting.held_s

    @property
    def dialect(self) -> errors.Dialect:
        """Whose error shape the client understands."""
        return self._head.endpoint.dialect

    def read(self, body: bytes, now: float) -> Request:
        """The request that a body asks for, as the likeliest model would get it. Raises BodyError."""
        prompt = self._prompt(body)
        return self._likeliest(self._planned(prompt, now, len(body)), prompt, now)

    def pass_on(self, reason: str, draw: float, to: type[Message] = RequestBody) -> PassOn | Answer:
        """The reply that lets the request go on undecided."""
        return undecided(self._router, reason, to, draw, self._head.gateway, self.dialect)

    def refuse(self, refusal: errors.Refusal, draw: float, to: type[Message] = RequestBody) -> PassOn | Answer:
        """The reply to a request that is refused before anything is known of its body; in shadow it goes on."""
        if in_rollout(self._rules, self._head.caller, self._id):
            return answer(refusal)
        self.shadow = Shadow(Would.REFUSED, refusal.code)
        return self.pass_on(REASON, draw, to)

    def seen(self, head: ResponseHeaders, now: float) -> Features | None:
        """The answer to a request in shadow begins; returns what is believed of where it went."""
        assert self.shadow is not None
        return seen(self._router, self.shadow, head, now)

    def _in_shadow(self, prompt: Prompt, plan: Plan, likeliest: Request, moment: Moment) -> Steps[End]:
        self.shadow = yield from shadowed(self._router, self._rules, self._head, prompt, plan, likeliest, moment)
        self.choice, self.decided_at_s = self.shadow.choice, self.shadow.decided_at_s
        reply = self.pass_on(REASON, moment.draw)
        return structs.replace(reply, features=self.shadow.features) if isinstance(reply, PassOn) else reply

    def _prompt(self, body: bytes) -> Prompt:
        return self._trusted(self._head.endpoint.parse(body, self._head.content_type))

    def _read(self, chunks: tuple[Chunk, ...], moment: Moment) -> Steps[Prompt | None]:
        """The prompt of a body; one that could not be read in time is guessed. None if nothing can be said of it."""
        most_bytes = self._rules.read_apart_bytes
        if most_bytes is None or sum(map(len, chunks)) <= most_bytes:
            return self._prompt(joined(chunks))
        unread = Unread(self._head.path, self._head.content_type, chunks)
        found = yield from moment.ask(ReadBody(unread, self._salts, self._renames))
        if isinstance(found, BodyError):
            raise found
        self.is_guess = not isinstance(found, Prompt)
        prompt = found if isinstance(found, Prompt) else guessed(unread)
        if prompt is None:
            return None
        self._site = prompt.site
        return self._trusted(prompt)

    def _salts(self, prompt: Prompt) -> tuple[str, ...]:
        """The salts of all models that a prompt may come to be for."""
        policy = self._router.policy
        tenant = "" if policy.tenants_share_prefixes else self._head.caller.tenant
        names = policy.models.behind(prompt.model) if prompt.reuses_cache else ()
        return tuple([prefix_salt(name, tenant, prompt.cache_salt) for name in names])

    def _renames(self, prompt: Prompt) -> bool:
        """Whether a prompt may come to be for another model than it names."""
        return self._router.policy.models.behind(prompt.model) != (prompt.model,)

    def _trusted(self, prompt: Prompt) -> Prompt:
        """The prompt without what the operator does not let bodies say."""
        if prompt.priority is None or self._rules.trust.body_priority:
            return prompt
        return structs.replace(prompt, priority=None)

    def _planned(self, prompt: Prompt, now: float, body_bytes: int) -> Plan:
        """Models that may serve the prompt, each with the request as it would get it; perhaps none."""
        head = self._head
        self.plan = plan_of(self._router, prompt, head.caller, head.headers, self._id, now, body_bytes)
        return self.plan

    def _likeliest(self, plan: Plan, prompt: Prompt, now: float) -> Request:
        """The request as the first of the models would get it; under the name that the client says if there is none."""
        if plan.options:
            return plan.options[0].request
        share = self._router.policy.tenants_share_prefixes
        return request_of(prompt, self._head.caller, self._id, self._router.beliefs, now, share_prefixes=share)

    def _decided(self, options: tuple[Option, ...], moment: Moment) -> Steps[Choice]:
        """The choice among options, with a place taken that no other router has in strict mode."""
        admitted = partial(self._admitted, options, moment)
        if not self._rules.strict:
            return (yield from admitted())
        self.choice = yield from placed(self._router, self._id, admitted, moment)
        return self.choice

    def _admitted(
        self, options: tuple[Option, ...], moment: Moment, full: frozenset[str] = frozenset()
    ) -> Steps[Choice]:
        self.choice = yield from self._admitting.steps(options, moment, full)
        self.decided_at_s = moment.now
        return self.choice

    def _routed(self, choice: Choice, chunks: tuple[Chunk, ...], receipt: str) -> RouteTo:
        """The reply that sends it there, by the chosen model's name where the client's call says another."""
        assert self.plan is not None
        request, head = choice.option.request, self._head
        reply = route_to(self._router, request, choice.decision, self._rules, in_header=head.gateway is not None)
        if receipt:
            reply = structs.replace(reply, features=structs.replace(reply.features, charge=receipt))
        if request.model == self.plan.asked:
            return reply
        changed = self._renamed(chunks, self.plan.asked, request.model)
        self.headers = (*self.headers, (MODEL_HEADER, quote(request.model, safe=_HEADER_TEXT)))
        return structs.replace(reply, path=changed.path, body=changed.body)

    def _renamed(self, chunks: tuple[Chunk, ...], old: str, new: str) -> Renamed:
        """The client's call with another model, for which a body is searched only if whoever read it has not."""
        head = self._head
        if self._site is None:
            return renamed(head.endpoint, head.path, head.content_type, joined(chunks), old, new)
        return renamed_at(self._site, head.endpoint, head.path, head.content_type, chunks, new)

    def _turned_away(self, plan: Plan, choice: Choice, moment: Moment) -> Answer | PassOn:
        """The reply where nobody can serve it; the choice says why, also of a model that is loaded nowhere."""
        outlook = outlook_of(self._router, choice, moment.now)
        if outlook is not None:
            choice = structs.replace(choice, decision=outlook.told(choice.decision))
        if self.choice is None:
            self.decided_at_s = moment.now
        self.choice = choice
        return turned_away(self._router, self._rules, self._head, plan, choice, outlook, moment)
