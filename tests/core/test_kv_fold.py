"""Folding an engine's KV events: what is held, under the names that routers use, and nothing beyond."""

from __future__ import annotations

import pytest

from extproc.core.prefixes.kv_delta import KvDelta, KvTier
from extproc.core.prefixes.kv_fold import Cleared, Event, KvFold, Removed, Stored
from tests.core.kv_parts import BLOCK, MODEL, Router, engine_hash, names, removed, stored

A, AB, ABC, D = (1,), (1, 2), (1, 2, 3), (4,)


def folded(*events: Event) -> KvFold:
    fold = KvFold(MODEL)
    fold.apply(0, events)
    return fold


def held(fold: KvFold) -> set[int]:
    return Router().follow(fold)


@pytest.mark.parametrize(
    ("events", "paths"),
    [
        ([], []),
        ([stored(ABC)], [A, AB, ABC]),
        ([stored(AB), stored(ABC, start=2)], [A, AB, ABC]),  # named from the parent on
        ([stored(AB), stored(D), removed(AB)], [A, D]),
        ([stored(AB), removed(AB), stored(AB, start=1)], [A, AB]),
        ([stored(AB), removed(A)], [AB]),  # reached again once its parent is back
        ([stored(AB), removed(A, AB), stored(ABC, start=2)], [ABC]),  # the parent left before its child came
        ([stored(ABC), Cleared()], []),
        ([stored(ABC), Cleared(), stored(D)], [D]),
        ([stored(ABC, start=2)], []),  # the parent was never seen
        ([stored(AB, start=1), stored(ABC, start=2)], []),  # nor are descendants placed
        ([stored(A), removed(D)], [A]),  # removal of what was never held
        ([stored(A), stored(A), removed(A)], []),  # computed twice: the removal may be the last one's
        ([stored(A), stored(A), removed(A), removed(A)], []),
        ([stored(A), stored(A), removed(A), stored(A)], [A]),
        ([*[stored(A)] * 2, *[removed(A)] * 2, *[stored(D)] * 3, *[removed(D)] * 2], [D]),  # each copy's end is told
        ([*[stored(A)] * 2, *[removed(A)] * 2, *[stored(D)] * 3, *[removed(D)] * 3], []),
        ([removed(A), removed(A), stored(D), stored(D), removed(D)], []),  # never known: proves nothing
        ([stored(A), stored(A), removed(A, copies_left=(1,))], [A]),
        ([stored(A), stored(A), removed(A, copies_left=(0,))], []),  # the engine knows better
        ([stored(A), removed(A, copies_left=(1,))], [A]),
    ],
)
def test_the_blocks_held_are_those_stored_and_not_removed(events: list[Event], paths: list[tuple[int, ...]]) -> None:
    """Each history ends in the set that the engine has at its end."""
    assert held(folded(*events)) == names(*paths)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"adapter": "sql"}, names(A, AB, model="sql")),
        ({"adapter": None}, set()),  # an adapter without a name is nobody's
        ({"cache_salt": "s"}, names(A, AB, cache_salt="s")),
        ({"plain_blocks": 1}, names(A)),  # an image in the second
        ({"plain_blocks": 0}, set()),
        ({"whole_prefix": False}, set()),  # sliding window
        ({"token_ids": (1,) * 7}, set()),  # not two blocks
        ({"token_ids": (1 << 32,) * 8}, set()),
        ({"token_ids": (-1,) * 8}, set()),
    ],
)
def test_what_an_engine_keeps_apart_is_never_found_under_a_plain_name(
    fields: dict[str, object], expected: set[int]
) -> None:
    """Adapters, salts and images part equal tokens; what cannot be named is dropped with its descendants."""
    assert held(folded(stored(AB, **fields))) == expected
    assert not held(folded(stored(AB, **fields), stored(ABC, start=2))) & names(AB, ABC)


def test_descendants_of_an_adapters_blocks_are_the_adapters_too() -> None:
    """A child event need not say which adapter it belongs to."""
    fold = folded(stored(AB, adapter="sql"), stored(ABC, start=2))
    assert held(fold) == names(A, AB, ABC, model="sql")


def test_dropped_blocks_are_counted() -> None:
    """An operator can see how much of an engine's cache is not known."""
    fold = folded(stored(ABC, start=1), stored(A, whole_prefix=False), stored(A))
    assert (fold.unplaced_blocks, fold.ignored_events, fold.held_blocks) == (2, 1, 1)


def test_a_block_counts_until_its_last_copy_in_any_rank_goes() -> None:
    """Ranks have hashes of their own and caches of their own; the instance holds what one of them holds."""
    fold, router = KvFold(MODEL), Router()
    fold.apply(0, [stored(AB, seed=1)])
    fold.apply(1, [stored(A, seed=2)])
    assert router.follow(fold) == names(A, AB)
    fold.apply(0, [removed(A, AB, seed=1)])
    assert router.follow(fold) == names(A)
    fold.apply(1, [removed(A, seed=2)])
    assert router.follow(fold) == set()


