"""The course of a request that is not rolled out: decided upon as any other, but nothing comes of it.

Limits count it and do not refuse it. It is booked nowhere, takes no place in strict mode, is not held, wishes for no
model, and is not renamed. Once its answer begins, Envoy tells where it went: there it is booked, and what that costs
is held against what our choice would have cost.
"""

from __future__ import annotations

from dataclasses import dataclass

from msgspec import structs

from extproc.core.models.plan import Plan
from extproc.core.rollout import Went, Would, trimmed, went
from extproc.core.router import Router
from extproc.core.values.decision import Candidate, Decision
from extproc.core.values.instance import Instance
from extproc.core.values.option import Choice, Option
from extproc.core.values.outcome import Features
from extproc.core.values.request import Prompt, Request
from extproc.stream.cold import outlook_of, worth_trying
from extproc.stream.counted import counted
from extproc.stream.errands import Moment, Steps
from extproc.stream.head import Head
from extproc.stream.limited import limited
from extproc.stream.messages import Answer, ResponseHeaders
from extproc.stream.rules import Rules
from extproc.stream.turned_away import turned_away

REASON = "shadow"
"""Why such a request is passed on."""


@dataclass(slots=True)
class Shadow:
    """What would have become of a request, and what became of it once that is known."""

    would: Would
    reason: str = ""  # why it would not have been routed
    request: Request | None = None  # as it was decided upon
    choice: Choice | None = None
    weighed: Decision | None = None  # with all instances that could serve it
    decided_at_s: float = 0.0
    features: Features | None = None  # to be told to Envoy
    went: Went | None = None

    @property
    def text(self) -> str:
        """For people: "routed", "refused: over_limit"."""
        return f"{self.would}: {self.reason}" if self.reason else str(self.would)


def shadowed(
    router: Router, rules: Rules, head: Head, prompt: Prompt, plan: Plan, likeliest: Request, moment: Moment
) -> Steps[Shadow]:
    """Decide what would become of a request whose prompt is read."""
    within = yield from limited(rules.limits, likeliest, prompt.model, head.endpoint.dialect, moment)
    shadow = yield from _decided(router, rules, head, prompt, plan, likeliest, moment)
    shadow.decided_at_s = moment.now
    if within.refusal is not None:
        shadow.would, shadow.reason = Would.REFUSED, within.refusal.code
    chosen = None if shadow.choice is None else shadow.choice.decision.chosen
    if chosen is not None and shadow.would is Would.ROUTED:  # the tail is that of requests which are sent
        router.tail.add(chosen.cost.ttft_s)
    # As another model the engine will not compute it, so that nothing of its answer would be learned rightly.
    if chosen is not None and shadow.request is not None and shadow.request.model == plan.asked:
        shadow.features = _features(router, shadow.request, chosen, chosen, within.receipt)
    return shadow


def seen(router: Router, shadow: Shadow, head: ResponseHeaders, now: float) -> Features | None:
    """Its answer begins: book it where it went. Returns what is believed of it there, None if nothing is."""
    request, member = shadow.request, router.fleet.by_address(head.upstream)
    if request is None or member is None or shadow.went is not None:  # booked once, as it is released once
        return None
    instance: Instance = member.instance
    weighed = shadow.weighed or Decision(None)
    found = next((each for each in weighed.peers if each.instance.key == instance.key), None)
    router.book_seen(request, found or instance, shadow.decided_at_s, now, head.status)
    chosen = None if shadow.choice is None else shadow.choice.decision.chosen
    shadow.went = went(chosen, weighed, instance)
    if found is None or chosen is None or shadow.features is None:
        return None
    return _features(router, request, found, chosen, shadow.features.charge)


def _decided(
    router: Router, rules: Rules, head: Head, prompt: Prompt, plan: Plan, likeliest: Request, moment: Moment
) -> Steps[Shadow]:
    if not prompt.model:
        return Shadow(Would.PASSED_ON, "no_model")
    if not plan.options:
        return _turned_away(router, rules, head, plan, Choice(Option(likeliest), plan.refused()), moment)
    options = yield from counted(router, plan.options, prompt, rules.counted_models, moment)
    options = worth_trying(router, options, moment.now)
    weighed = router.weigh(options, moment.now, moment.draw, name_all=True)
    let_in = weighed if router.policy.admission is None else router.look(options, moment.now, moment.draw)
    if let_in is None:
        shadow = Shadow(Would.HELD)
    elif let_in.decision.chosen is None:
        shadow = _turned_away(router, rules, head, plan, let_in, moment)
    else:
        shadow = Shadow(Would.ROUTED, choice=let_in)
    chosen = weighed.decision.chosen
    if chosen is None:
        shadow.choice = shadow.choice or weighed
        shadow.request = shadow.choice.option.request
        return shadow
    if shadow.would is not Would.ROUTED or shadow.choice is None:
        shadow.choice = weighed
    taken, found = shadow.choice.option, shadow.choice.decision
    # Without bounds, a fallback is not looked at where the first model has any instance that fits.
    shadow.weighed = next((decision for option, decision in weighed.decided if option is taken), found)
    shadow.choice, shadow.request = trimmed(shadow.choice, router.policy.alternatives), taken.request
    return shadow


def _turned_away(router: Router, rules: Rules, head: Head, plan: Plan, choice: Choice, moment: Moment) -> Shadow:
    outlook = outlook_of(router, choice, moment.now)
    told = choice
    if outlook is not None:
        told = Choice(choice.option, outlook.told(choice.decision), choice.others)
        if router.cold.hold_s(outlook) > 0.0:
            return Shadow(Would.HELD, outlook.reason, choice.option.request, told)
    reply = turned_away(router, rules, head, plan, told, outlook, moment)
    would = Would.REFUSED if isinstance(reply, Answer) else Would.PASSED_ON
    return Shadow(would, reply.reason, choice.option.request, told)


def _features(router: Router, request: Request, there: Candidate, chosen: Candidate, receipt: str) -> Features:
    """What is believed of a request at one instance, with where it would have gone."""
    believed = router.features(request, there)
    return structs.replace(believed, charge=receipt, shadow_key=chosen.instance.key, shadow_ttft_s=chosen.cost.ttft_s)
