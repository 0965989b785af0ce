"""Hard filters on models, before any instance is looked at: by what the operator says of each, and what is demanded."""

from __future__ import annotations

import math
from dataclasses import dataclass

from extproc.core.models.catalog import ModelFacts, tokens_money
from extproc.core.models.virtual import Aim, may_use
from extproc.core.values.decision import Reason
from extproc.core.values.request import Request


@dataclass(frozen=True, slots=True)
class Dropped:
    """A model that cannot be chosen, and the two numbers (or names) that clash."""

    model: str
    reason: Reason
    needs: str | float | tuple[str, ...]
    has: str | float | tuple[str, ...]


def dropped(request: Request, facts: ModelFacts, aim: Aim) -> Dropped | None:
    """First filter that a model fails for a request as it would get it, None if it passes all.

    A demand on what is not known, a floor on the quality of a model of which none is told, is not fulfilled.
    """
    model = request.model
    if not may_use(facts.tenants, request.tenant):
        return Dropped(model, Reason.TENANT_NOT_ALLOWED, request.tenant or "a tenant", "others")
    if facts.capabilities is not None and (missing := request.needs - facts.capabilities):
        return Dropped(model, Reason.CAPABILITY_MISSING, tuple(sorted(missing)), tuple(sorted(facts.capabilities)))
    if facts.context_tokens is not None and request.sure_tokens > facts.context_tokens:
        return Dropped(model, Reason.CONTEXT_TOO_LONG, math.ceil(request.longest_tokens), facts.context_tokens)
    if aim.min_quality is not None and (facts.quality is None or facts.quality < aim.min_quality):
        has = "unknown" if facts.quality is None else facts.quality
        return Dropped(model, Reason.QUALITY_TOO_LOW, aim.min_quality, has)
    if aim.max_cost is not None:
        money = tokens_money(request, facts)
        if money is None or money > aim.max_cost:
            return Dropped(model, Reason.COST_TOO_HIGH, "unknown" if money is None else money, aim.max_cost)
    return None
