"""Classes and priorities: what a second is worth to whom."""

from __future__ import annotations

from dataclasses import replace
from math import isfinite
from typing import Any

import pytest

from extproc.core.decide import decide
from extproc.core.pricing.classes import DEFAULT_CLASSES, ClassPolicy, ClassWeights, limit_for, weights_for
from extproc.core.pricing.slo import Slo
from extproc.core.snapshot import Policy
from extproc.core.values.request import RequestClass
from tests.core.builders import instance, request, router

POLICY = ClassPolicy()


def weights(kind: RequestClass = RequestClass.INTERACTIVE, priority: int = 0) -> ClassWeights:
    return weights_for(request(request_class=kind, priority=priority), POLICY)


def prefers(kind: RequestClass, one: dict[str, float], other: dict[str, float], priority: int = 0) -> bool:
    """Whether the class takes an instance with the first terms over one with the second."""
    base = {"ttft_s": 1.0, "completion_s": 1.0}
    each = weights(kind, priority)
    return each.weigh(**(base | one)) < each.weigh(**(base | other))


def test_the_sum_is_each_term_times_what_its_second_is_worth() -> None:
    """By hand; money is worth what waiting for completion is."""
    each = ClassWeights(ttft=2.0, completion=3.0, pressure=5.0, harm=7.0)
    assert each.weigh(ttft_s=1, completion_s=1, pressure_s=1, harm_s=1, money_s=1) == 2 + 3 + 5 + 7 + 3
    assert ClassWeights().weigh(ttft_s=1.5, completion_s=2.5) == 4.0


def test_an_interactive_request_gives_completion_for_the_first_token() -> None:
    """If its operator says so; by itself each second counts alike, and what counts more is the tail."""
    early, quick = {"ttft_s": 1.0, "completion_s": 2.5}, {"ttft_s": 2.0, "completion_s": 1.0}
    assert ClassWeights(ttft=2.0).weigh(**early) < ClassWeights(ttft=2.0).weigh(**quick)
    assert not prefers(RequestClass.INTERACTIVE, early, quick)


def test_a_batch_yields_to_others_and_to_the_cheaper_machine() -> None:
    """A second and a half of its own waiting for one of others; an interactive request would not."""
    polite, selfish = {"completion_s": 2.5}, {"completion_s": 1.0, "harm_s": 1.0}
    assert prefers(RequestClass.BATCH, polite, selfish)
    assert prefers(RequestClass.INTERACTIVE, selfish, polite)


def test_a_long_prompt_is_weighed_as_any_other_and_only_promised_less() -> None:
    """Its room and prefill are seconds that the cost counts anyway: docs/classes.md."""
    plain, long = weights(RequestClass.INTERACTIVE), weights(RequestClass.LONG_CONTEXT)
    assert replace(long, slo=plain.slo) == plain
    assert (long.slo.ttft_s or 0.0) > (plain.slo.ttft_s or 0.0)


@pytest.mark.parametrize("kind", list(RequestClass))
def test_urgency_makes_harm_to_others_count_less_and_the_queue_longer(kind: RequestClass) -> None:
    """Relative to its own seconds, step by step, and no further than the span."""
    ratios = [weights(kind, priority).harm / weights(kind, priority).completion for priority in range(-5, 6)]
    assert ratios == sorted(ratios)
    assert ratios[0] == ratios[1]
    assert ratios[1] < ratios[2]
    assert ratios[-1] == ratios[-2]
    shares = [weights(kind, priority).queue_share for priority in range(-5, 6)]
    assert shares == sorted(shares, reverse=True)
    assert 0 < shares[-1] <= shares[0] <= 1
    assert weights(kind, 0) is POLICY.classes[kind]


def test_a_batch_is_refused_earlier_than_others_but_never_by_an_empty_instance() -> None:
    """Half of the operator's limits by default."""
    batch, chat = weights(RequestClass.BATCH), weights()
    assert (limit_for(batch, 10), limit_for(chat, 10)) == (5, 10)
    assert limit_for(batch, 1) == 1
    assert limit_for(batch, None) is None
    assert limit_for(weights(RequestClass.BATCH, priority=-1), 100) == 75


def test_money_counts_for_nothing_by_default() -> None:
    """No class has a value of time before the operator gives it one."""
    assert {each.value_per_hour for each in DEFAULT_CLASSES.values()} == {None}


@pytest.mark.parametrize(
    "changes",
    [
        {"ttft": -1.0},
        {"harm": float("inf")},
        {"completion": float("nan")},
        {"queue_share": 0.0},
        {"queue_share": 1.5},
        {"value_per_hour": 0.0},
        {"value_per_hour": 1e-300},
        {"value_per_hour": 9e-7},
        {"value_per_hour": float("inf")},
    ],
)
def test_weights_that_turn_a_cost_into_a_gain_are_refused(changes: dict[str, Any]) -> None:
    """The field is named."""
    table = dict(DEFAULT_CLASSES) | {RequestClass.BATCH: ClassWeights(**changes)}
    with pytest.raises(ValueError, match=f"{next(iter(changes))} of batch"):
        ClassPolicy(classes=table)


@pytest.mark.filterwarnings("error")
def test_whatever_an_hour_is_worth_and_costs_the_cost_is_finite() -> None:
    """The least that may be said, and the dearest instance that a registry may tell of."""
    table = dict(DEFAULT_CLASSES) | {RequestClass.INTERACTIVE: ClassWeights(value_per_hour=1e-6)}
    fleet = instance("a", price_per_hour=1e15), instance("b", price_per_hour=1.0)
    asked = request(prompt_tokens=30_000, expected_output_tokens=10**6)
    made = router(*fleet, policy=Policy(classes=ClassPolicy(classes=table)))
    decision = decide(asked, made.snapshot(), 0.0, 0.0)
    assert [each.instance.id for each in decision.candidates] == ["b", "a"]
    assert all(isfinite(each.cost.total_s) for each in decision.candidates)


@pytest.mark.parametrize("limit", ["ttft_s", "tpot_s"])
@pytest.mark.parametrize("value", [0.0, -1.0, float("inf"), float("nan")])
def test_a_limit_that_no_answer_could_keep_or_miss_is_refused(limit: str, value: float) -> None:
    """Decisions tell times as shares of it: they would divide by 0."""
    table = dict(DEFAULT_CLASSES) | {RequestClass.INTERACTIVE: ClassWeights(slo=Slo(**{limit: value}))}
    with pytest.raises(ValueError, match=f"slo.{limit} of interactive"):
        ClassPolicy(classes=table)


def test_a_table_without_one_of_the_classes_is_refused() -> None:
    """Each request has one of them."""
    with pytest.raises(ValueError, match="long_context"):
        ClassPolicy(classes={k: v for k, v in DEFAULT_CLASSES.items() if k is not RequestClass.LONG_CONTEXT})
    with pytest.raises(ValueError, match="priority_step"):
        ClassPolicy(priority_step=0.5)