def test_a_cleared_rank_leaves_the_others_alone() -> None:
    """Only what nobody else holds is removed; when nothing is left the delta says `cleared`."""
    fold, router = KvFold(MODEL), Router()
    fold.apply(0, [stored(AB, seed=1)])
    fold.apply(1, [stored(A, seed=2), stored(D, seed=2)])
    router.follow(fold)
    fold.apply(0, [Cleared()])
    delta = fold.take()
    assert delta == KvDelta(BLOCK, removed=tuple(names(AB)))
    fold.clear(1)
    assert fold.take() == KvDelta(BLOCK, cleared=True)


def test_the_nearest_tier_is_told_and_a_copy_below_survives_an_eviction() -> None:
    """Offloading tells hashes without tokens: they are named after the GPU's copy."""
    fold, router = KvFold(MODEL), Router()
    copy = stored(A, tier=KvTier.CPU, token_ids=(), block_size_tokens=0)
    (name,) = names(A)
    fold.apply(0, [stored(A), copy])
    router.follow(fold)
    assert router.tiers == {name: KvTier.GPU}
    fold.apply(0, [removed(A)])
    router.follow(fold)
    assert router.tiers == {name: KvTier.CPU}
    fold.apply(0, [stored(A, tier=KvTier.DISK, token_ids=()), removed(A, tier=KvTier.CPU)])
    router.follow(fold)
    assert router.tiers == {name: KvTier.DISK}
    fold.apply(0, [removed(A, tier=KvTier.DISK)])
    assert router.follow(fold) == set()


def test_layers_that_need_no_whole_prefix_neither_add_nor_remove() -> None:
    """In models of several layer groups one group with full attention speaks for the cache."""
    fold = folded(
        stored(A, group=1, whole_prefix=False),
        stored(AB, group=0),
        stored(AB, group=2),
        removed(A, group=1),
        removed(AB, group=2),
    )
    assert held(fold) == names(A, AB)


def test_the_number_of_blocks_is_bounded() -> None:
    """Beyond the bound blocks are dropped, and what is held stays right."""
    fold = KvFold(MODEL, max_blocks=2)
    fold.apply(0, [stored(ABC), stored(D)])
    router = Router()
    assert router.follow(fold) == names(A, AB)
    assert fold.surplus_blocks == 2
    fold.apply(0, [removed(AB), stored(D)])
    assert router.follow(fold) == names(A, D)


def test_a_delta_tells_the_net_change_only() -> None:
    """What came and went between two deltas is nobody's business."""
    fold = folded(stored(A))
    fold.take()
    fold.apply(0, [stored(D), removed(D), removed(A), stored(A)])
    assert fold.take() is None


def test_the_first_delta_says_cleared() -> None:
    """Routers may hold something from before the agent started."""
    assert KvFold(MODEL).take() == KvDelta(0, cleared=True)


def test_large_changes_come_in_pieces_that_add_up() -> None:
    """One message stays small however much there is to tell."""
    path = tuple(range(100))
    fold, router, sizes = folded(stored(path)), Router(), []
    while (delta := fold.take(max_blocks=30)) is not None:
        sizes.append(delta.blocks)
        router.apply(delta)
    assert sizes == [30, 30, 30, 10]
    assert set(router.tiers) == names(*(path[: i + 1] for i in range(100)))


def test_resync_tells_everything_anew() -> None:
    """A router that lost its state gets the same set as one that followed from the start."""
    fold, old, new = folded(stored(ABC), stored(D)), Router(), Router()
    old.follow(fold)
    fold.apply(0, [removed(D)])
    fold.resync()
    fold.apply(0, [removed(ABC)])
    delta = fold.take()
    assert delta is not None
    assert delta.cleared
    old.apply(delta)
    new.apply(delta)
    assert set(old.tiers) == set(new.tiers) == names(A, AB)


def test_one_engine_hash_for_two_contents_never_makes_one_pass_for_the_other() -> None:
    """SGLang did not mix the cache salt into its hashes: the second of the two is not known."""
    salted = stored(A, cache_salt="s")
    fold = folded(stored(A), salted)
    assert (held(fold), fold.unplaced_blocks) == (names(A), 1)
    assert held(folded(salted, stored(A))) == names(A, cache_salt="s")


def test_offloaded_copies_told_in_larger_pieces_are_known_by_their_hashes() -> None:
    """Then neither the size nor the tokens fit, but the GPU had told the same hashes before."""
    piece = stored(AB, tier=KvTier.CPU, block_size_tokens=2 * BLOCK, parent=None)
    fold, router = KvFold(MODEL), Router()
    fold.apply(0, [piece, stored(AB), piece, removed(A, AB)])
    assert router.follow(fold) == names(A, AB)
    assert set(router.tiers.values()) == {KvTier.CPU}
    assert fold.block_size_tokens == BLOCK


def test_blocks_of_another_size_are_not_mixed_in() -> None:
    """A chain has one block size."""
    odd = Stored(hashes=(5,), parent=None, token_ids=(1, 2), block_size_tokens=2)
    fold = folded(stored(A), odd)
    assert (held(fold), fold.unplaced_blocks, fold.block_size_tokens) == (names(A), 1, BLOCK)
    assert Removed(hashes=(engine_hash(A),)) == removed(A)
