"""The KV block pool: what is cached, what is evicted, and that no block is ever lost."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.sim.engine.tokenizer import encode, encode_chat, from_ids, to_ids
from extproc.sim.physics.blocks import BlockPool, Holding, hash_chain


def hold(pool: BlockPool, hashes: list[int], tokens: int) -> Holding:
    """Admit a prompt as the scheduler does: take what is cached, the rest new, then make it known."""
    hits = pool.match(hashes, tokens)
    holding = pool.admit(hashes[:hits], pool.blocks_for(tokens) - pool.blocks_per_name * hits)
    assert holding is not None
    pool.commit(holding, hashes, tokens)
    return holding


def test_equal_prefixes_have_equal_hashes_and_one_changed_token_changes_all_that_follow() -> None:
    one = from_ids(list(range(64)))
    other = from_ids([*range(20), 999, *range(21, 64)])
    first, second = hash_chain(one, 16), hash_chain(other, 16)
    assert len(first) == 4
    assert first[0] == second[0]
    assert not set(first[1:]) & set(second[1:])


def test_equal_blocks_at_different_places_have_different_hashes() -> None:
    chain = hash_chain(from_ids([7] * 48), 16)
    assert len(set(chain)) == 3


def test_a_salt_separates_equal_prompts() -> None:
    tokens = from_ids(list(range(32)))
    assert not set(hash_chain(tokens, 16, b"a")) & set(hash_chain(tokens, 16, b"b"))


@pytest.mark.parametrize(("tokens", "blocks"), [(0, 0), (15, 0), (16, 1), (17, 1), (32, 2)])
def test_only_full_blocks_have_a_hash(tokens: int, blocks: int) -> None:
    assert len(hash_chain(from_ids(list(range(tokens))), 16)) == blocks


@given(st.text(), st.text(), st.text())
def test_texts_with_a_common_start_have_common_tokens(start: str, one: str, other: str) -> None:
    common = len(start.encode("utf-8", "replace")) // 4
    assert to_ids(encode(start + one))[:common] == to_ids(encode(start + other))[:common]


def test_a_conversation_that_goes_on_begins_with_the_tokens_of_the_one_before() -> None:
    before = encode_chat([("user", "how are you?")])
    after = encode_chat([("user", "how are you?"), ("assistant", "fine thanks."), ("user", "good")])
    assert after.startswith(before + b"fine thanks.")


@pytest.mark.parametrize(
    ("cached", "asked", "tokens", "hits"),
    [
        ([1, 2, 3], [1, 2, 3, 4], 64, 3),  # the longest common prefix
        ([1, 2, 3], [1, 9, 3], 64, 1),  # contiguous only
        ([1, 2, 3], [1, 2, 3], 49, 3),  # a token is left to compute
        ([1, 2, 3], [1, 2, 3], 48, 2),  # never the complete prompt
        ([], [1, 2], 64, 0),
    ],
)
def test_match_finds_the_longest_cached_prefix(cached: list[int], asked: list[int], tokens: int, hits: int) -> None:
    pool = BlockPool(10, 16)
    pool.release(hold(pool, cached, 16 * len(cached)))
    assert pool.match(asked, tokens) == hits


def test_freed_blocks_stay_cached_until_their_space_is_needed() -> None:
    pool = BlockPool(4, 16)
    pool.release(hold(pool, [1, 2, 3], 48))
    assert (pool.free_blocks, pool.used_blocks, pool.cached_blocks) == (4, 0, 3)
    assert pool.match([1, 2, 3], 64) == 3


def test_the_least_recently_used_goes_first_and_a_tail_before_its_head() -> None:
    pool = BlockPool(6, 16)
    old, recent = hold(pool, [1, 2, 3], 48), hold(pool, [4, 5, 6], 48)
    pool.release(old)
    pool.release(recent)
    assert pool.admit([], 2) is not None
    assert (pool.match([1, 2, 3], 64), pool.match([4, 5, 6], 64)) == (1, 3)
    assert pool.admit([], 2) is not None
    assert (pool.match([1, 2, 3], 64), pool.match([4, 5, 6], 64)) == (0, 2)
    assert pool.evicted_blocks == 4


def test_a_hit_makes_a_prefix_recent_again() -> None:
    pool = BlockPool(4, 16)
    pool.release(hold(pool, [1, 2], 32))
    pool.release(hold(pool, [3, 4], 32))
    pool.release(hold(pool, [1, 2, 9], 33))
    assert pool.admit([], 2) is not None
    assert (pool.match([1, 2], 64), pool.match([3, 4], 64)) == (2, 0)


def test_shared_blocks_count_once_and_stay_while_anyone_holds_them() -> None:
    pool = BlockPool(10, 16)
    one = hold(pool, [1, 2, 3], 50)
    other = hold(pool, [1, 2, 3], 50)
    assert (pool.held_blocks(one), pool.held_blocks(other), pool.used_blocks) == (4, 4, 5)
    pool.release(one)
    assert (pool.used_blocks, pool.free_blocks) == (4, 6)
    pool.release(other)
    assert pool.used_blocks == 0


def test_a_request_that_does_not_fit_changes_nothing() -> None:
    pool = BlockPool(4, 16)
    pool.release(hold(pool, [1, 2], 32))
    assert pool.admit([1, 2], 3) is None
    assert pool.admit([1, 2], 1, room_blocks=3) is None
    assert (pool.free_blocks, pool.cached_blocks) == (4, 2)


def test_the_cache_is_reset_only_when_nobody_holds_a_block() -> None:
    pool = BlockPool(4, 16)
    holding = hold(pool, [1, 2], 32)
    assert not pool.reset_cache()
    pool.release(holding)
    assert pool.reset_cache()
    assert (pool.match([1, 2], 64), pool.free_blocks) == (0, 4)


def test_a_name_of_several_blocks_is_cached_hit_and_evicted_as_a_whole() -> None:
    """Names of 4 blocks of 16 tokens: 200 tokens are 13 blocks, of which 3 names cover 12."""
    pool = BlockPool(20, 16, blocks_per_name=4)
    holding = hold(pool, [1, 2, 3, 4], 200)
    assert (pool.used_blocks, pool.cached_blocks, pool.held_blocks(holding)) == (13, 12, 13)
    pool.release(holding)
    assert (pool.free_blocks, pool.used_blocks, pool.cached_blocks) == (20, 0, 12)
    assert [pool.match([1, 2, 3], tokens) for tokens in (193, 192, 129, 128, 64)] == [3, 2, 2, 1, 0]
    assert pool.admit([1, 2], 12) is not None  # 8 woken, 8 blank: the third name goes for the last 4
    assert (pool.free_blocks, pool.evicted_blocks, pool.cached_blocks) == (0, 4, 8)


def test_one_missing_block_costs_a_whole_name() -> None:
    pool = BlockPool(9, 16, blocks_per_name=4)
    pool.release(hold(pool, [1, 2], 128))
    assert pool.admit([], 2) is not None
    assert (pool.evicted_blocks, pool.cached_blocks, pool.free_blocks) == (4, 4, 7)


def test_the_room_for_a_name_that_is_woken_counts_all_its_blocks() -> None:
    pool = BlockPool(10, 16, blocks_per_name=4)
    pool.release(hold(pool, [1, 2], 128))
    assert pool.admit([1, 2], 3) is None
    assert pool.admit([1, 2], 2) is not None


@pytest.mark.parametrize("per_name", [1, 2])
def test_a_listener_hears_of_every_piece_that_comes_and_goes(per_name: int) -> None:
    heard: list[tuple[str, int]] = []

    class Listener:
        def stored(self, chain: Sequence[int], index: int) -> None:
            heard.append(("stored", chain[index]))

        def removed(self, block: int) -> None:
            heard.append(("removed", block))

        def cleared(self) -> None:
            heard.append(("cleared", 0))

    pool = BlockPool(4 * per_name, 16, per_name)
    pool.log = Listener()
    pool.release(hold(pool, [1, 2, 3], 48 * per_name))
    pool.release(hold(pool, [1, 9], 32 * per_name))  # 1 and 9: the blank piece goes, nothing is evicted
    assert heard == [("stored", 1), ("stored", 2), ("stored", 3), ("stored", 9)]
    pool.release(hold(pool, [8, 7], 32 * per_name))
    assert heard[4:] == [("removed", 3), ("removed", 2), ("stored", 8), ("stored", 7)]
    pool.reset_cache()
    assert heard[8:] == [("cleared", 0)]


def test_a_chain_that_names_a_piece_twice_loses_no_block() -> None:
    pool = BlockPool(4, 16)
    holding = hold(pool, [5, 5, 6], 48)
    assert (pool.used_blocks, pool.cached_blocks, holding.own_blocks) == (3, 2, 1)
    pool.release(holding)
    again = hold(pool, [5, 5, 6], 49)
    pool.release(again)
    assert (pool.used_blocks, pool.free_blocks) == (0, 4)


@st.composite
def prompts(draw: st.DrawFn) -> list[int]:
    """Hash chains that branch: the n-th block's hash names the path that led to it."""
    path = draw(st.lists(st.integers(0, 1), max_size=6))
    return [int("1" + "".join(map(str, path[: i + 1])), 2) for i in range(len(path))]


