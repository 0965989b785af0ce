"""Cold models: known to the fleet, and loaded nowhere. What becomes of a request for one, and how long it has to wait.

A model is *known* if the operator names it, if an instance tells that it could load it or sleeps with it, or if the
fleet has served it not long ago. Any other name is that of no model at all.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from math import ceil

import msgspec

from extproc.core.fleet.fleet import Member
from extproc.core.models.wishes import Wishes
from extproc.core.values.decision import Decision, Reason, Rejection
from extproc.core.values.instance import COMING, Instance, Lifecycle
from extproc.core.values.option import Option
from extproc.core.values.request import Request

START_SHARE = 0.9
"""Of the starts that were seen, so many are over by the time that is told: who comes back should find it there."""
LONGEST_S = 3600
_SPREAD, _MOST_SPREAD_S = 0.5, 10.0  # those who were refused together must not all come back together
_ABSENT = frozenset({Reason.MODEL_NOT_SERVED, Reason.ROLE_TAKES_HALF, Reason.NOT_READY, Reason.NO_INSTANCE})


class Way(StrEnum):
    """What becomes of a request for a cold model. All three tell the fleet that the model is wanted."""

    HOLD = "hold"  # it waits for the model, up to the longest hold
    REDIRECT = "redirect"  # to the model's fallbacks; refused where there are none, or none can serve
    REFUSE = "refuse"  # also where there are fallbacks


@dataclass(frozen=True, slots=True, kw_only=True)
class ColdRule:
    """What applies to one model."""

    way: Way = Way.REDIRECT
    start_s: float = 120.0  # what a start takes, until one was seen


@dataclass(frozen=True, slots=True, kw_only=True)
class ColdPolicy:
    """The operator's rules of cold models."""

    usual: ColdRule = field(default_factory=ColdRule)
    models: Mapping[str, ColdRule] = field(default_factory=dict)  # with rules of their own
    known: frozenset[str] = frozenset()  # that the operator names anywhere else
    remember_s: float = 86_400.0  # for so long after it was last served, a model is known
    hold_s: float = 25.0  # the longest; it must be less than Envoy lets a message wait
    most_held: int = 200  # requests that one router holds at once, over all cold models

    def rule(self, model: str) -> ColdRule:
        """What applies to a model."""
        return self.models.get(model, self.usual)

    def names(self, model: str) -> bool:
        """Whether the operator names a model."""
        return model in self.models or model in self.known


class Source(StrEnum):
    """Where a time until a model is served comes from."""

    STARTING = "starting"  # an instance that is starting tells it
    LEARNED = "learned"  # from starts of this model that were seen
    CONFIGURED = "configured"


@dataclass(frozen=True, slots=True)
class Outlook:
    """A model that nobody can serve now, and when somebody is expected to."""

    model: str
    loading: bool  # an instance is starting with it
    way: Way
    wait_s: float
    source: Source

    @property
    def reason(self) -> Reason:
        """The reason to tell."""
        return Reason.MODEL_LOADING if self.loading else Reason.MODEL_COLD

    def retry_after_s(self, jitter: float) -> int:
        """Whole seconds, 1 to 3600, after which to try again; `jitter` in [0, 1) adds up to half, 10 s at most."""
        spread_s = jitter * min(_SPREAD * max(1.0, self.wait_s), _MOST_SPREAD_S)
        return max(1, min(LONGEST_S, ceil(round(max(1.0, self.wait_s) + spread_s, 6))))

    def told(self, decision: Decision) -> Decision:
        """The decision with what is true of the model as a whole; it stands under the model's name."""
        wait = f"ready in {self.wait_s:.0f} s ({self.source})"
        return msgspec.structs.replace(
            decision, rejected=(*decision.rejected, Rejection(self.model, self.reason, self.model, wait))
        )


class ColdModels:
    """What one router knows of models that are not there. Without rules none is cold: it is served, or it is not."""

    def __init__(self, policy: ColdPolicy | None) -> None:
        self.policy = policy
        self.wishes = Wishes()
        self.starts_s: Mapping[str, tuple[float, ...]] = {}
        """Of models that this fleet has served: what it took from nothing to Ready, as often as that was seen."""

    def outlook(self, model: str, members: Iterable[Member], now: float) -> Outlook | None:
        """When a model is expected to be served; None if it is served now, or no such model is known."""
        policy = self.policy
        if policy is None:
            return None
        known, coming, left_s = policy.names(model) or model in self.starts_s, False, []
        for member in members:
            instance = member.instance
            if not _names(model, instance):
                continue
            if model in instance.models and instance.lifecycle in (Lifecycle.READY, Lifecycle.UNHEALTHY):
                return None  # it is loaded there: what keeps it from serving is no lack of a model
            known = True
            if instance.lifecycle in COMING and not instance.asleep:
                coming = True
                if instance.ready_in_s is not None:
                    left_s.append(max(0.0, instance.ready_in_s - (now - member.observed_at_s)))
        if not known:
            return None
        rule = policy.rule(model)
        if left_s:
            return Outlook(model, True, rule.way, min(left_s), Source.STARTING)
        learned_s = typical_s(self.starts_s.get(model, ()))
        if learned_s is not None:
            return Outlook(model, coming, rule.way, learned_s, Source.LEARNED)
        return Outlook(model, coming, rule.way, rule.start_s, Source.CONFIGURED)

    def is_absent(self, decision: Decision) -> bool:
        """Whether a request could not be served for want of its model, as far as the decision tells."""
        return self.policy is not None and decision.chosen is None and decision.reason in _ABSENT

    def outlook_of(self, request: Request, decision: Decision, members: Iterable[Member], now: float) -> Outlook | None:
        """`outlook` of a request's model if that is what the request lacks; None if it lacks anything else."""
        if not self.is_absent(decision) or request.placement.endpoints is not None:
            return None  # where a gateway says which endpoints there are, it is no matter of models
        return self.outlook(request.model, members, now)

    def hold_s(self, outlook: Outlook) -> float:
        """How long a request may wait for a model; 0 where it is not to, or would wait for nothing.

        A start that is expected to take longer than the longest hold is not waited for: who waits for it in vain is
        told later what could be told at once.
        """
        policy = self.policy
        if policy is None or outlook.way is not Way.HOLD or outlook.wait_s > policy.hold_s:
            return 0.0
        return policy.hold_s if self.wishes.waiting.total() < policy.most_held else 0.0

    def without_fallbacks(
        self, options: tuple[Option, ...], members: Sequence[Member], now: float
    ) -> tuple[Option, ...]:
        """Options that are left where all models of the first rank are cold, and to be waited for or refused."""
        policy = self.policy
        if policy is None or options[-1].rank == options[0].rank:
            return options
        first = tuple(option for option in options if option.rank == options[0].rank)
        if any(policy.rule(option.request.model).way is Way.REDIRECT for option in first):
            return options
        cold = all(self.outlook(option.request.model, members, now) is not None for option in first)
        return first if cold else options


def typical_s(durations_s: Sequence[float]) -> float | None:
    """The time by which `START_SHARE` of the starts that were seen were over; None if none was seen."""
    if not durations_s:
        return None
    ranked = sorted(durations_s)
    return ranked[min(len(ranked) - 1, ceil(START_SHARE * len(ranked)) - 1)]


def _names(model: str, instance: Instance) -> bool:
    return model in instance.models or model in instance.loadable
