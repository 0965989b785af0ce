"""What choosing a model costs beside the seconds on its instance: the price of its tokens, and quality that it lacks.

    extra = completion weight * money_s(price of the tokens) + tier_s * max(0, sought - quality)

All in seconds of a standard request, so that they add to the cost of an instance. Money becomes seconds through
`value_per_hour` of the request's class, and counts nothing without one (`core.pricing.money`); a second of waiting that
money is worth counts as much as a second of `completion`, as it does for the instance's own price.
"""

from __future__ import annotations

from collections.abc import Mapping

from extproc.core.models.catalog import ModelFacts, tokens_money, typical_money
from extproc.core.models.virtual import Aim
from extproc.core.pricing.classes import ClassWeights
from extproc.core.pricing.money import money_s
from extproc.core.values.option import Worth
from extproc.core.values.request import Request


def worths(
    requests: Mapping[str, Request],
    facts: Mapping[str, ModelFacts],
    aim: Aim,
    weights: ClassWeights,
) -> dict[str, Worth]:
    """What each model costs, by its name. `requests`: as each of them would get it."""
    monies = {model: tokens_money(request, facts[model]) for model, request in requests.items()}
    usual = typical_money(monies.values())
    known = [each.quality for each in (facts[model] for model in requests) if each.quality is not None]
    sought = max(known, default=0.0) if aim.quality is None else aim.quality
    made = {}
    for model, money in monies.items():
        quality = facts[model].quality
        lack = 0.0 if quality is None else max(0.0, sought - quality)
        made[model] = Worth(
            price_s=_price_s(usual if money is None else money, weights),
            quality_s=(aim.tier_s or 0.0) * lack,
            money=money,
        )
    return made


def _price_s(money: float, weights: ClassWeights) -> float:
    if weights.value_per_hour is None:
        return 0.0
    return weights.completion * money_s(money, weights.value_per_hour)
