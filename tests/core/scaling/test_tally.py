"""What a router counts of its requests for the autoscaler, and how answers are held against their class's SLO."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from extproc.core.pricing.classes import ClassPolicy
from extproc.core.pricing.slo import Slo
from extproc.core.scaling.judged import Judgement, judge
from extproc.core.scaling.sight import Counts
from extproc.core.scaling.tally import UNSERVED, Tally
from extproc.core.values.decision import Reason
from extproc.core.values.outcome import Outcome
from extproc.core.values.request import RequestClass
from tests.core.builders import MODEL, features, instance, request, router

SLO = Slo(ttft_s=2.0, tpot_s=0.05)
OF_CLASS = {"request_class": "interactive"}
HUNG_UP = ("downstream_connection_termination",)
TIMED_OUT = ("upstream_request_timeout",)


def ended(of: dict[str, Any] | None = None, **changes: Any) -> Outcome:
    """A streamed answer of 101 tokens: the first after 1 s, and then one each 40 ms."""
    values: dict[str, Any] = {
        "features": features(**(OF_CLASS | (of or {}))), "address": "", "status": 200, "flags": (), "attempts": 1,
        "duration_s": 5.0, "ttft_s": 1.0, "routing_s": 0.2, "prompt_tokens": 90, "completion_tokens": 101,
        "cached_tokens": 0,
    }  # fmt: skip
    return Outcome(**(values | changes))


WHOLE = {"stream": False}
JUDGED: list[tuple[str, dict[str, Any], dict[str, Any], Judgement]] = [
    ("in time", {}, {}, Judgement(late=False, slow=False)),
    ("the first token late, time in the router included", {}, {"ttft_s": 2.1}, Judgement(late=True, slow=False)),
    ("tokens slow", {}, {"duration_s": 6.1}, Judgement(late=False, slow=True)),
    ("an engine that does not tell tokens", {}, {"completion_tokens": None}, Judgement(late=False)),
    ("one token has no pace", {}, {"completion_tokens": 1}, Judgement(late=False)),
    ("several answers at once have none either", {"choices": 2}, {}, Judgement(late=False)),
    ("hung up in vain before the limit", {}, {"status": 0, "ttft_s": None, "duration_s": 1.9}, Judgement()),
    (
        "hung up after it",
        {},
        {"status": 0, "ttft_s": None, "duration_s": 2.1, "flags": HUNG_UP},
        Judgement(late=True),
    ),
    (
        "Envoy gave up",
        {},
        {"status": 504, "ttft_s": None, "duration_s": 60.0, "flags": TIMED_OUT},
        Judgement(late=True),
    ),
    ("the engine failed", {}, {"status": 500, "duration_s": 60.0}, Judgement()),
    ("the engine was cut off", {}, {"status": 503, "ttft_s": None, "duration_s": 60.0}, Judgement()),
    ("in one piece, in time", WHOLE, {"duration_s": 6.9, "ttft_s": 6.9}, Judgement(late=False, slow=False)),
    ("in one piece, too late", WHOLE, {"duration_s": 7.1, "ttft_s": 7.1}, Judgement(late=True, slow=True)),
    ("in one piece, of unknown length", WHOLE, {"completion_tokens": None}, Judgement()),
    ("in one piece, and nobody waited for it", WHOLE, {"status": 0, "ttft_s": None}, Judgement()),
]


@pytest.mark.parametrize(("of", "changes", "expected"), [case[1:] for case in JUDGED], ids=[case[0] for case in JUDGED])
def test_an_answer_is_held_against_the_slo(of: dict[str, Any], changes: dict[str, Any], expected: Judgement) -> None:
    """What is not known, and what failed for another reason than load, is not judged."""
    outcome = ended(of, **changes)
    assert outcome.features is not None
    assert judge(outcome, outcome.features, SLO) == expected


@pytest.mark.parametrize(
    ("slo", "expected"),
    [
        (Slo(), Judgement()),
        (Slo(ttft_s=0.5), Judgement(late=True)),
        (Slo(tpot_s=0.01), Judgement(slow=True)),
    ],
)
def test_a_limit_that_a_class_does_not_have_judges_nothing(slo: Slo, expected: Judgement) -> None:
    """Of an answer in one piece neither can be said then."""
    outcome = ended()
    assert outcome.features is not None
    assert judge(outcome, outcome.features, slo) == expected
    assert judge(ended(WHOLE), features(**WHOLE), slo) == Judgement()


def test_what_was_routed_and_what_came_of_it_is_counted_by_model() -> None:
    """Prompts as they are believed when they come, outputs as engines tell them at the end."""
    tally = Tally(ClassPolicy())
    for model, cached_tokens in (("a", 30), ("a", 50), ("b", 0)):
        tally.routed(features(model=model, cached_tokens=cached_tokens))
    tally.ended(ended({"model": "a"}))
    tally.ended(ended({"model": "a"}, duration_s=60.0, ttft_s=40.0))
    assert tally.take() == {
        "a": Counts(
            requests=2, prompt_tokens=200, cached_tokens=80, computed_squares=70**2 + 50**2,
            answers=2, output_tokens=202, output_squares=2 * 101**2, judged=2, late=1, slow=1, paced=2,
        ),
        "b": Counts(requests=1, prompt_tokens=100, computed_squares=100**2),
    }  # fmt: skip
    assert tally.take() == {}


def test_each_class_is_judged_by_its_own_slo_and_batch_by_none() -> None:
    """A class that was not told, by a router of another version, is not guessed."""
    tally = Tally(ClassPolicy())
    for kind in (*RequestClass, ""):
        tally.ended(ended({"model": str(kind), "request_class": str(kind)}, ttft_s=3.0))
    judged = {model: (counts.judged, counts.late) for model, counts in tally.take().items()}
    assert judged == {"interactive": (1, 1), "long_context": (1, 0), "batch": (0, 0), "": (0, 0)}


@pytest.mark.parametrize(
    ("changes", "counted"),
    [
        ({}, (1, 101)),
        ({"completion_tokens": None}, (1, 100)),  # as was expected
        ({"completion_tokens": None, "flags": HUNG_UP}, (0, 0)),  # somewhere on the way
        ({"completion_tokens": 7, "flags": HUNG_UP}, (1, 7)),
        ({"completion_tokens": None, "status": 500}, (0, 0)),
        ({"features": None}, (0, 0)),
    ],
)
def test_an_answer_whose_length_nobody_knows_is_not_counted(changes: dict[str, Any], counted: tuple[int, int]) -> None:
    """Where engines do not tell of their streams, the length that was expected stands for it."""
    tally = Tally(ClassPolicy())
    tally.ended(ended(**changes))
    counts = tally.take().get(MODEL, Counts())
    assert (counts.answers, counts.output_tokens) == counted


@pytest.mark.parametrize("reason", [*Reason, None])
def test_only_what_another_instance_would_have_served_is_shed(reason: Reason | None) -> None:
    """What is the request's own fault, or forbidden, is no load."""
    fault = (
        Reason.TENANT_NOT_ALLOWED, Reason.QUALITY_TOO_LOW, Reason.COST_TOO_HIGH, Reason.OUTSIDE_SUBSET,
        Reason.CAPABILITY_MISSING, Reason.PLACEMENT_UNREADABLE, Reason.ZONE_NOT_ALLOWED, Reason.TAG_MISSING,
        Reason.HARDWARE_NOT_ALLOWED, Reason.PRECISION_NOT_ALLOWED, Reason.TOPOLOGY_NOT_ALLOWED,
        Reason.CONTEXT_TOO_LONG, Reason.KV_TOO_SMALL,
    )  # fmt: skip
    tally = Tally(ClassPolicy())
    tally.refused(request(), reason)
    assert (MODEL in tally.take()) == (reason is not None and reason not in fault)
    assert UNSERVED.isdisjoint(fault)


