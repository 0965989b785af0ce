"""Where too few are sound for as many retries as Envoy may make, those follow that would be asked after all."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from extproc.core.admission.bounds import Bounds
from extproc.core.decide import decide
from extproc.core.prefixes.cached import Hits
from extproc.core.pricing.cost import Prices, Pricing
from extproc.core.rollout import Went, trimmed, went
from extproc.core.router import Router
from extproc.core.snapshot import Policy
from extproc.core.values.arrays import Flags
from extproc.core.values.decision import Decision, Reason
from extproc.core.values.option import Option
from extproc.core.values.request import Request
from tests.core.builders import instance, publish, request, router

TIGHT = request(prompt_tokens=1500, max_output_tokens=3000)
SHORT = {"max_model_len_tokens": 2000}
WIDE = Bounds(ttft_s=9.0, tpot_s=9.0)

Befalls = Callable[[Router], None]


def fails(name: str) -> Befalls:
    """It refused a connection just now."""
    return lambda made: made.cooldowns.fail(f"{name}@1", 9.0, 9.0)


def pushes_back(name: str) -> Befalls:
    """It answered 429 just now."""
    return lambda made: made.backpressure.push_back(f"{name}@1", 9.0, 9.0)


def falls_silent(name: str) -> Befalls:
    """All others are heard of, 9 s later."""

    def befalls(made: Router) -> None:
        for member in made.fleet.members():
            if member.instance.id != name:
                publish(made, member.instance, 9.0)

    return befalls


def named(decision: Decision) -> str:
    return "".join(each.instance.id for each in decision.candidates)


def decided(made: Router, asked: Request, bounds: Bounds | None = None) -> Decision:
    return decide(asked, made.snapshot(), 9.1, 0.0, frozenset(), bounds)


@pytest.mark.parametrize(
    ("befalls", "expected"),
    [
        ((), "abc"),
        ((pushes_back("b"),), "acb"),
        ((fails("a"), pushes_back("b")), "cba"),
        ((falls_silent("c"), fails("b"), pushes_back("a")), "acb"),
        ((fails("a"), fails("b"), fails("c")), "abc"),
        ((fails("a"), fails("b"), pushes_back("c")), "cab"),
    ],
)
def test_sound_ones_come_first_then_the_others_by_what_speaks_against_them(
    befalls: tuple[Befalls, ...], expected: str
) -> None:
    """However much cheaper these are: a is the fastest, c the slowest."""
    made = router(instance("a"), instance("b", hardware="a100_80g_sxm"), instance("c", hardware="l40s"))
    for each in befalls:
        each(made)
    assert named(decided(made, request())) == expected


def test_those_without_room_for_all_the_output_come_last() -> None:
    """Some engines answer with less."""
    made = router(instance("a", **SHORT), instance("b", hardware="l40s"), instance("c", hardware="l40s"))
    fails("c")(made)
    assert named(decided(made, TIGHT)) == "bca"


@pytest.mark.parametrize("alternatives", [0, 1, 2, 3])
def test_no_more_are_named_than_are_wanted(alternatives: int) -> None:
    """And all that are sound before any other."""
    made = router(*(instance(name) for name in "abcd"), policy=Policy(alternatives=alternatives))
    for name in "bcd":
        fails(name)(made)
    assert named(decided(made, request())) == "abcd"[: 1 + alternatives]


def test_who_fails_a_constraint_that_is_never_waived_is_not_among_them() -> None:
    """At its limit, without a place over all routers, of another model, too small."""
    fleet = (
        instance("a"),
        instance("b", tags={"max_in_flight": "1"}),
        instance("c", models=("other",)),
        instance("d", max_model_len_tokens=100),
        instance("e"),
    )
    made = router(*fleet)
    for name in "bcde":
        fails(name)(made)
    made.book(request("held"), decide(request("held"), made.snapshot(), 9.1, 0.0).alternatives[0], 9.1)
    assert made.ledger.in_flight() == {"b@1": 1}
    assert named(decide(request(), made.snapshot(), 9.1, 0.0, frozenset({"e@1"}))) == "a"


def test_what_is_held_to_bounds_goes_to_none_that_breaks_them_or_pushed_back() -> None:
    """Neither at once nor by a retry."""
    made = router(instance("a"), instance("b"), instance("c", hardware="l40s"), instance("d"))
    pushes_back("b")(made)
    fails("c")(made)
    fails("d")(made)
    assert named(decided(made, request(), WIDE)) == "adc"
    fast = Bounds(ttft_s=9.0, tpot_s=0.01)
    assert named(decided(made, request(), fast)) == "ad"


def test_nothing_more_is_priced_where_all_are_sound_or_enough_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """The usual decision costs what it did."""
    priced: list[Flags] = []
    prices = Pricing.prices

    def counted(pricing: Pricing, eligible: Flags, hits: Hits) -> Prices:
        priced.append(eligible)
        return prices(pricing, eligible, hits)

    monkeypatch.setattr(Pricing, "prices", counted)
    made = router(*(instance(name) for name in "abcd"), policy=Policy(alternatives=2))
    decided(made, request())
    fails("d")(made)
    decided(made, request())
    assert len(priced) == 2
    fails("c")(made)
    decided(made, request())
    assert len(priced) == 4


def test_naming_all_names_the_same_ones_first() -> None:
    """What is told of it is what would have been decided."""
    made = router(*(instance(name) for name in "abcd"))
    for name in "cd":
        fails(name)(made)
    usual, every = (made.weigh((Option(request()),), 9.1, 0.0, name_all=each) for each in (False, True))
    assert named(usual.decision) == "abc"
    assert trimmed(every, 2).decision == usual.decision


def test_where_envoy_sent_a_request_by_itself_is_unfit_if_it_would_be_asked_only_after_all() -> None:
    """And is nothing that a choice is measured by."""
    made = router(instance("a", hardware="l40s"), instance("b"))
    fails("b")(made)
    weighed = decided(made, request())
    slow, resting = (member.instance for member in made.fleet.members())
    assert named(weighed) == "ab"
    assert weighed.peers == (weighed.chosen,)
    assert went(weighed.chosen, weighed, resting) == Went(resting.key, False, unfit=Reason.COOLING_DOWN)
    assert went(weighed.chosen, weighed, slow) == Went(slow.key, agrees=True, regret_s=0.0)
