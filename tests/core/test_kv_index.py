"""What engines tell that they hold: taken in, looked up by layout, and preferred to what was learned."""

from __future__ import annotations

from typing import Any

import pytest

from extproc.core.decide import decide
from extproc.core.eligibility.counting import Wish, wish_for
from extproc.core.prefixes.kv_delta import KvDelta
from extproc.core.prefixes.kv_index import Hit, KvIndex
from extproc.core.snapshot import Policy
from extproc.core.values.decision import CacheSource, Claims
from extproc.core.values.instance import Lifecycle
from extproc.core.values.request import KvLayout
from tests.core.builders import MODEL, blocks, instance, request, router

LAYOUT = KvLayout(16, MODEL)
CHAIN = blocks(1, 60)


def told(**lists: Any) -> KvDelta:
    return KvDelta(block_size_tokens=16, **lists)


@pytest.mark.parametrize(
    ("deltas", "hit"),
    [
        ([told(gpu=CHAIN)], Hit(960)),
        ([told(gpu=CHAIN), told(removed=CHAIN[30:])], Hit(480)),
        ([told(gpu=CHAIN), told(removed=CHAIN[:1])], None),
        ([told(gpu=CHAIN), told(cpu=CHAIN[30:])], Hit(480, 480)),
        ([told(gpu=CHAIN[:10], disk=CHAIN[10:20])], Hit(160, 160)),
        ([told(cpu=CHAIN)], Hit(0, 960)),
        ([told(cpu=CHAIN), told(gpu=CHAIN)], Hit(960)),
        ([told(gpu=CHAIN), told(cleared=True, gpu=CHAIN[:5])], Hit(80)),
        ([told(gpu=CHAIN), told(cleared=True)], None),
        ([told(gpu=CHAIN), told(gpu=CHAIN), told(removed=CHAIN[59:]), told(removed=CHAIN[59:])], Hit(944)),
    ],
)
def test_deltas_add_up_to_what_an_instance_holds(deltas: list[KvDelta], hit: Hit | None) -> None:
    index = KvIndex()
    for delta in deltas:
        index.apply("a@1", delta)
    index.apply("b@1", told(gpu=blocks(2, 60)))
    assert index.hits({LAYOUT: CHAIN}).get((LAYOUT, "a@1")) == hit


def test_an_instance_that_tells_nothing_has_no_layout_and_one_that_ended_neither() -> None:
    index, held = KvIndex(), instance("a")
    assert index.layout(held, MODEL) is None
    index.apply(held.key, told(gpu=CHAIN))
    assert index.layout(held, MODEL) == LAYOUT
    index.forget(held.key)
    assert index.layout(held, MODEL) is None
    assert index.entries == 0


def test_aliases_of_a_model_share_its_name_and_adapters_have_their_own() -> None:
    index = KvIndex()
    held = instance("a", models=("base", "alias", "adapter"), loras=("adapter",))
    index.apply(held.key, told(gpu=CHAIN))
    names = {model: index.layout(held, model) for model in held.models}
    assert names == {"base": KvLayout(16, "base"), "alias": KvLayout(16, "base"), "adapter": KvLayout(16, "adapter")}


def test_what_an_engine_tells_goes_before_what_was_learned_of_it() -> None:
    made = router(instance("teller"), instance("guessed"))
    prefix = blocks(9, 15)
    for key in ("teller@1", "guessed@1"):
        made.prefixes.insert(key, prefix, 1000)
    made.kv.apply("teller@1", told(gpu=CHAIN[:10]))
    asked = request(prefix=prefix, chains={LAYOUT: CHAIN})
    decision = decide(asked, made.snapshot(), 0.0, 0.0)
    assert decision.chosen is not None
    assert {c.instance.id: (c.cached_tokens, c.claims) for c in decision.candidates} == {
        "teller": (160, Claims(960, 160)),
        "guessed": (960, Claims(960)),
    }
    without_ids = decide(request(prefix=prefix), made.snapshot(), 0.0, 0.0)
    assert {(c.cached_tokens, c.claims) for c in without_ids.candidates} == {(960, Claims(960))}


def test_what_was_sent_a_moment_ago_counts_until_the_engine_has_had_time_to_tell() -> None:
    """Else every prompt of a burst would look as new to the engine as the first."""
    made = router(*(instance(name) for name in "abcd"))
    for name in "abcd":
        made.kv.apply(f"{name}@1", told(gpu=blocks(5, 1)))
    prompt: dict[str, Any] = {"prompt_tokens": 8010, "prefix": blocks(9, 125), "chains": {LAYOUT: blocks(7, 500)}}
    asked = [request(name, **prompt) for name in ("1", "2")]
    first = made.choose(asked[0], 0.0, 0.9).chosen
    made.release("1", 0.01)
    again = made.choose(asked[1], 0.02, 0.0).chosen
    assert first is not None
    assert again is not None
    assert again.instance.id == first.instance.id
    assert (again.cached_tokens, again.claims.told_tokens, again.claims.recent_tokens) == (8000, 0, 8000)
    later = decide(asked[0], made.snapshot(), 60.0, 0.0)
    assert {candidate.cached_tokens for candidate in later.candidates} == {0}


