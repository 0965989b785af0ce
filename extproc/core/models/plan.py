"""From the name that a client asks for to the options that may serve it, and what became of all other models.

A name that instances serve is never taken for anything else. Of an alias, or a virtual model, the operator's rules say
which models are candidates; hard filters drop some; the rest become options. Fallbacks follow them, each in a rank of
its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cache

import msgspec

from extproc.core.models.filters import Dropped, dropped
from extproc.core.models.rules import Traits
from extproc.core.models.signals import Signals
from extproc.core.models.virtual import Aim, ModelPolicy, Rule, VirtualModel, drawn, may_use, number_of
from extproc.core.models.worth import worths
from extproc.core.pricing.classes import ClassPolicy, weights_for
from extproc.core.values.decision import Decision, Reason, Rejection
from extproc.core.values.option import Option
from extproc.core.values.request import Caller, Request

CONTEXT = frozenset({Reason.CONTEXT_TOO_LONG, Reason.KV_TOO_SMALL})
"""Reasons that open `context_fallbacks`: the prompt is too long."""
_PASSING = list(Reason)[list(Reason).index(Reason.NOT_READY) :]
ABSENT = frozenset({Reason.MODEL_NOT_SERVED, Reason.ROLE_TAKES_HALF, *_PASSING}) - {Reason.PREFIX_ELSEWHERE}
"""Reasons that open `fallbacks`: nobody serves the model, or nobody can now. What a client demands opens none.

Nor does a prefix that is held elsewhere: there is room, only not the best.
"""
_ANY = frozenset(Reason)


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked about one request."""

    name: str  # of a model, as the client says it
    caller: Caller
    headers: Mapping[str, str]  # those that rules look at, by lower-case name
    request_for: Callable[[str], Request]  # the request as a model would get it
    signals: Callable[[], Signals]  # of its prompt's text
    served: Callable[[str], bool]  # whether any instance answers to a name


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What a name led to."""

    asked: str
    options: tuple[Option, ...]
    virtual: str = ""  # the virtual model that it is, or that an alias led to; "" if none
    rule: str = ""  # of its rules, the one that held
    drawn: bool = False  # one of a split was drawn, by the session
    dropped: tuple[Dropped, ...] = ()

    def refused(self) -> Decision:
        """The decision where no option is left: why each model was dropped, under its name in an instance's place."""
        rejected = (Rejection(each.model, each.reason, each.needs, each.has) for each in self.dropped)
        return Decision(None, (), tuple(rejected))


def plan_for(question: Question, policy: ModelPolicy, classes: ClassPolicy) -> Plan:
    """Options for a request, in the order of their ranks; none where all models were dropped."""
    name = question.name
    stands_in = name in policy.virtual or name in policy.aliases
    if stands_in and not question.served(name):
        name = policy.aliases.get(name, name)
        if name in policy.virtual and not question.served(name):
            memo = msgspec.structs.replace(question, request_for=cache(question.request_for))
            return _of_virtual(memo, policy.virtual[name], policy, classes)
    if name not in policy.touches:
        return Plan(asked=question.name, options=(Option(question.request_for(name)),))
    planner = _Planner(question, policy, classes, Aim())
    planner.add((name,), _ANY)
    planner.fall_back(name)
    return planner.plan()


def _of_virtual(question: Question, virtual: VirtualModel, policy: ModelPolicy, classes: ClassPolicy) -> Plan:
    first = question.request_for(virtual.candidates[0])
    if not may_use(virtual.tenants, first.tenant):
        none = Dropped(virtual.name, Reason.TENANT_NOT_ALLOWED, first.tenant or "a tenant", "others")
        return Plan(asked=question.name, options=(), virtual=virtual.name, dropped=(none,))
    rule = _rule(question, virtual, first)
    models, split, aim = virtual.models, virtual.split, virtual.aim
    if rule is not None:
        aim = rule.aim.over(aim)
        if rule.models or rule.split:
            models, split = rule.models, rule.split
    planner = _Planner(question, policy, classes, _demanded(aim, question.caller, policy), virtual.name)
    if split:
        for model in drawn(split, virtual.name, first.session or first.id):
            planner.add((model,), _ANY)
    else:
        planner.add(models, _ANY)
    planner.fall_back(virtual.name)
    return msgspec.structs.replace(
        planner.plan(), virtual=virtual.name, rule="" if rule is None else rule.name, drawn=bool(split)
    )


