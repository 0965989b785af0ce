"""The model first, then the instance: what gateways do that know prices and qualities, but no queues and no caches.

The instance is found by our own router, so that whatever differs from ours is the choice of the model alone.
"""

from __future__ import annotations

from msgspec import structs

from extproc.core.models.plan import Plan
from extproc.core.values.option import Option
from extproc.sim.policies.ours import Ours
from extproc.sim.policies.policy import Ask


class ModelFirst(Ours):
    """The cheapest model that is as good as is asked for, as rules of most gateways have it."""

    def _plan(self, ask: Ask) -> Plan:
        plan = super()._plan(ask)
        return structs.replace(plan, options=(self._first(plan, ask),)) if len(plan.options) > 1 else plan

    def _first(self, plan: Plan, ask: Ask) -> Option:
        needed = ask.arrival.quality or 0.0
        good = [each for each in plan.options if self._quality(each) >= needed]
        return min(good or plan.options, key=_money)

    def _quality(self, option: Option) -> float:
        return self.router.policy.models.facts(option.request.model).quality or 0.0


class AlwaysBest(ModelFirst):
    """The best model, whatever is asked for."""

    def _first(self, plan: Plan, ask: Ask) -> Option:
        return max(plan.options, key=self._quality)


class AlwaysCheapest(ModelFirst):
    """The cheapest model, whatever is asked for."""

    def _first(self, plan: Plan, ask: Ask) -> Option:
        return min(plan.options, key=_money)


def _money(option: Option) -> float:
    return 0.0 if option.worth is None or option.worth.money is None else option.worth.money
