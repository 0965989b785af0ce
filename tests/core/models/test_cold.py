"""Cold models: which are known, when they are expected, and what becomes of fallbacks."""

from __future__ import annotations

from typing import Any

import pytest

from extproc.core.models.cold import ColdModels, ColdPolicy, ColdRule, Source, Way, typical_s
from extproc.core.models.wishes import Wishes
from extproc.core.router import Router
from extproc.core.values.decision import Decision, Reason, Rejection
from extproc.core.values.instance import Instance, Lifecycle
from extproc.core.values.option import Option
from tests.core.builders import MODEL, instance, request, router

POLICY = ColdPolicy(
    usual=ColdRule(start_s=90.0),
    models={"own": ColdRule(way=Way.HOLD, start_s=7.0), "never": ColdRule(way=Way.REFUSE)},
    known=frozenset({"named"}),
    hold_s=20.0,
    most_held=2,
)


def fleet(*instances: Instance) -> Router:
    return router(*instances)


def cold(**starts_s: tuple[float, ...]) -> ColdModels:
    made = ColdModels(POLICY)
    made.starts_s = starts_s
    return made


def starting(name: str = "a", **changes: Any) -> Instance:
    return instance(name, **({"lifecycle": Lifecycle.STARTING, "models": (), "loadable": ("big",)} | changes))


@pytest.mark.parametrize(
    ("model", "instances", "expected"),
    [
        ("nonsense", [instance()], None),
        ("nonsense", [instance(lifecycle=Lifecycle.STARTING, models=())], None),
        (MODEL, [instance()], None),
        (MODEL, [instance(lifecycle=Lifecycle.UNHEALTHY)], None),
        (MODEL, [instance(lifecycle=Lifecycle.DRAINING)], (Reason.MODEL_COLD, 90.0, Source.CONFIGURED)),
        (MODEL, [instance(lifecycle=Lifecycle.STOPPED)], (Reason.MODEL_COLD, 90.0, Source.CONFIGURED)),
        (MODEL, [instance(lifecycle=Lifecycle.DRAINING), instance("b")], None),
        ("named", [instance()], (Reason.MODEL_COLD, 90.0, Source.CONFIGURED)),
        ("named", [], (Reason.MODEL_COLD, 90.0, Source.CONFIGURED)),
        ("own", [instance()], (Reason.MODEL_COLD, 7.0, Source.CONFIGURED)),
        ("served-before", [instance()], (Reason.MODEL_COLD, 40.0, Source.LEARNED)),
        ("big", [instance(loadable=("big",))], (Reason.MODEL_COLD, 90.0, Source.CONFIGURED)),
        ("big", [starting(ready_in_s=12.0)], (Reason.MODEL_LOADING, 9.0, Source.STARTING)),
        ("big", [starting(ready_in_s=1.0)], (Reason.MODEL_LOADING, 0.0, Source.STARTING)),
        (
            "big",
            [starting(ready_in_s=50.0), starting("b", ready_in_s=8.0)],
            (Reason.MODEL_LOADING, 5.0, Source.STARTING),
        ),
        ("big", [starting(ready_in_s=12.0), instance("b", models=("big",))], None),
        ("big", [starting()], (Reason.MODEL_LOADING, 90.0, Source.CONFIGURED)),
        ("served-before", [starting(loadable=("served-before",))], (Reason.MODEL_LOADING, 40.0, Source.LEARNED)),
        (MODEL, [instance(lifecycle=Lifecycle.LOADING, asleep=True)], (Reason.MODEL_COLD, 90.0, Source.CONFIGURED)),
        (MODEL, [instance(lifecycle=Lifecycle.LOADING, ready_in_s=9.0)], (Reason.MODEL_LOADING, 6.0, Source.STARTING)),
    ],
)
def test_what_is_said_of_a_model_that_nobody_serves(
    model: str, instances: list[Instance], expected: tuple[Reason, float, Source] | None
) -> None:
    """Three seconds after the instances were published. None: it is served, or no such model is known."""
    made = cold(**{"served-before": (30.0, 40.0)})
    outlook = made.outlook(model, fleet(*instances).fleet.members(), 3.0)
    assert expected == (None if outlook is None else (outlook.reason, outlook.wait_s, outlook.source))


def test_without_rules_nothing_is_cold() -> None:
    """A model that nobody serves does not exist then, as far as the router knows."""
    assert ColdModels(None).outlook("named", (), 0.0) is None


@pytest.mark.parametrize(
    ("durations_s", "expected_s"),
    [
        ((), None),
        ((30.0,), 30.0),
        ((30.0, 10.0), 30.0),
        (tuple(map(float, range(1, 11))), 9.0),
        (tuple(map(float, range(1, 21))), 18.0),
    ],
)
def test_of_starts_that_were_seen_nine_of_ten_are_over_by_then(
    durations_s: tuple[float, ...], expected_s: float | None
) -> None:
    """The nearest rank: a time that was seen, and not one between two."""
    assert typical_s(durations_s) == expected_s


