"""Who is told of which models: the list of models, and names that are for some tenants only."""

from __future__ import annotations

from dataclasses import replace

import orjson
import pytest

from extproc.api.models_page import models_page
from extproc.core.models.catalog import ModelFacts
from extproc.core.models.virtual import ModelPolicy, VirtualModel
from extproc.stream.exchange import Exchange
from extproc.stream.messages import Answer, RequestBody, RequestHeaders, RouteTo
from extproc.stream.rules import Destination
from tests.core.builders import instance, publish, router
from tests.stream.conversation import CHAT, chat, one
from tests.stream.test_models import BIG, RULES, SMALL, asked, fleet


@pytest.mark.parametrize(
    ("tenant", "names"),
    [("", {SMALL, BIG, "auto", "gpt-4o"}), ("us", {SMALL, BIG, "secret", "inner", "auto", "gpt-4o"})],
)
def test_the_list_of_models_has_the_names_that_a_caller_may_use(tenant: str, names: set[str]) -> None:
    """Not those behind which nothing is served, nor what is for others."""
    exchange = Exchange(fleet(max_model_len_tokens=64_000), "1", RULES)
    reply = one(exchange.receive(RequestHeaders("GET", "/v1/models", True, {"x-tenant": tenant}), 0.0, 0.0))
    assert isinstance(reply, Answer)
    entries = {entry["id"]: entry["max_model_len"] for entry in orjson.loads(reply.body)["data"]}
    assert entries.keys() == names
    assert entries["auto"] == 64_000


def test_the_list_of_models_has_the_context_that_the_operator_leaves_them() -> None:
    """Also of one whose engine does not tell its own; clients cut their prompts by it."""
    said = {model: ModelFacts(context_tokens=tokens) for model, tokens in (("a", 8_000), ("b", 90_000), ("c", 7))}
    policy = ModelPolicy(models=said, virtual={"auto": VirtualModel(name="auto", models=("a", "b"))})
    made = router(
        *(instance(name, models=(name,), max_model_len_tokens=32_768) for name in "ab"),
        instance("c", models=("c",), max_model_len_tokens=None),
    )
    entries = orjson.loads(models_page(made.fleet.members(), policy))["data"]
    told = {entry["id"]: entry["max_model_len"] for entry in entries}
    assert told == {"a": 8_000, "b": 32_768, "c": 7, "auto": 32_768}


@pytest.mark.parametrize("model", ["secret", "inner"])
def test_a_gateways_client_is_not_told_either_whom_a_model_is_for(model: str) -> None:
    """What it hears is what it hears of a model that nobody serves."""
    told = []
    for name in (model, "unheard"):
        exchange = Exchange(fleet(), "1", replace(RULES, destination=Destination.GATEWAY))
        exchange.receive(RequestHeaders("POST", CHAT, False, {}, subset=frozenset({"10.0.0.1:1"})), 0.0, 0.0)
        reply = one(exchange.receive(RequestBody(orjson.dumps(chat(model=name))), 0.0, 0.0))
        assert isinstance(reply, Answer)
        told.append((reply.status, reply.body, reply.reason, reply.retry_after_s))
    assert told[0] == told[1]


def test_a_name_for_some_tenants_stays_that_where_an_adapter_has_it() -> None:
    """Who publishes an instance does not open a name to all."""
    made = fleet()
    publish(made, instance("adapter", models=(SMALL, "inner"), loras=("inner",)), 0.0)
    _, reply = asked(made, chat(model="inner"), x_tenant="them")
    assert isinstance(reply, Answer)
    assert reply.status == 404
    _, reply = asked(made, chat(model="inner"), x_tenant="us")
    assert isinstance(reply, RouteTo)
    assert reply.features.model == "inner"
