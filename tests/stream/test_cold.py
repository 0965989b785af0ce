"""Requests for models that are loaded nowhere, through the ext_proc conversation."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import orjson
import pytest

from extproc.core.admission.admission import Admission
from extproc.core.fleet.fleet import Removed
from extproc.core.models.cold import ColdPolicy, ColdRule, Way
from extproc.core.models.virtual import ModelPolicy, VirtualModel
from extproc.core.reasons.explanation import explain
from extproc.core.reasons.explanation_text import as_text
from extproc.core.router import Router
from extproc.core.snapshot import Policy
from extproc.core.values.decision import Reason
from extproc.core.values.instance import Instance, Lifecycle
from extproc.stream.errands import AwaitModel, Errand, Place, TakePlace
from extproc.stream.exchange import Exchange
from extproc.stream.messages import Answer, Continue, PassOn, Reply, RequestBody, RequestHeaders, RouteTo
from extproc.stream.rules import Rules
from tests.core.builders import MODEL, instance, publish, router
from tests.stream.conversation import CHAT, RULES, chat, one

POLICY = Policy(
    models=ModelPolicy(
        fallbacks={"moved": (MODEL,), "stays": (MODEL,), "waits": (MODEL,)},
        aliases={"other-name": "never"},
        virtual={"any": VirtualModel(name="any", models=("never", "moved"))},
    ),
    cold=ColdPolicy(
        usual=ColdRule(start_s=50.0),
        models={
            "stays": ColdRule(way=Way.REFUSE, start_s=80.0),
            "waits": ColdRule(way=Way.HOLD, start_s=5.0),
            "slow": ColdRule(way=Way.HOLD, start_s=300.0),
        },
        known=frozenset({"moved", "never"}),
        hold_s=20.0,
    ),
)


def fleet(*more: Instance, policy: Policy = POLICY) -> Router:
    return router(instance("warm"), *more, policy=policy)


def asked(
    made: Router, model: str, path: str = CHAT, rules: Rules = RULES, **changes: Any
) -> tuple[Exchange, Reply | Errand]:
    exchange = Exchange(made, "1", rules)
    assert exchange.receive(RequestHeaders("POST", path, last=False), 0.0, 0.0) == (Continue(RequestHeaders),)
    body = RequestBody(orjson.dumps(chat(model=model, **changes)))
    return exchange, one(exchange.receive(body, 0.0, 0.0))


def refusal(reply: Reply | Errand) -> tuple[int, str, int | None]:
    assert isinstance(reply, Answer)
    return reply.status, reply.reason, reply.retry_after_s


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ("stays", (503, "model_cold", 80)),
        ("never", (503, "model_cold", 50)),
        ("other-name", (503, "model_cold", 50)),
        ("slow", (503, "model_cold", 300)),
        ("nonsense", (404, "model_not_found", None)),
    ],
)
def test_a_cold_model_is_refused_with_the_time_that_a_start_takes(
    model: str, expected: tuple[int, str, int | None]
) -> None:
    """Also under an alias, and where a start takes longer than anybody is held. No such model is 404 as ever."""
    _, reply = asked(fleet(), model)
    assert refusal(reply) == expected
    assert isinstance(reply, Answer)
    assert f"'{model}'" in orjson.loads(reply.body)["error"]["message"]


def test_a_model_that_is_being_loaded_is_refused_with_what_is_left_of_the_start() -> None:
    """As the one that is starting tells it."""
    loading = instance("new", models=(), loadable=("stays",), lifecycle=Lifecycle.LOADING, ready_in_s=12.0)
    assert refusal(asked(fleet(loading), "stays")[1]) == (503, "model_loading", 12)


def test_anthropics_clients_get_their_own_shape() -> None:
    """Its type for what passes with time."""
    _, reply = asked(fleet(), "stays", "/v1/messages", max_tokens=5)
    assert isinstance(reply, Answer)
    assert orjson.loads(reply.body)["error"]["type"] == "overloaded_error"
    assert reply.retry_after_s == 80


def test_every_request_for_a_cold_model_leaves_a_wish() -> None:
    """With what its client was told; one for a model that does not exist leaves none."""
    made = fleet()
    for model in ("stays", "stays", "nonsense", MODEL):
        asked(made, model)
    wishes = made.cold.wishes.take()
    assert {model: (wish.requests, wish.wait_s, wish.loading) for model, wish in wishes.items()} == {
        "stays": (2, 80.0, False)
    }


def test_a_redirected_request_is_served_by_the_fallback_and_leaves_a_wish_too() -> None:
    """The fallback is a makeshift: the model is still wanted."""
    made = fleet()
    _, reply = asked(made, "moved")
    assert isinstance(reply, RouteTo)
    assert reply.features.model == MODEL
    assert made.cold.wishes.take()["moved"].requests == 1


def test_where_the_fallback_is_cold_as_well_the_model_itself_is_wanted() -> None:
    """However much sooner the fallback would be there."""
    made = router(instance("other", models=("x",)), policy=POLICY)
    made.cold.starts_s = {MODEL: (1.0,)}
    assert refusal(asked(made, "moved")[1]) == (503, "model_cold", 50)
    assert set(made.cold.wishes.take()) == {"moved"}


def test_of_a_virtual_model_the_candidate_that_is_expected_first_is_wanted() -> None:
    """One of them is enough."""
    made = fleet()
    made.cold.starts_s = {"moved": (9.0,)}
    assert refusal(asked(made, "any")[1]) == (503, "model_cold", 9)
    assert set(made.cold.wishes.take()) == {"moved"}


def test_a_fleet_without_any_instance_knows_its_models_still() -> None:
    """Scaled to nothing: Envoy's own balancing has nowhere to go either. Other names are passed on as ever."""
    made = router(instance("gone"), policy=POLICY)
    made.take(made.fleet.apply(Removed(id="gone"), 1.0))
    assert refusal(asked(made, "never")[1]) == (503, "model_cold", 50)
    assert isinstance(asked(made, "nonsense")[1], PassOn)