@pytest.mark.parametrize(
    ("wait_s", "jitter", "expected"),
    [(0.0, 0.0, 1), (40.0, 0.0, 40), (40.2, 0.0, 41), (8.0, 0.5, 10), (400.0, 0.999, 410), (9e9, 0.0, 3600)],
)
def test_retry_after_is_what_a_start_takes_and_a_little_that_differs(
    wait_s: float, jitter: float, expected: int
) -> None:
    """Never less than the wait itself, up to an hour."""
    outlook = ColdModels(POLICY).outlook("named", (), 0.0)
    assert outlook is not None
    changed = type(outlook)(outlook.model, outlook.loading, outlook.way, wait_s, outlook.source)
    assert changed.retry_after_s(jitter) == expected


def refused(reason: Reason) -> Decision:
    return Decision(None, (), (Rejection("a", reason, "", ""),))


@pytest.mark.parametrize("reason", list(Reason))
def test_only_who_lacks_the_model_itself_lacks_a_start(reason: Reason) -> None:
    """Whoever is too long, or finds the model full or resting, is told so."""
    absent = {Reason.MODEL_NOT_SERVED, Reason.ROLE_TAKES_HALF, Reason.NOT_READY, Reason.NO_INSTANCE}
    asked = request(model="named")
    assert (cold().outlook_of(asked, refused(reason), (), 0.0) is not None) == (reason in absent)


def test_a_gateway_that_names_endpoints_is_told_of_endpoints() -> None:
    """It may allow others than those that load."""
    asked = request(model="named")
    confined = request(model="named", placement=type(asked.placement)(endpoints=frozenset({"127.0.0.1:1"})))
    assert cold().outlook_of(confined, refused(Reason.NOT_READY), (), 0.0) is None


def options(*ranked: tuple[str, int]) -> tuple[Option, ...]:
    return tuple(Option(request(model=model), rank=rank) for model, rank in ranked)


@pytest.mark.parametrize(
    ("ranked", "kept"),
    [
        ([("own", 0)], ["own"]),
        ([("own", 0), (MODEL, 1)], ["own"]),
        ([("never", 0), (MODEL, 1)], ["never"]),
        ([("named", 0), (MODEL, 1)], ["named", MODEL]),
        ([("own", 0), ("named", 0), (MODEL, 1)], ["own", "named", MODEL]),
        ([("own", 0), ("never", 0), (MODEL, 1)], ["own", "never"]),
        ([("warm", 0), (MODEL, 1)], ["warm", MODEL]),
    ],
)
def test_fallbacks_fall_away_only_where_the_model_is_cold_and_not_to_be_redirected(
    ranked: list[tuple[str, int]], kept: list[str]
) -> None:
    """`named` is redirected by default; one of the first rank that may be is enough."""
    made = ColdModels(POLICY)
    members = fleet(instance(), instance("b", models=("warm",))).fleet.members()
    assert [option.request.model for option in made.without_fallbacks(options(*ranked), members, 0.0)] == kept


def test_what_would_wait_in_vain_is_not_held() -> None:
    """Nor what is not to wait, nor more than may wait at once."""
    made = cold(own=(7.0,))

    def hold_s(model: str) -> float:
        outlook = made.outlook(model, (), 0.0)
        assert outlook is not None
        return made.hold_s(outlook)

    assert hold_s("own") == 20.0
    assert hold_s("named") == hold_s("never") == 0.0
    made.wishes.hold("own")
    made.wishes.hold("never")
    assert hold_s("own") == 0.0
    made.wishes.let_go("never")
    assert hold_s("own") == 20.0
    made.starts_s = {"own": (21.0,)}
    assert hold_s("own") == 0.0


def test_wishes_are_counted_until_they_are_taken_and_none_is_lost() -> None:
    """What could not be written counts with what came since; the latest word of the wait stands."""
    wishes = Wishes()
    wishes.note("m", 9.0, loading=False)
    wishes.note("m", 8.0, loading=True)
    taken = wishes.take()
    assert (taken["m"].requests, taken["m"].wait_s, taken["m"].loading) == (2, 8.0, True)
    assert wishes.take() == {}
    wishes.note("m", 7.0, loading=True)
    wishes.give_back(taken)
    again = wishes.take()["m"]
    assert (again.requests, again.wait_s) == (3, 7.0)
    assert wishes.asked["m"] == 3


def test_models_without_end_do_not_fill_the_memory() -> None:
    """Those that were wished for first stay."""
    wishes = Wishes()
    for number in range(5000):
        wishes.note(f"m{number}", 1.0, loading=False)
    assert len(wishes.take()) == 1000
    assert len(wishes.asked) == 1000
