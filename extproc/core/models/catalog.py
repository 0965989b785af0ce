"""What the operator says of each concrete model: its limits, how good it is, what its tokens cost, who may use it.

What is not said is not checked here: context and capabilities of the instances that serve it are looked at anyway when
one of them is chosen (`core.eligibility`), and a quality or a price that nobody told is unknown, never 0.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median

from extproc.core.values.instance import Capability
from extproc.core.values.request import Request

_PER_PRICE = 1e6  # prices are of a million tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """One model; None: nothing is said of it."""

    context_tokens: int | None = None  # prompt and answer together
    capabilities: frozenset[Capability] | None = None
    quality: float | None = None  # in tiers: one more is worth `Aim.tier_s`
    input_price: float | None = None  # of a million prompt tokens, in the operator's currency
    output_price: float | None = None  # of a million answer tokens
    tenants: frozenset[str] = frozenset()  # who may use it; none named: all

    @property
    def priced(self) -> bool:
        """Whether it is known what its tokens cost."""
        return self.input_price is not None and self.output_price is not None

    @property
    def restricts(self) -> bool:
        """Whether it keeps any request away that asks for the model by its name."""
        return bool(self.tenants) or self.context_tokens is not None or self.capabilities is not None


UNTOLD = ModelFacts()
"""A model of which nothing is said."""


def tokens_money(request: Request, facts: ModelFacts) -> float | None:
    """What the tokens of a request cost, those expected of its answers included; None if prices are not known."""
    if facts.input_price is None or facts.output_price is None:
        return None
    paid = request.prompt_tokens * facts.input_price + request.expected_output_tokens * facts.output_price
    return paid / _PER_PRICE


def typical_money(known: Iterable[float | None]) -> float:
    """Stands in for a price that nobody told: the median of the others', 0 if there are none.

    A model whose price nobody told would be taken for free else, and draw all that weighs money.
    """
    told = [money for money in known if money is not None]
    return median(told) if told else 0.0
