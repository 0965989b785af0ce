"""Model and instance chosen together: queues, caches, price and quality in one sum; fallbacks in their order."""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from extproc.core.models.plan import ABSENT, CONTEXT
from extproc.core.pairs.hand_over import HandOver
from extproc.core.router import Router
from extproc.core.snapshot import Policy
from extproc.core.values.decision import Reason
from extproc.core.values.instance import Capability, Lifecycle, Role
from extproc.core.values.option import Option
from tests.core.builders import blocks, instance, request, router

_ANY = frozenset(Reason)


def _fleet(policy: Policy | None = None, **changes: Any) -> Router:
    """One H100 with an 8B model, four with a 70B one; `changes` of the small one."""
    big = {"models": ("llama-3.1-70b",), "tensor_parallel": 4}
    return router(instance("small", **({"models": ("llama-3.1-8b",)} | changes)), instance("big", **big), policy=policy)


def _options(extra_small_s: float = 0.0, extra_big_s: float = 0.0, **changes: Any) -> tuple[Option, Option]:
    return (
        Option(request(**({"model": "llama-3.1-8b"} | changes)), extra_small_s),
        Option(request(**({"model": "llama-3.1-70b"} | changes)), extra_big_s),
    )


def test_the_faster_model_is_taken_where_nothing_else_counts() -> None:
    """And it alone is booked; what the other would have cost is told."""
    made = _fleet()
    choice = made.choose_among(_options(), 0.0, 0.0)
    assert choice.option.request.model == "llama-3.1-8b"
    assert made.ledger.booked() == {"r": "small@1"}
    ((other, decision),) = choice.others
    assert other.request.model == "llama-3.1-70b"
    assert decision.chosen is not None


def test_missing_quality_outweighs_speed_until_the_better_model_is_busy() -> None:
    """The first request goes to the better model; the more its quality is worth, the longer a queue is put up with."""

    def taken(worth_s: float) -> list[str]:
        made = _fleet()
        options = [_options(worth_s, request_id=f"r{number}", prompt_tokens=8_000) for number in range(60)]
        return [made.choose_among(each, 0.0, 0.5).option.request.model for each in options]

    bigs = []
    for worth_s in (3.0, 10.0, 30.0):
        models = taken(worth_s)
        assert models[0] == "llama-3.1-70b"
        assert "llama-3.1-8b" in models
        bigs.append(models.count("llama-3.1-70b"))
    assert bigs == sorted(set(bigs))


def test_a_session_stays_where_its_prefix_is_as_long_as_that_is_worth_more() -> None:
    """The lost prefix is all that keeps it: a change that gains more than computing it anew is made."""
    prefix = blocks(1, 200)
    settled = {"prefix": prefix, "prompt_tokens": 12_800, "session": "s"}
    made = _fleet()
    made.choose_among(_options(99.0, **settled)[1:], 0.0, 0.0)
    made.release("r", 5.0)
    alone = _fleet().choose_among(_options(**settled)[1:], 0.0, 0.0).decision
    held = made.choose_among(_options(99.0, 0.0, **settled), 10.0, 0.0)
    assert alone.chosen is not None
    assert held.decision.chosen is not None
    lost_s = alone.chosen.cost.total_s - held.decision.chosen.cost.total_s
    assert lost_s > 0.3
    small_s = held.others[0][1].candidates[0].cost.total_s
    even_s = held.decision.chosen.cost.total_s - small_s
    for more_s, expected in ((0.1, "llama-3.1-70b"), (-0.1, "llama-3.1-8b")):
        made.release("r", 10.0)
        choice = made.choose_among(_options(even_s + more_s, **settled), 10.0, 0.0)
        assert choice.option.request.model == expected


def test_equal_models_share_requests_and_each_session_keeps_to_one() -> None:
    """A near-tie between models is drawn at random, for a session always for the same one."""
    twins = [instance(name, models=(name,)) for name in ("llama-3.1-8b-a", "llama-3.1-8b-b")]

    def chosen(session: str, draw: float) -> str:
        made = router(*twins)
        options = tuple(Option(request(model=each.id, session=session, token_error=0.0)) for each in twins)
        return made.choose_among(options, 0.0, draw).option.request.model

    drawn = Counter(chosen("", number / 997) for number in range(0, 997, 5))
    assert min(drawn.values()) > 60
    assert len(drawn) == 2
    kept = {session: {chosen(session, number / 7) for number in range(7)} for session in map(str, range(12))}
    assert all(len(names) == 1 for names in kept.values())
    assert len(set().union(*kept.values())) == 2


