"""Names that stand for models, through the ext_proc conversation: choice, refusals, explanation."""

from __future__ import annotations

from typing import Any

import msgspec
import orjson
import pytest

from extproc.api.caller import Trust
from extproc.core.models.catalog import ModelFacts
from extproc.core.models.rules import Conditions
from extproc.core.models.virtual import Aim, ModelPolicy, Rule, VirtualModel
from extproc.core.reasons.explanation import Explanation, explain
from extproc.core.reasons.explanation_text import COLUMNS, LINE_BYTES, as_line, as_text
from extproc.core.router import Router
from extproc.core.snapshot import Policy
from extproc.core.tokens.tokens import ExactCount
from extproc.core.values.instance import Capability, Lifecycle
from extproc.stream.errands import CountTokens, Place, TakePlace
from extproc.stream.exchange import Exchange
from extproc.stream.messages import Answer, Continue, Reply, RequestBody, RequestHeaders, RouteTo
from extproc.stream.rules import Rules
from tests.core.builders import instance, router
from tests.stream.conversation import CHAT, chat, one

SMALL, BIG = "llama-3.1-8b", "llama-3.1-70b"
MODELS = ModelPolicy(
    models={
        SMALL: ModelFacts(quality=1.0, input_price=0.1, output_price=0.2),
        BIG: ModelFacts(quality=2.0, input_price=0.8, output_price=0.8),
        "secret": ModelFacts(quality=3.0, tenants=frozenset({"us"})),
    },
    tiers=("basic", "good"),
    virtual={
        "auto": VirtualModel(
            name="auto",
            models=(SMALL, BIG),
            aim=Aim(tier_s=0.1),
            rules=(
                Rule(name="code", when=Conditions(code=True), models=(BIG,)),
                Rule(name="hard", when=Conditions(headers={"x-task": ("hard",)}), aim=Aim(tier_s=50.0)),
            ),
        ),
        "inner": VirtualModel(name="inner", models=("secret",), tenants=frozenset({"us"})),
        "gone": VirtualModel(name="gone", models=("unserved", "unserved-too")),
    },
    aliases={"gpt-4o": BIG, "old": "unserved"},
    fallbacks={"unserved-too": (SMALL,)},
)
RULES = Rules(
    trust=Trust(tenant_header="x-tenant", quality_header="x-quality", max_cost_header="x-max-cost"),
    rule_headers=MODELS.headers,
    answer_models=True,
)


def fleet(**changes: Any) -> Router:
    return router(
        instance("small", models=(SMALL,)),
        instance("big", models=(BIG,), tensor_parallel=4, **changes),
        instance("secret", models=("secret",)),
        policy=Policy(models=MODELS),
    )


def asked(
    made: Router, body: dict[str, Any], rules: Rules = RULES, **headers: str
) -> tuple[Exchange, Reply | CountTokens | TakePlace]:
    """An exchange and what it says to a body, sent with these headers."""
    exchange = Exchange(made, "1", rules)
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    head = RequestHeaders("POST", CHAT, last=False, headers=named)
    assert exchange.receive(head, 0.0, 0.0) == (Continue(RequestHeaders),)
    return exchange, one(exchange.receive(RequestBody(orjson.dumps(body)), 0.0, 0.0))


def explained(exchange: Exchange) -> Explanation:
    known = exchange.material()
    assert known is not None
    return explain(known)