def test_while_the_registry_was_never_heard_nothing_is_cold() -> None:
    """What serves may only not be known yet."""
    assert isinstance(asked(Router(POLICY), "never")[1], PassOn)


def test_without_rules_a_model_that_nobody_serves_does_not_exist() -> None:
    """The section in the configuration file turns it on."""
    assert refusal(asked(fleet(policy=Policy()), "never")[1])[0] == 404


def test_a_held_request_is_served_once_an_instance_is_ready() -> None:
    """It is decided upon anew, with all that came meanwhile."""
    made = fleet()
    exchange, errand = asked(made, "waits")
    assert errand == AwaitModel("waits", 20.0)
    publish(made, instance("new", models=("waits",)), 4.0)
    reply = one(exchange.resume(True, 4.0, 0.0))
    assert isinstance(reply, RouteTo)
    assert reply.features.instance_key == "new@1"
    assert made.ledger.in_flight()["new@1"] == 1


def test_a_held_request_whose_instance_is_gone_again_waits_for_the_rest_of_its_time() -> None:
    """And is refused at its end, with what is known then."""
    made = fleet()
    exchange, _ = asked(made, "waits")
    assert one(exchange.resume(True, 4.0, 0.0)) == AwaitModel("waits", 20.0)
    assert refusal(one(exchange.resume(False, 20.0, 0.0))) == (503, "model_cold", 5)
    assert made.cold.wishes.take()["waits"].requests == 1


def test_a_held_request_takes_its_place_over_all_routers_in_strict_mode() -> None:
    """Held by one errand, settled by another."""
    made = fleet()
    exchange, errand = asked(made, "waits", rules=Rules(strict=True))
    assert isinstance(errand, AwaitModel)
    publish(made, instance("new", models=("waits",)), 4.0)
    assert one(exchange.resume(True, 4.0, 0.0)) == TakePlace("1", (Place("new@1", None),))
    assert isinstance(one(exchange.resume(0, 4.0, 0.0)), RouteTo)


def test_the_explanation_says_that_the_model_is_cold() -> None:
    """Beside what stands against each instance."""
    exchange, _ = asked(fleet(), "stays")
    assert exchange.decision is not None
    assert exchange.decision.reason is Reason.MODEL_COLD
    known = exchange.material()
    assert known is not None
    assert "is loaded nowhere, ready in 80 s (configured)" in as_text(explain(known))


def test_with_admission_a_start_is_waited_for_as_the_rules_of_cold_models_say() -> None:
    """Up to their limit, and not for a share of a TTFT; refused with what is left of the start."""
    admitting = replace(POLICY, admission=Admission())
    loading = instance("new", models=("waits",), lifecycle=Lifecycle.LOADING, ready_in_s=12.0)
    assert asked(fleet(loading, policy=admitting), "waits")[1] == AwaitModel("waits", 20.0)
    loading = instance("new", models=("stays",), lifecycle=Lifecycle.LOADING, ready_in_s=12.0)
    assert refusal(asked(fleet(loading, policy=admitting), "stays")[1]) == (503, "model_loading", 12)


def test_with_admission_but_without_rules_of_cold_models_the_start_is_told() -> None:
    """As without admission."""
    loading = instance("new", models=("waits",), lifecycle=Lifecycle.LOADING, ready_in_s=12.0)
    for admission in (None, Admission()):
        made = fleet(loading, policy=Policy(admission=admission))
        assert refusal(asked(made, "waits")[1]) == (503, "not_ready", 12)


def test_who_waited_for_its_model_is_admitted_as_if_it_came_now() -> None:
    """Its first token is late already: what is bounded is how long it still takes."""
    made = fleet(policy=replace(POLICY, admission=Admission()))
    exchange, errand = asked(made, "waits")
    assert isinstance(errand, AwaitModel)
    publish(made, instance("new", models=("waits",)), 12.0)
    reply = one(exchange.resume(True, 12.0, 0.0))
    assert isinstance(reply, RouteTo)
    assert reply.features.instance_key == "new@1"