def _rule(question: Question, virtual: VirtualModel, first: Request) -> Rule | None:
    """The first of its rules that holds."""
    traits = Traits(request=first, headers=question.headers, signals=cache(question.signals))
    return next((rule for rule in virtual.rules if rule.when.hold(traits)), None)


def _demanded(aim: Aim, caller: Caller, policy: ModelPolicy) -> Aim:
    """The aim with the floor and the ceiling that the caller's headers set, where they are the stricter ones.

    A demand that cannot be read is one that no model is known to fulfil.
    """
    floor, ceiling = aim.min_quality, aim.max_cost
    if caller.min_quality:
        wanted = policy.quality_of(caller.min_quality)
        floor = float("inf") if wanted is None else max(wanted, floor or 0.0)
    if caller.max_cost:
        allowed = number_of(caller.max_cost)
        ceiling = -1.0 if allowed is None else allowed if ceiling is None else min(allowed, ceiling)
    return replace(aim, min_quality=floor, max_cost=ceiling)


class _Planner:
    """Collects options rank by rank, and what was dropped on the way."""

    def __init__(
        self, question: Question, policy: ModelPolicy, classes: ClassPolicy, aim: Aim, virtual: str = ""
    ) -> None:
        self._question, self._policy, self._classes = question, policy, classes
        self._aim, self._virtual = aim, virtual
        self._options: list[Option] = []
        self._dropped: list[Dropped] = []
        self._asked: set[str] = set()
        self._rank = 0

    def plan(self) -> Plan:
        return Plan(asked=self._question.name, options=tuple(self._options), dropped=tuple(self._dropped))

    def add(self, models: Iterable[str], opens_for: frozenset[Reason]) -> None:
        """Models that are weighed against each other, as the next rank. None is asked twice.

        Those without room for all the output that a client allows stand a rank behind those that have it.
        """
        names = [model for model in dict.fromkeys(models) if model not in self._asked]
        self._asked.update(names)
        passed = dict(self._passed(names))
        roomy = {name: request for name, request in passed.items() if self._has_room(request)}
        cramped = {name: request for name, request in passed.items() if name not in roomy}
        for requests in filter(None, (roomy, cramped)):
            self._options += self._weighed(requests, opens_for)
            self._rank += 1

    def fall_back(self, name: str) -> None:
        """Whom to ask where nobody can serve, as far as the operator lists them."""
        for chains, opens_for in ((self._policy.fallbacks, ABSENT), (self._policy.context_fallbacks, CONTEXT)):
            for model in chains.get(name, ()):
                if self._options or any(each.reason in opens_for for each in self._dropped):
                    self.add((model,), opens_for)

    def _passed(self, names: Iterable[str]) -> Iterator[tuple[str, Request]]:
        """Those that pass the filters, with the request as each would get it."""
        for name in names:
            request = self._question.request_for(name)
            found = dropped(request, self._policy.facts(name), self._aim)
            if found is None:
                yield name, request
            else:
                self._dropped.append(self._told(found))

    def _has_room(self, request: Request) -> bool:
        limit = self._policy.facts(request.model).context_tokens
        return limit is None or request.context_tokens <= limit

    def _told(self, found: Dropped) -> Dropped:
        """With the header's own words where they could not be read."""
        caller = self._question.caller
        if found.reason is Reason.QUALITY_TOO_LOW and found.needs == float("inf"):
            return replace(found, needs=caller.min_quality)
        if found.reason is Reason.COST_TOO_HIGH and found.has == -1.0:
            return replace(found, has=caller.max_cost)
        return found

    def _weighed(self, requests: Mapping[str, Request], opens_for: frozenset[Reason]) -> Iterator[Option]:
        first = next(iter(requests.values()))
        facts = {name: self._policy.facts(name) for name in requests}
        made = worths(requests, facts, self._aim, weights_for(first, self._classes))
        for name, request in requests.items():
            worth = made[name] if self._virtual else None
            yield Option(request, worth.total_s if worth else 0.0, self._rank, opens_for, worth)