@pytest.mark.parametrize(
    ("changes", "opens_for", "expected"),
    [
        ({"lifecycle": Lifecycle.LOADING}, ABSENT, "llama-3.1-70b"),
        ({"models": ("other",)}, ABSENT, "llama-3.1-70b"),
        ({"max_model_len_tokens": 500}, ABSENT, None),
        ({"max_model_len_tokens": 500}, CONTEXT, "llama-3.1-70b"),
        ({"lifecycle": Lifecycle.LOADING}, CONTEXT, None),
        ({"capabilities": ()}, ABSENT | CONTEXT, "llama-3.1-8b"),
    ],
    ids=["loading", "not_served", "too_long", "too_long_listed", "loading_not_listed", "able"],
)
def test_a_fallback_is_tried_for_the_reasons_that_open_it(
    changes: dict[str, Any], opens_for: frozenset[Reason], expected: str | None
) -> None:
    """Only where none before it can serve, and only if it is why."""
    small, big = _options()
    options = (small, replace(big, rank=1, opens_for=opens_for))
    choice = _fleet(**changes).choose_among(options, 0.0, 0.0)
    chosen = choice.decision.chosen
    assert (choice.option.request.model if chosen else None) == expected


def test_a_demand_of_the_client_opens_no_fallback() -> None:
    """A model that lacks what is asked for is not replaced by another."""
    small, big = _options(needs=frozenset({Capability.VISION}))
    options = (small, replace(big, rank=1, opens_for=ABSENT | CONTEXT))
    choice = _fleet(capabilities=()).choose_among(options, 0.0, 0.0)
    assert choice.decision.chosen is None
    assert choice.decision.reason is Reason.CAPABILITY_MISSING


def test_limits_open_a_fallback_and_the_first_comes_back() -> None:
    """A full model falls back; as soon as there is room it is asked first again."""
    made = _fleet(Policy(max_in_flight=1))
    small, big = _options()

    def choose(name: str) -> str:
        first, second = msgspec.structs.replace(small.request, id=name), msgspec.structs.replace(big.request, id=name)
        options = (Option(first), Option(second, -9.0, rank=1, opens_for=ABSENT))
        return made.choose_among(options, 0.0, 0.0).option.request.model

    assert [choose("one"), choose("two")] == ["llama-3.1-8b", "llama-3.1-70b"]
    made.release("one", 0.0)
    assert choose("three") == "llama-3.1-8b"


def test_an_instance_in_doubt_is_asked_after_a_sound_fallback() -> None:
    """A model whose only instance rests after a failure falls back; without a fallback it is asked all the same."""
    made = _fleet()
    made.cooldowns.fail("small@1", 0.0, 0.0)
    small, big = _options()
    assert made.cooldowns.resting(0.1)
    choice = made.choose_among((small, replace(big, rank=1, opens_for=ABSENT)), 0.1, 0.0)
    assert choice.option.request.model == "llama-3.1-70b"
    made.release("r", 0.1)
    assert made.choose_among((small,), 0.1, 0.0).option.request.model == "llama-3.1-8b"


def test_where_none_can_serve_the_nearest_one_is_told() -> None:
    """Of a model that is loading and one that nobody serves, the first is nearer."""
    made = router(instance("small", models=("llama-3.1-8b",), lifecycle=Lifecycle.LOADING))
    choice = made.choose_among(_options()[::-1], 0.0, 0.0)
    assert choice.option.request.model == "llama-3.1-8b"
    assert choice.decision.reason is Reason.NOT_READY
    assert len(choice.others) == 1
    assert not made.ledger.booked()


def test_pairs_of_one_model_are_held_against_another_model() -> None:
    """Halves of a request are priced like a whole one, and the extras are added to either."""
    halves = [
        instance("p", models=("llama-3.1-70b",), tensor_parallel=4, role=Role.PREFILL, kv_domain="d"),
        instance("d", models=("llama-3.1-70b",), tensor_parallel=4, role=Role.DECODE, kv_domain="d"),
    ]
    made = router(instance("small", models=("llama-3.1-8b",)), *halves, policy=Policy(hand_over=HandOver.LLM_D))
    paired = made.choose_among(_options(extra_small_s=99.0), 0.0, 0.0)
    assert paired.decision.partner is not None
    made.release("r", 0.0)
    assert made.choose_among(_options(), 0.0, 0.0).decision.partner is None