@given(
    st.lists(st.tuples(prompts(), st.integers(0, 20), st.integers(0, 3)), max_size=60),
    st.sampled_from([1, 2, 3]),
    st.integers(0, 2),
)
def test_no_block_is_ever_lost_or_made(actions: list[tuple[list[int], int, int]], per_name: int, rest: int) -> None:
    pool = BlockPool(12 * per_name + rest, 4, per_name)
    held: list[Holding] = []
    for hashes, extra_tokens, action in actions:
        if action == 0 and held:
            pool.release(held.pop(extra_tokens % len(held)))
        elif action == 1 and held:
            pool.grow(held[extra_tokens % len(held)], 1)
        else:
            tokens = pool.name_tokens * len(hashes) + extra_tokens % 4 + 1
            hits = pool.match(hashes, tokens)
            holding = pool.admit(hashes[:hits], pool.blocks_for(tokens) - per_name * hits)
            if holding is not None:
                pool.commit(holding, hashes, tokens)
                held.append(holding)
        assert pool.free_blocks + pool.used_blocks == pool.total_blocks
        distinct = {block for holding in held for block in holding.shared}
        assert pool.used_blocks == per_name * len(distinct) + sum(holding.own_blocks for holding in held)
    for holding in held:
        pool.release(holding)
    assert pool.free_blocks == pool.total_blocks
