"""Pools among which the cheapest cannot be told."""

from __future__ import annotations

import pytest

from extproc.core.scaling.rules import PoolRules, ScalingRules
from extproc.core.values.instance import Role
from extproc.scaling_service.missing_prices import missing_prices
from tests.core.builders import instance

DEAR = PoolRules(name="dear", models=("m", "n"), price_per_hour=4.0)
SILENT = PoolRules(name="silent", models=("n", "m"))


@pytest.mark.parametrize(
    ("pools", "missing"),
    [
        ((DEAR, SILENT), ("silent",)),
        ((SILENT, PoolRules(name="too", models=("m", "n"))), ("silent", "too")),
        ((SILENT,), ()),
        ((DEAR, PoolRules(name="other", models=("o",))), ()),
        ((DEAR, PoolRules(name="half", models=("m", "n"), role=Role.PREFILL)), ()),
        ((), ()),
    ],
)
def test_a_pool_beside_others_that_serve_the_same_needs_a_price(
    pools: tuple[PoolRules, ...], missing: tuple[str, ...]
) -> None:
    """One that stands alone needs none."""
    assert missing_prices(ScalingRules(pools=pools), {}) == missing


def test_a_price_that_an_agent_tells_does() -> None:
    """Of any of its instances."""
    rules = ScalingRules(pools=(DEAR, SILENT))
    assert missing_prices(rules, {"silent": (instance("a"),)}) == ("silent",)
    assert missing_prices(rules, {"silent": (instance("a"), instance("b", price_per_hour=1.0))}) == ()
