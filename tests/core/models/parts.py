"""Short ways to ask for a plan in tests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from extproc.core.models.plan import Plan, Question, plan_for
from extproc.core.models.signals import Signals
from extproc.core.models.virtual import ModelPolicy
from extproc.core.pricing.classes import ClassPolicy
from extproc.core.values.request import Caller
from tests.core.builders import request


def planned(
    name: str,
    policy: ModelPolicy,
    *,
    caller: Caller | None = None,
    headers: Mapping[str, str] | None = None,
    signals: Signals | None = None,
    served: frozenset[str] = frozenset(),
    classes: ClassPolicy | None = None,
    **changes: Any,
) -> Plan:
    """The plan for a request that is like `builders.request` but for the changes."""
    question = Question(
        name=name,
        caller=caller or Caller(),
        headers=headers or {},
        request_for=lambda model: request(**(changes | {"model": model})),
        signals=lambda: signals or Signals(),
        served=served.__contains__,
    )
    return plan_for(question, policy, classes or ClassPolicy())


def models(plan: Plan) -> list[tuple[str, int]]:
    """Its options: each model and its rank."""
    return [(option.request.model, option.rank) for option in plan.options]
