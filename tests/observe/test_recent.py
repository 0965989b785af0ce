"""The latest decisions: found by either id, completed by their outcomes, bounded in number and size."""

from __future__ import annotations

from typing import Any

import msgspec

from extproc.core.reasons.explanation import Material, material
from extproc.core.router import Router
from extproc.core.values.outcome import Features, Outcome
from extproc.observe.recent import LAST, RecentDecisions
from tests.core.builders import blocks, instance, request, router


def decided(made: Router, request_id: str, **changes: Any) -> tuple[Material, Features | None]:
    asked = request(request_id, **changes)
    decision = made.choose(asked, 0.0, 0.0)
    features = made.features(asked, decision.chosen) if decision.chosen else None
    return material(asked, decision, made.snapshot(), 0.0), features


def outcome(features: Features | None, status: int = 200) -> Outcome:
    return Outcome(
        features=features, address="10.0.0.1:80", status=status, flags=(), attempts=1, duration_s=2.0, ttft_s=0.5,
        routing_s=0.0, prompt_tokens=900, completion_tokens=50, cached_tokens=10,
    )  # fmt: skip


def test_a_decision_is_found_by_our_id_by_envoys_and_as_the_last_one() -> None:
    """Operators know Envoy's id; the page of decisions shows ours."""
    made, recent = router(instance("a")), RecentDecisions()
    for number in (1, 2):
        recent.add(*_with_trace(decided(made, str(number)), f"trace-{number}"))
    for name, request_id in (("1", "1"), ("trace-1", "1"), ("2", "2"), ("trace-2", "2"), (LAST, "2")):
        told = recent.explain(name)
        assert told is not None
        assert (told.request.id, told.request.trace_id) == (request_id, f"trace-{request_id}")
    assert recent.explain("3") is None
    assert RecentDecisions().explain(LAST) is None


def _with_trace(known: tuple[Material, Features | None], trace_id: str) -> tuple[Material, str, Features | None]:
    return known[0], trace_id, known[1]


def test_an_outcome_is_added_to_the_decision_that_it_belongs_to() -> None:
    """Features that came back through Envoy are the same as those that were sent."""
    made, recent = router(instance("a", address="10.0.0.1:80")), RecentDecisions()
    known, features = decided(made, "1")
    recent.add(known, "", features)
    told = recent.explain("1")
    assert told is not None
    assert told.outcome is None
    recent.finish(outcome(features))
    told = recent.explain("1")
    assert told is not None
    assert told.outcome is not None
    assert (told.outcome.instance, told.outcome.status, told.outcome.cached_tokens) == ("a", 200, 10)


def test_an_outcome_of_another_routers_request_with_the_same_id_is_not_added() -> None:
    """Routers count their requests each for itself; Envoy's access log may go to any of them."""
    made, recent = router(instance("a")), RecentDecisions()
    known, features = decided(made, "1")
    recent.add(known, "", features)
    assert features is not None
    later = msgspec.structs.replace(features, ttft_s=features.ttft_s + 1.0)
    for other in (None, later, msgspec.structs.replace(features, request_id="2")):
        recent.finish(outcome(other))
    told = recent.explain("1")
    assert told is not None
    assert told.outcome is None


def test_the_oldest_decisions_make_room() -> None:
    """Neither many decisions nor the rejections of a large fleet grow without bound."""
    made = router(instance("a"), *(instance(f"x{number}", models=("x",)) for number in range(10)))
    for recent, left in ((RecentDecisions(3), 3), (RecentDecisions(100, most_rejections=25), 2)):
        for number in range(20):
            recent.add(*_with_trace(decided(made, str(number)), f"trace-{number}"))
        assert [each.request.id for each in recent] == [str(number) for number in range(20 - left, 20)]
        assert recent.explain("trace-0") is None
        assert len(recent._ids) == left
    lone = RecentDecisions(100, most_rejections=5)
    lone.add(*_with_trace(decided(made, "1"), ""))
    assert lone.explain("1") is not None  # however large it is


def test_a_decision_that_comes_again_replaces_the_first() -> None:
    """An id that is used anew is that of the newer request."""
    made, recent = router(instance("a")), RecentDecisions()
    recent.add(*_with_trace(decided(made, "1"), "old"))
    recent.add(*_with_trace(decided(made, "1"), "new"))
    assert len(list(recent)) == 1
    assert recent.explain("old") is None
    assert recent.explain("new") is not None


def test_a_trace_id_that_two_requests_bear_finds_the_newer_one() -> None:
    """A client may send the same x-request-id twice; dropping the older request must not hide the newer."""
    made, recent = router(instance("a")), RecentDecisions(2)
    for number in range(3):
        recent.add(*_with_trace(decided(made, str(number)), "same"))
    told = recent.explain("same")
    assert told is not None
    assert told.request.id == "2"


def test_no_prefix_hash_is_kept() -> None:
    """What is kept of 200 long prompts would otherwise be 200 MiB."""
    made, recent = router(instance("a")), RecentDecisions()
    recent.add(*_with_trace(decided(made, "1", prefix=blocks(1, 5000)), ""))
    assert [len(msgspec.json.encode(each.request)) < 300 for each in recent] == [True]
