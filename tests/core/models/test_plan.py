"""From a name to options: aliases, rules, filters, splits and fallbacks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from extproc.core.models.catalog import ModelFacts
from extproc.core.models.plan import ABSENT, CONTEXT
from extproc.core.models.rules import Conditions
from extproc.core.models.signals import Signals
from extproc.core.models.virtual import Aim, ModelPolicy, Rule, VirtualModel
from extproc.core.pricing.classes import ClassPolicy, ClassWeights
from extproc.core.values.decision import Reason
from extproc.core.values.instance import Capability
from extproc.core.values.request import Caller, RequestClass
from tests.core.models.parts import models, planned

_FACTS = {
    "small": ModelFacts(
        quality=1.0,
        input_price=0.1,
        output_price=0.2,
        context_tokens=8_000,
        capabilities=frozenset({Capability.TOOLS}),
    ),
    "big": ModelFacts(quality=3.0, input_price=1.0, output_price=2.0, context_tokens=100_000),
    "ours": ModelFacts(quality=2.0, input_price=0.5, output_price=0.5, tenants=frozenset({"us"})),
}
_POLICY = ModelPolicy(
    models=_FACTS,
    tiers=("basic", "good", "best"),
    virtual={
        "auto": VirtualModel(name="auto", models=("small", "big", "ours"), aim=Aim(tier_s=2.0)),
        "canary": VirtualModel(name="canary", split={"small": 3.0, "big": 1.0}),
        "private": VirtualModel(name="private", models=("small",), tenants=frozenset({"us"})),
    },
    aliases={"gpt": "auto", "mini": "small", "old": "gone"},
    fallbacks={"big": ("small",), "auto": ("spare",), "plain": ("spare", "big")},
    context_fallbacks={"small": ("big",)},
)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("unheard", [("unheard", 0)]),
        ("mini", [("small", 0), ("big", 1)]),
        ("old", [("gone", 0)]),
        ("big", [("big", 0), ("small", 1)]),
        ("plain", [("plain", 0), ("spare", 1), ("big", 2)]),
        ("small", [("small", 0), ("big", 1)]),
        ("auto", [("small", 0), ("big", 0), ("spare", 1)]),
        ("gpt", [("small", 0), ("big", 0), ("spare", 1)]),
    ],
)
def test_a_name_leads_to_options(name: str, expected: list[tuple[str, int]]) -> None:
    """A concrete model is itself, then its fallbacks; a virtual one its candidates, then the fallbacks of its name."""
    assert models(planned(name, _POLICY)) == expected


@pytest.mark.parametrize("name", ["auto", "gpt", "mini", "canary"])
def test_a_name_that_instances_serve_is_never_taken_for_another(name: str) -> None:
    """Whatever the operator calls by it: the concrete model wins while it is served."""
    plan = planned(name, _POLICY, served=frozenset({name}))
    assert [model for model, rank in models(plan) if not rank] == [name]
    assert plan.virtual == ""


def test_fallbacks_open_for_their_reasons_alone() -> None:
    """Absence opens the one kind, a prompt that is too long the other; what the client demands opens neither."""
    opens = {option.request.model: option.opens_for for option in planned("big", _POLICY).options}
    assert opens["small"] == ABSENT
    opens = {option.request.model: option.opens_for for option in planned("small", _POLICY).options}
    assert opens["big"] == CONTEXT
    for reason in (Reason.CAPABILITY_MISSING, Reason.ZONE_NOT_ALLOWED, Reason.TENANT_NOT_ALLOWED):
        assert reason not in ABSENT | CONTEXT
    for reason in (Reason.MODEL_NOT_SERVED, Reason.NOT_READY, Reason.AT_CONCURRENCY_LIMIT, Reason.NO_INSTANCE):
        assert reason in ABSENT - CONTEXT


@pytest.mark.parametrize(
    ("changes", "caller", "aim", "expected"),
    [
        ({"prompt_tokens": 20_000, "token_error": 0.0}, Caller(), Aim(), {"small": Reason.CONTEXT_TOO_LONG}),
        ({"needs": frozenset({Capability.VISION})}, Caller(), Aim(), {"small": Reason.CAPABILITY_MISSING}),
        ({}, Caller(min_quality="good"), Aim(), {"small": Reason.QUALITY_TOO_LOW}),
        ({}, Caller(min_quality="2.5"), Aim(), {"small": Reason.QUALITY_TOO_LOW}),
        ({}, Caller(), Aim(min_quality=2.0), {"small": Reason.QUALITY_TOO_LOW}),
        ({}, Caller(min_quality="basic"), Aim(min_quality=2.0), {"small": Reason.QUALITY_TOO_LOW}),
        ({}, Caller(max_cost="0.0005"), Aim(), {"big": Reason.COST_TOO_HIGH}),
        ({}, Caller(max_cost="9"), Aim(max_cost=0.0005), {"big": Reason.COST_TOO_HIGH}),
        ({}, Caller(min_quality="?"), Aim(), {"small": Reason.QUALITY_TOO_LOW, "big": Reason.QUALITY_TOO_LOW}),
        ({}, Caller(max_cost="-1"), Aim(), {"small": Reason.COST_TOO_HIGH, "big": Reason.COST_TOO_HIGH}),
    ],
)
def test_a_model_is_dropped_for_a_reason(
    changes: dict[str, Any], caller: Caller, aim: Aim, expected: dict[str, Reason]
) -> None:
    """Window, capability, floor and ceiling, of the config or of a header, whichever is stricter."""
    auto = VirtualModel(name="auto", models=("small", "big"), aim=aim)
    plan = planned("auto", replace(_POLICY, virtual={"auto": auto}, fallbacks={}), caller=caller, **changes)
    assert {each.model: each.reason for each in plan.dropped} == expected
    assert {name for name, _ in models(plan)} == {"small", "big"} - expected.keys()


def test_a_model_for_other_tenants_is_out_under_any_name() -> None:
    """By its own name as well as behind a virtual one; for its tenant it is not."""
    assert planned("ours", _POLICY, tenant="them").options == ()
    assert planned("ours", _POLICY, tenant="them").dropped[0].reason is Reason.TENANT_NOT_ALLOWED
    assert ("ours", 0) in models(planned("auto", _POLICY, tenant="us"))
    assert planned("private", _POLICY, tenant="them").refused().reason is Reason.TENANT_NOT_ALLOWED
    assert models(planned("private", _POLICY, tenant="us")) == [("small", 0)]


def test_a_floor_drops_what_is_of_unknown_quality_or_price() -> None:
    """A demand on what nobody told is not fulfilled."""
    policy = ModelPolicy(virtual={"auto": VirtualModel(name="auto", models=("untold",))})
    for caller in (Caller(min_quality="1"), Caller(max_cost="1")):
        plan = planned("auto", policy, caller=caller)
        assert plan.options == ()
        assert plan.dropped[0].has == "unknown" or plan.dropped[0].needs == "unknown"


def test_words_that_cannot_be_read_are_told() -> None:
    """The client's own words stand in the explanation."""
    assert planned("auto", _POLICY, caller=Caller(min_quality="superb")).dropped[0].needs == "superb"
    assert planned("auto", _POLICY, caller=Caller(max_cost="free")).dropped[0].has == "free"