def test_one_cap_bounds_what_was_learned_and_what_engines_tell_of_all_tiers_together() -> None:
    """What was learned gives way; what engines tell beyond the cap is refused, and counted."""
    made = router(instance("a"), policy=Policy(max_prefix_entries=100))
    made.prefixes.insert("a@1", blocks(9, 80), 1000)
    made.kv.apply("a@1", told(gpu=CHAIN))
    assert (made.kv.entries, made.prefixes.size("a@1"), made.prefixes.entries) == (60, 40, 100)
    assert made.prefixes.matches(blocks(9, 80)) == {"a@1": 40}
    made.kv.apply("a@1", told(cpu=blocks(3, 10)))  # keeps its 60 blocks once more
    assert (made.kv.entries, made.prefixes.size("a@1"), made.prefixes.entries) == (100, 0, 100)
    assert made.kv.refused_blocks == 30
    assert made.kv.hits({LAYOUT: CHAIN}) == {(LAYOUT, "a@1"): Hit(960)}
    made.prefixes.forget("a@1")
    assert made.kv.entries == 100
    made.kv.forget("a@1")
    assert made.prefixes.entries == 0


@pytest.mark.parametrize(
    ("prompt_tokens", "held_blocks", "cached_tokens"),
    [(159, 9, 144), (160, 10, 144), (161, 10, 160), (160, 9, 144), (16, 1, 0), (17, 1, 16), (1, 0, 0)],
)
def test_of_a_prompt_that_is_held_as_a_whole_the_last_block_is_computed_anew(
    prompt_tokens: int, held_blocks: int, cached_tokens: int
) -> None:
    """As vLLM does for the sake of the last token, whose output it needs; it reuses whole blocks only."""
    made = router(instance("a"))
    made.kv.apply("a@1", told(gpu=CHAIN[:held_blocks]))
    chains = {LAYOUT: CHAIN[: prompt_tokens // 16]}
    decision = decide(request(prompt_tokens=prompt_tokens, chains=chains), made.snapshot(), 0.0, 0.0)
    assert decision.chosen is not None
    assert decision.chosen.cached_tokens == cached_tokens


def test_blocks_in_host_memory_are_worth_less_than_those_on_the_gpu_and_more_than_none() -> None:
    made = router(instance("gpu"), instance("cpu"), instance("none"))
    for name, lists in (("gpu", {"gpu": CHAIN}), ("cpu", {"cpu": CHAIN}), ("none", {"gpu": blocks(2, 1)})):
        made.kv.apply(f"{name}@1", told(**lists))
    decision = decide(request(chains={LAYOUT: CHAIN}), made.snapshot(), 0.0, 0.0)
    assert decision.chosen is not None
    assert [c.instance.id for c in (decision.chosen, *decision.alternatives)] == ["gpu", "cpu", "none"]


@pytest.mark.parametrize(
    ("changes", "tenant", "policy", "wish"),
    [
        ({}, "", Policy(), Wish((LAYOUT,))),
        ({}, "t", Policy(), None),
        ({}, "t", Policy(tenants_share_prefixes=True), Wish((LAYOUT,))),
        ({"lifecycle": Lifecycle.LOADING}, "", Policy(), None),
        ({"models": ("other",)}, "", Policy(), None),
    ],
)
def test_ids_are_wished_for_where_an_engine_tells_what_it_holds_and_there_is_a_choice(
    changes: dict[str, Any], tenant: str, policy: Policy, wish: Wish | None
) -> None:
    made = router(instance("a"), instance("b", **changes), policy=policy)
    made.kv.apply("a@1", told(gpu=CHAIN))
    assert wish_for(request(tenant=tenant), made.snapshot(), 0.5) == wish


def test_of_an_engine_whose_word_has_proven_wrong_a_few_look_ups_go_on() -> None:
    made = router(instance("a"), instance("b"))
    made.kv.apply("a@1", told(gpu=CHAIN))
    for _ in range(20):
        made.trust.check("a@1", MODEL, CacheSource.TOLD, 2000, 0)
    wishes = [wish_for(request(), made.snapshot(), number / 64) for number in range(64)]
    assert wishes.count(Wish((LAYOUT,))) == 4
