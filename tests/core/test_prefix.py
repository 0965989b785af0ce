"""The prefix index: contiguous hits, bounded memory, nothing left of what was forgotten."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from extproc.core.prefix import PrefixIndex
from extproc.core.prefix_chain import BLOCK_BYTES, MAX_BLOCKS, byte_chain, token_chain
from tests.core.builders import blocks


def test_equal_beginnings_have_equal_hashes_and_the_rest_differs() -> None:
    shared, tails = b"s" * (3 * BLOCK_BYTES), (b"a" * BLOCK_BYTES, b"b" * BLOCK_BYTES)
    one, two = (byte_chain([shared, tail], "model") for tail in tails)
    assert len(one) == len(two) == 4
    assert one[:3] == two[:3]
    assert one[3] != two[3]


def test_how_a_prompt_is_cut_into_pieces_does_not_matter() -> None:
    text = bytes(range(256)) * 5
    assert byte_chain([text], "m") == byte_chain([text[:7], text[7:900], text[900:]], "m")


def test_models_share_nothing() -> None:
    text = b"x" * 1000
    assert not set(byte_chain([text], "one")) & set(byte_chain([text], "two"))


def test_the_same_block_after_another_beginning_is_another_block() -> None:
    block = b"x" * BLOCK_BYTES
    assert byte_chain([b"a" * BLOCK_BYTES, block], "m")[1] != byte_chain([b"b" * BLOCK_BYTES, block], "m")[1]


def test_token_blocks_have_the_engines_own_size() -> None:
    ids = list(range(100))
    assert len(token_chain(ids, "m", 16)) == 6
    assert token_chain(ids[:40], "m", 16) == token_chain(ids, "m", 16)[:2]
    assert token_chain([1, *ids[1:]], "m", 16)[0] != token_chain(ids, "m", 16)[0]


def test_a_hit_ends_at_the_first_gap_of_each_instance() -> None:
    index, prefix = PrefixIndex(), blocks(1, 6)
    index.insert("whole", prefix, 100)
    index.insert("head", prefix[:2], 100)
    index.insert("tail", prefix[3:], 100)
    assert index.matches(prefix) == {"whole": 6, "head": 2}
    assert index.matches(()) == {}


def test_beyond_its_capacity_the_oldest_tail_leaves_first() -> None:
    index = PrefixIndex()
    index.insert("a", blocks(1, 6), 8)
    index.insert("a", blocks(2, 4), 8)
    assert index.matches(blocks(1, 6)) == {"a": 4}
    assert index.matches(blocks(2, 4)) == {"a": 4}
    assert index.size("a") == 8


def test_a_hundred_thousand_prompts_stay_within_the_capacity() -> None:
    index = PrefixIndex()
    for number in range(100_000):
        index.insert("a", (number,), 1000)
    assert index.size("a") == 1000


def test_an_instance_that_is_forgotten_leaves_nothing_and_its_place_is_used_again() -> None:
    index, prefix = PrefixIndex(), blocks(1, 3)
    for name in ("a", "b", "c"):
        index.insert(name, prefix, 10)
    index.forget("b")
    assert index.matches(prefix) == {"a": 3, "c": 3}
    index.insert("d", prefix[:1], 10)
    assert index.matches(prefix) == {"a": 3, "c": 3, "d": 1}


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 3), st.integers(1, 6), st.booleans()), max_size=40))
def test_the_index_agrees_with_a_plain_set_per_instance(steps: list[tuple[str, int, int, bool]]) -> None:
    index, plain = PrefixIndex(), {name: set[int]() for name in "abc"}
    for name, start, count, forget in steps:
        if forget:
            index.forget(name)
            plain[name].clear()
        else:
            index.insert(name, blocks(start, count), 1000)
            plain[name].update(blocks(start, count))
    for start in range(4):
        prefix = blocks(start, 6)
        for name, held in plain.items():
            depth = next((n for n, block in enumerate(prefix) if block not in held), len(prefix))
            assert index.matches(prefix).get(name, 0) == depth


def test_a_chain_ends_where_prompts_are_longer_than_any_context() -> None:
    text = bytes(range(256)) * (BLOCK_BYTES * (MAX_BLOCKS + 9) // 256)
    assert len(byte_chain([text], "m")) == MAX_BLOCKS
    assert len(token_chain(range(MAX_BLOCKS + 9), "m", 1)) == MAX_BLOCKS