@pytest.mark.parametrize(
    ("body", "headers", "model"),
    [
        (chat(model="auto"), {}, SMALL),
        (chat(model="auto"), {"x_task": "hard"}, BIG),
        (chat(model="auto", messages=[{"role": "user", "content": "```\nx = 1\n```"}]), {}, BIG),
        (chat(model="auto"), {"x_quality": "good"}, BIG),
        (chat(model="auto", max_tokens=10), {"x_quality": "basic", "x_max_cost": "0.0000055"}, SMALL),
        (chat(model="gpt-4o"), {}, BIG),
        (chat(model=SMALL), {"x_quality": "good"}, SMALL),
        (chat(model="unserved-too"), {}, SMALL),
    ],
    ids=["plain", "header", "code", "floor", "ceiling", "alias", "concrete", "fallback"],
)
def test_a_name_goes_to_the_model_that_the_operator_means(
    body: dict[str, Any], headers: dict[str, str], model: str
) -> None:
    """What is learned of the request later is of that model, too."""
    exchange, reply = asked(fleet(), body, **headers)
    assert isinstance(reply, RouteTo)
    assert reply.features.model == model
    assert exchange.request is not None
    assert exchange.request.model == model
    assert exchange.asked == body["model"]
    sent = orjson.loads(b"".join(reply.body)) if reply.body is not None else body
    assert sent == body | {"model": model}
    assert (reply.body is None) == (model == body["model"])


@pytest.mark.parametrize(
    ("model", "headers", "status", "code"),
    [
        ("secret", {}, 404, "model_not_found"),
        ("inner", {"x_tenant": "them"}, 404, "model_not_found"),
        ("auto", {"x_quality": "9"}, 400, "quality_too_low"),
        ("auto", {"x_max_cost": "0"}, 400, "cost_too_high"),
        ("gone", {}, 503, "model_not_served"),
        ("old", {}, 503, "model_not_served"),
        ("unheard", {}, 404, "model_not_found"),
    ],
)
def test_a_refusal_names_what_was_asked_for(model: str, headers: dict[str, str], status: int, code: str) -> None:
    """And neither the models behind a name nor whom they are for."""
    _, reply = asked(fleet(), chat(model=model), **headers)
    assert isinstance(reply, Answer)
    error = orjson.loads(reply.body)["error"]
    assert (reply.status, error["code"]) == (status, code)
    assert f"'{model}'" in error["message"]
    assert "us" not in error["message"].replace("'", " ").split()
    assert (reply.retry_after_s is not None) == (status == 503)


def test_a_name_that_stands_for_models_is_never_sent_on_undecided() -> None:
    """No engine knows it; a concrete name goes on while no instance is known."""
    empty = router(policy=Policy(models=MODELS))
    assert isinstance(asked(empty, chat(model="auto"))[1], Answer)
    assert not isinstance(asked(empty, chat(model=SMALL))[1], Answer)


def test_the_explanation_tells_why_this_model_and_what_others_would_have_cost() -> None:
    """As values for JSON, as a text of the usual width, and in the header's line."""
    exchange, _ = asked(fleet(), chat(model="auto"), x_task="hard")
    told = explained(exchange)
    assert told.models is not None
    assert (told.models.chosen, told.models.rule, told.models.virtual) == (BIG, "hard", "auto")
    first, second = told.models.models
    assert (first.model, second.model, second.quality_s) == (BIG, SMALL, 50.0)
    assert first.total_s is not None
    assert second.total_s is not None
    assert first.total_s < second.total_s
    assert first.money is not None
    assert "by rule hard" in told.models.text
    assert max(map(len, as_text(told).splitlines())) <= COLUMNS
    assert told.models.text.split(";")[0] in as_text(told).replace("\n", " ")
    assert "model: auto is" in as_line(told)
    assert len(as_line(told)) <= LINE_BYTES
    assert msgspec.json.decode(msgspec.json.encode(told), type=Explanation) == told


def test_dropped_models_are_explained() -> None:
    """By their names, with the numbers that clash."""
    exchange, _ = asked(fleet(), chat(model="auto"), x_quality="good")
    told = explained(exchange).models
    assert told is not None
    ((out),) = told.dropped
    assert (out.model, out.text) == (SMALL, "has the quality 1, not 2")
    exchange, _ = asked(fleet(), chat(model="auto"), x_quality="9")
    told = explained(exchange).models
    assert told is not None
    assert told.chosen is None
    assert len(told.dropped) == 2
    exchange, _ = asked(fleet(), chat(model="secret"))
    assert explained(exchange).further == 0
    assert "higher cost" not in as_text(explained(exchange))


