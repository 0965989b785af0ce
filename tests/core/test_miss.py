"""What it costs that tokens of an answer come slower than its class calls good."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from extproc.core.decide import decide
from extproc.core.pricing.classes import DEFAULT_CLASSES, ClassPolicy
from extproc.core.pricing.miss import UNLIKELY, miss_chance
from extproc.core.pricing.slo import Slo
from extproc.core.snapshot import Policy
from extproc.core.values.decision import Candidate
from extproc.core.values.request import RequestClass
from tests.core.builders import instance, request, router

TOKENS = 200


def with_limit(tpot_s: float | None, miss: float = 0.5) -> Policy:
    """Interactive requests that want a token every so many seconds."""
    interactive = replace(DEFAULT_CLASSES[RequestClass.INTERACTIVE], slo=Slo(tpot_s=tpot_s), miss=miss)
    return Policy(classes=ClassPolicy(classes={**DEFAULT_CLASSES, RequestClass.INTERACTIVE: interactive}))


def asked_beside_20(policy: Policy) -> Candidate:
    """A prompt of 4,000 tokens to an instance where 20 answers run."""
    made = router(instance("a"), policy=policy)
    for number in range(20):
        made.choose(request(f"r{number}", prompt_tokens=10, expected_output_tokens=TOKENS), 0.0, 0.0)
    asked = request("asked", prompt_tokens=4000, expected_output_tokens=TOKENS)
    chosen = decide(asked, made.snapshot(), 5.0, 0.0).chosen
    assert chosen is not None
    return chosen


@pytest.mark.parametrize(("share", "chance"), [(0.26, 0.0), (0.5, 0.06), (1.0, 0.5), (2.0, 0.94), (10.0, 1.0)])
@pytest.mark.parametrize("limit_s", [0.02, 1.0])
def test_the_chance_to_miss_grows_from_none_to_certain_around_the_limit(
    share: float, chance: float, limit_s: float
) -> None:
    """By the ratio alone, whatever the limit is."""
    found = miss_chance(np.array([share * limit_s]), limit_s)
    assert found is not None
    assert found.item() == pytest.approx(chance, abs=0.006)


def test_what_is_surely_good_is_not_worked_out_and_nothing_jumps_there() -> None:
    """One that may miss has the others looked at, too, and they find none."""
    edge_s = UNLIKELY * 0.05
    assert miss_chance(np.array([edge_s, edge_s / 2]), 0.05) is None
    found = miss_chance(np.array([edge_s, edge_s * 1.01, edge_s / 2]), 0.05)
    assert found is not None
    assert found.tolist() == [pytest.approx(0.0, abs=1e-9), pytest.approx(0.0, abs=2e-4), 0.0]


def test_seconds_of_answers_that_will_come_too_slowly_count_more() -> None:
    """Those of its own answer, and those for which others stand still for its prompt."""
    without, missed = (asked_beside_20(with_limit(limit_s)) for limit_s in (None, 1e-5))
    assert without.cost.miss_s == 0.0
    assert missed.cost.miss_s == pytest.approx(0.5 * TOKENS * without.tpot_s)
    assert missed.cost.harm_s - without.cost.harm_s == pytest.approx(0.5 * 20 * without.cost.prefill_s)
    assert missed.cost.total_s - without.cost.total_s == pytest.approx(
        missed.cost.miss_s + missed.cost.harm_s - without.cost.harm_s
    )


def test_with_time_to_spare_seconds_are_seconds() -> None:
    """Neither the request nor others lose anything then; and nobody does who says so."""
    plain = asked_beside_20(with_limit(None)).cost
    assert asked_beside_20(with_limit(10.0)).cost == plain
    assert asked_beside_20(with_limit(1e-5, miss=0.0)).cost == plain


def test_what_a_miss_counts_grows_as_the_limit_comes_near() -> None:
    """Before it is reached."""
    tpot_s = asked_beside_20(with_limit(None)).tpot_s
    costs = [asked_beside_20(with_limit(times * tpot_s)).cost for times in (5.0, 3.0, 2.0, 1.0, 0.5)]
    for term in ("miss_s", "harm_s"):
        values = [getattr(cost, term) for cost in costs]
        assert values == sorted(values)
        assert len(set(values)) == len(values)