def test_those_without_room_for_all_the_output_stand_behind_those_that_have_it() -> None:
    """A client's cap beyond one model's window leaves the others, as long as they can serve; so with no room at all."""
    plan = planned("auto", _POLICY, prompt_tokens=1_000, max_output_tokens=7_500)
    assert models(plan) == [("big", 0), ("small", 1), ("spare", 2)]
    assert plan.options[1].opens_for == frozenset(Reason)
    plan = planned("auto", _POLICY, prompt_tokens=1_000, max_output_tokens=200_000)
    assert models(plan) == [("small", 0), ("big", 0), ("spare", 1)]


def test_a_dropped_model_opens_its_fallback() -> None:
    """A window that the operator told is too small for the prompt: the model with the longer one is first then."""
    plan = planned("small", _POLICY, prompt_tokens=20_000, token_error=0.0)
    assert models(plan) == [("big", 0)]
    plan = planned("small", _POLICY, needs=frozenset({Capability.VISION}))
    assert models(plan) == []


_RULES = (
    Rule(name="code", when=Conditions(code=True), models=("big",)),
    Rule(name="label", when=Conditions(headers={"x-task": ("batch*", "bulk")}), models=("small",)),
    Rule(name="long", when=Conditions(min_input_tokens=5_000), aim=Aim(min_quality=3.0)),
    Rule(name="tools", when=Conditions(tools=True, apis=frozenset({"chat"})), split={"small": 1.0}),
    Rule(name="german", when=Conditions(languages=frozenset({"de"})), models=("big",)),
    Rule(name="prose", when=Conditions(code=False, max_input_tokens=10), models=("small",)),
    Rule(name="vip", when=Conditions(tenants=frozenset({"vip"})), aim=Aim(quality=3.0, tier_s=9.0)),
    Rule(name="images", when=Conditions(images=True), models=("big",)),
    Rule(name="batch", when=Conditions(classes=frozenset({RequestClass.BATCH})), models=("small",)),
)