def test_prompts_of_those_that_were_shed_are_as_well_known_as_the_others() -> None:
    """So that means over all requests are those of the kind that comes, however many are shed."""
    tally = Tally(ClassPolicy())
    tally.refused(request(), Reason.NO_INSTANCE)
    assert tally.take()[MODEL] == Counts(requests=1, shed=1, prompt_tokens=1000, computed_squares=1000**2)
    tally.routed(features(prompt_tokens=1000, cached_tokens=600))
    tally.refused(request(), Reason.HELD_TOO_LONG)
    both = Counts(requests=2, shed=1, prompt_tokens=2000, cached_tokens=1200, computed_squares=2 * 400**2)
    assert tally.take()[MODEL] == both
    tally.refused(request(), Reason.HELD_TOO_LONG)
    shed = Counts(requests=1, shed=1, prompt_tokens=1000, cached_tokens=600, computed_squares=400**2)
    assert tally.take()[MODEL] == shed


def test_invented_names_neither_grow_without_bound_nor_keep_others_out() -> None:
    """Who has been served here is counted whatever else is asked for."""
    tally = Tally(ClassPolicy())
    tally.routed(features(model="served"))
    tally.take()
    for number in range(10_000):
        tally.refused(request(model=f"invented-{number}"), Reason.MODEL_NOT_SERVED)
    tally.refused(request(model="x" * 1000), Reason.MODEL_NOT_SERVED)
    tally.refused(request(model="served"), Reason.MODEL_NOT_SERVED)
    tally.refused(request(model="invented-0"), Reason.MODEL_NOT_SERVED)
    taken = tally.take()
    assert len(taken) == 101
    assert taken["served"].shed == 1
    assert taken["invented-0"].shed == 2
    tally.refused(request(model="x" * 1000), Reason.MODEL_NOT_SERVED)
    assert tally.take() == {}


def test_the_class_of_a_request_rides_with_its_features() -> None:
    """Whoever hears of the outcome judges it by that."""
    made = router(instance("a"))
    asked = msgspec.structs.replace(request(), request_class=RequestClass.BATCH)
    chosen = made.choose(asked, 0.0, 0.0).chosen
    assert chosen is not None
    assert made.features(asked, chosen).request_class == "batch"