def test_a_plain_name_has_no_choice_to_explain() -> None:
    """Nothing is added to the explanations of those who name their model."""
    exchange, _ = asked(fleet(), chat(model=SMALL))
    assert explained(exchange).models is None


def test_a_choice_between_models_is_made_on_estimates_and_one_model_is_counted() -> None:
    """A count of one of several would hold it against the others by another ruler."""
    rules = Rules(counted_models=frozenset({SMALL, BIG}), rule_headers=MODELS.headers)
    made = router(
        *(instance(f"big-{tokens}", models=(BIG,), max_model_len_tokens=tokens) for tokens in (100, 250_000)),
        instance("small", models=(SMALL,)),
        policy=Policy(models=MODELS),
    )
    long = [{"role": "user", "content": "some words " * 30}]
    assert isinstance(asked(made, chat(model="auto", messages=long), rules)[1], RouteTo)
    exchange, reply = asked(made, chat(model="gpt-4o", messages=long, max_tokens=40), rules)
    assert isinstance(reply, CountTokens)
    assert reply.model == BIG
    assert isinstance(one(exchange.resume(ExactCount(90, 0), 0.0, 0.0)), RouteTo)
    assert exchange.request is not None
    assert exchange.request.prompt_tokens == 90


def test_in_strict_mode_the_next_model_is_tried_where_no_place_is_left() -> None:
    """A place is taken of the chosen model's instances; without one left the other model is chosen."""
    made = fleet()
    exchange, reply = asked(made, chat(model="auto"), Rules(strict=True))
    assert reply == TakePlace("1", (Place("small@1"),))
    reply = one(exchange.resume(None, 0.0, 0.0))
    assert reply == TakePlace("1", (Place("big@1"),))
    reply = one(exchange.resume(0, 0.0, 0.0))
    assert isinstance(reply, RouteTo)
    assert reply.features.model == BIG
    assert made.ledger.booked() == {"1": "big@1"}


def test_what_the_operator_says_of_a_model_holds_under_its_own_name() -> None:
    """A capability that it has not is refused whatever its instances tell."""
    policy = ModelPolicy(models={SMALL: ModelFacts(capabilities=frozenset())})
    made = router(instance("small", models=(SMALL,)), policy=Policy(models=policy))
    tools = [{"type": "function", "function": {"name": "f"}}]
    exchange, reply = asked(made, chat(model=SMALL, tools=tools))
    assert isinstance(reply, Answer)
    assert (reply.status, reply.reason) == (400, "capability_missing")
    assert exchange.decision is not None
    assert Capability.TOOLS in exchange.decision.rejected[0].needs  # type: ignore[operator]


def test_a_virtual_model_waits_for_none_of_its_models_that_load() -> None:
    """One that is Ready serves while the better one starts."""
    made = fleet(lifecycle=Lifecycle.LOADING)
    _, reply = asked(made, chat(model="auto"), x_task="hard")
    assert isinstance(reply, RouteTo)
    assert reply.features.model == SMALL


def test_a_model_that_is_short_of_room_for_the_answer_serves_where_no_other_can() -> None:
    """What the operator says of its context takes no more away than what its engine says."""
    facts = {SMALL: ModelFacts(context_tokens=4_000), BIG: ModelFacts(context_tokens=64_000)}
    virtual = {"auto": VirtualModel(name="auto", models=(SMALL, BIG))}
    for lifecycle, model in ((Lifecycle.READY, BIG), (Lifecycle.DRAINING, SMALL)):
        made = router(
            instance("small", models=(SMALL,)),
            instance("big", models=(BIG,), lifecycle=lifecycle),
            policy=Policy(models=ModelPolicy(models=facts, virtual=virtual)),
        )
        _, reply = asked(made, chat(model="auto", max_tokens=6_000))
        assert isinstance(reply, RouteTo)
        assert reply.features.model == model