@pytest.mark.parametrize(
    ("asked", "rule", "expected"),
    [
        ({"signals": Signals(code=True)}, "code", ["big"]),
        ({"headers": {"x-task": "Batch-7"}}, "label", ["small"]),
        ({"headers": {"x-task": "bulk "}}, "label", ["small"]),
        ({"headers": {"x-task": "bulky"}}, "", ["small", "big"]),
        ({"prompt_tokens": 5_000}, "long", ["big"]),
        ({"needs": frozenset({Capability.TOOLS})}, "tools", ["small"]),
        ({"needs": frozenset({Capability.TOOLS}), "api": "messages"}, "", ["small", "big"]),
        ({"signals": Signals("latin", "de", False)}, "german", ["big"]),
        ({"signals": Signals("latin", None, None)}, "", ["small", "big"]),
        ({"signals": Signals(code=None), "prompt_tokens": 5}, "", ["small", "big"]),
        ({"signals": Signals(code=False), "prompt_tokens": 5}, "prose", ["small"]),
        ({"tenant": "vip"}, "vip", ["small", "big"]),
        ({"needs": frozenset({Capability.VISION})}, "images", ["big"]),
        ({"request_class": RequestClass.BATCH}, "batch", ["small"]),
        ({"signals": Signals(code=True), "tenant": "vip"}, "code", ["big"]),
        ({}, "", ["small", "big"]),
    ],
)
def test_the_first_rule_that_holds_applies(asked: dict[str, Any], rule: str, expected: list[str]) -> None:
    """Each kind of condition; those on what could not be told do not hold, whichever way they ask."""
    auto = VirtualModel(name="auto", models=("small", "big"), rules=_RULES)
    plan = planned("auto", replace(_POLICY, virtual={"auto": auto}, fallbacks={}), **asked)
    assert (plan.rule, [name for name, _ in models(plan)]) == (rule, expected)


def test_the_worth_of_a_model_is_its_price_and_what_it_lacks() -> None:
    """Figures by hand: 1,000 tokens in, 100 out, an hour worth 3.6, so that a thousandth is a second."""
    weights = ClassWeights(value_per_hour=3.6, completion=0.5)
    classes = ClassPolicy(classes=dict.fromkeys(RequestClass, weights))
    plan = planned("auto", _POLICY, classes=classes)
    worth = {option.request.model: option.worth for option in plan.options if option.worth}
    assert worth["small"].money == pytest.approx(1000 * 0.1e-6 + 100 * 0.2e-6)
    assert worth["small"].price_s == pytest.approx(0.5 * 0.12)
    assert worth["small"].quality_s == pytest.approx(2.0 * 2)
    assert worth["big"].price_s == pytest.approx(0.5 * 1.2)
    assert worth["big"].quality_s == 0.0
    assert plan.options[0].extra_s == pytest.approx(4.06)


def test_an_unknown_price_is_taken_for_the_usual_one_and_no_value_of_time_for_none() -> None:
    """The model of which no price is told is not free; without value_per_hour nobody's money counts."""
    policy = ModelPolicy(models=_FACTS, virtual={"auto": VirtualModel(name="auto", models=("small", "big", "untold"))})
    classes = ClassPolicy(classes=dict.fromkeys(RequestClass, ClassWeights(value_per_hour=3.6)))
    extra = {option.request.model: option.extra_s for option in planned("auto", policy, classes=classes).options}
    assert extra["untold"] == pytest.approx((extra["small"] + extra["big"]) / 2)
    assert [option.extra_s for option in planned("auto", policy).options] == [0.0, 0.0, 0.0]


def test_the_quality_sought_may_be_less_than_the_best() -> None:
    """Beyond what is sought nothing is gained."""
    policy = replace(
        _POLICY, virtual={"auto": VirtualModel(name="auto", models=("small", "big"), aim=Aim(tier_s=2.0, quality=1.0))}
    )
    assert [option.extra_s for option in planned("auto", policy).options][:2] == [0.0, 0.0]
