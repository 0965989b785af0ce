"""What one router counts of its requests for the autoscaler: the request path only adds, whoever writes takes it all.

Counted are requests that more instances could serve: those that were routed, and those that were refused because there
was no room for them, or nobody to serve them. What no instance would have changed (a bad body, a limit of its tenant, a
prompt that is too long for the model) is no load.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from extproc.core.models.plan import ABSENT
from extproc.core.scaling.judged import judge
from extproc.core.scaling.sight import Counts
from extproc.core.values.decision import Reason
from extproc.core.values.request import RequestClass

if TYPE_CHECKING:
    from extproc.core.pricing.classes import ClassPolicy
    from extproc.core.values.outcome import Features, Outcome
    from extproc.core.values.request import Request

UNSERVED = ABSENT | {Reason.PREFIX_ELSEWHERE}
"""Reasons for a refusal that another instance would have removed."""

_MOST_MODELS = 1000
# A name that nobody has served may be anybody's invention. One that an autoscaler knows is among the first.
_MOST_UNKNOWN, _LONGEST_NAME = 100, 200


@dataclass(slots=True)
class _Row:
    requests: int = 0
    shed: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    computed_squares: int = 0  # of those that were routed
    shed_prompt_tokens: int = 0  # of `prompt_tokens`; how many of them are cached anywhere was not looked at
    shed_squares: int = 0  # of whole prompts
    answers: int = 0
    output_tokens: int = 0
    output_squares: int = 0
    judged: int = 0
    late: int = 0
    paced: int = 0
    slow: int = 0


class Tally:
    """That of one router. Outcomes may be those of requests that other routers have sent."""

    def __init__(self, classes: ClassPolicy) -> None:
        self.use(classes)
        self._rows: dict[str, _Row] = {}
        self._cached: dict[str, float] = {}  # share of the prompts, by model that was served here

    def use(self, classes: ClassPolicy) -> None:
        """Hold answers against these classes' SLOs from now on."""
        self._slos = {kind.value: each.slo for kind, each in classes.classes.items() if kind is not RequestClass.BATCH}

    def routed(self, features: Features) -> None:
        """A request was sent to an instance."""
        row = self._row(features.model)
        row.requests += 1
        row.prompt_tokens += features.prompt_tokens
        row.cached_tokens += features.cached_tokens
        row.computed_squares += (features.prompt_tokens - features.cached_tokens) ** 2

    def refused(self, request: Request, reason: Reason | None) -> None:
        """A request was not sent to any instance, for such a reason."""
        model = request.model
        if reason not in UNSERVED or (model not in self._rows and self._is_one_too_many(model)):
            return
        row = self._row(model)
        row.requests += 1
        row.shed += 1
        row.prompt_tokens += request.prompt_tokens
        row.shed_prompt_tokens += request.prompt_tokens
        row.shed_squares += request.prompt_tokens**2

    def ended(self, outcome: Outcome) -> None:
        """A request has ended that was routed, here or by another router."""
        features = outcome.features
        if features is None:
            return
        row = self._row(features.model)
        output_tokens = _output_tokens(outcome, features)
        if output_tokens is not None:
            row.answers += 1
            row.output_tokens += output_tokens
            row.output_squares += output_tokens**2
        slo = self._slos.get(features.request_class)
        if slo is not None:
            judgement = judge(outcome, features, slo)
            row.judged += judgement.late is not None
            row.late += judgement.late is True
            row.paced += judgement.slow is not None
            row.slow += judgement.slow is True

    def take(self) -> dict[str, Counts]:
        """All that came in since the last time, by model."""
        rows, self._rows = self._rows, {}
        return {model: self._counts(model, row) for model, row in rows.items()}

    def _row(self, model: str) -> _Row:
        row = self._rows.get(model)
        if row is None:
            row = self._rows[model] = _Row()
        return row

    def _is_one_too_many(self, model: str) -> bool:
        if model in self._cached:
            return False
        unknown = sum(name not in self._cached for name in self._rows)
        return unknown >= _MOST_UNKNOWN or len(model) > _LONGEST_NAME

    def _counts(self, model: str, row: _Row) -> Counts:
        served_tokens = row.prompt_tokens - row.shed_prompt_tokens
        if served_tokens and (model in self._cached or len(self._cached) < _MOST_MODELS):
            self._cached[model] = row.cached_tokens / served_tokens
        cached = self._cached.get(model, 0.0)
        return Counts(
            requests=row.requests,
            shed=row.shed,
            prompt_tokens=row.prompt_tokens,
            # Prompts of those that were refused are taken to be as well known as the others': they are of the same
            # kind, and means are taken over all of them.
            cached_tokens=round(row.cached_tokens + row.shed_prompt_tokens * cached),
            computed_squares=round(row.computed_squares + row.shed_squares * (1.0 - cached) ** 2),
            answers=row.answers,
            output_tokens=row.output_tokens,
            output_squares=row.output_squares,
            judged=row.judged,
            late=row.late,
            slow=row.slow,
            paced=row.paced,
        )


def _output_tokens(outcome: Outcome, features: Features) -> int | None:
    """Tokens of an answer. Where the engine does not tell, those that were expected: these follow its totals."""
    if outcome.completion_tokens is not None:
        return outcome.completion_tokens
    whole = 200 <= outcome.status < 300 and not outcome.flags
    return features.output_tokens if whole else None
