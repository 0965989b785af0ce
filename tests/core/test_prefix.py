"""The prefix index: contiguous hits, bounded memory, nothing left of what was forgotten."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.core.prefixes.prefix import PrefixIndex
from extproc.core.prefixes.prefix_chain import BLOCK_BYTES, MAX_BLOCKS, byte_chain, token_chain
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


def test_forty_times_as_many_prompts_as_there_is_room_for_stay_within_it() -> None:
    """Known fault C4: distinct prompts of one block each."""
    index = PrefixIndex(max_entries=500)
    for number in range(20_000):
        index.insert("abc"[number % 3], (number,), 200)
    assert index.entries <= 500
    assert max(index.size(key) for key in "abc") <= 200
    assert index.matches((19_999,)) == {"b": 1}


def test_the_cap_of_the_process_is_kept_at_the_expense_of_the_largest_instance() -> None:
    index = PrefixIndex(max_entries=1000)
    index.insert("small", blocks(1, 100), 10_000)
    index.insert("large", blocks(2, 700), 10_000)
    index.insert("large", blocks(3, 300), 10_000)
    assert index.entries == 1000
    assert index.size("small") == 100
    assert index.matches(blocks(2, 700)) == {"large": 600}
    assert index.matches(blocks(3, 300)) == {"large": 300}


def test_beyond_the_cap_an_engines_blocks_displace_learned_ones_and_then_are_refused() -> None:
    index = PrefixIndex(max_entries=100)
    index.insert("learned", blocks(1, 80), 1000)
    index.store("exact", blocks(2, 90))
    assert index.matches(blocks(1, 80)) == {"learned": 10}
    index.store("exact", blocks(3, 30))
    assert index.entries == 100
    assert index.matches(blocks(3, 30)) == {"exact": 10}
    assert index.refused_blocks == 20


def test_a_restart_under_load_forgets_at_once_and_rows_are_used_again() -> None:
    """Known fault C1, again and again: entries go at once, and what is kept in memory does not grow."""
    index = PrefixIndex()
    for number in range(300):
        index.insert("a", blocks(2 * number, 500), 10_000)
        index.insert("b", blocks(2 * number + 1, 20), 10_000)
        index.forget("a")
        assert index.size("a") == 0
        assert index.matches(blocks(2 * number, 500)) == {}
    assert index.entries == index.size("b") == 6000
    assert index.rows < 6000 + 5 * 500


def test_an_exact_instance_holds_what_its_engine_says_and_routing_adds_nothing() -> None:
    index, prefix = PrefixIndex(), blocks(1, 6)
    index.insert("a", prefix, 100)
    index.store("a", prefix[:3])
    index.insert("a", prefix, 100)
    assert index.matches(prefix) == {"a": 3}
    index.store("a", prefix[4:])
    index.remove("a", (*prefix[1:2], 77))
    assert index.matches(prefix) == {"a": 1}
    index.store("a", prefix[1:2])
    index.store("a", prefix[3:4])
    assert index.matches(prefix) == {"a": 6}


@pytest.mark.parametrize("exact", [False, True])
def test_a_dump_restores_an_instance_as_it_was(exact: bool) -> None:
    index, other = PrefixIndex(), PrefixIndex()
    for start, count in ((1, 5), (2, 5), (1, 3)):
        if exact:
            index.store("a", blocks(start, count))
        else:
            index.insert("a", blocks(start, count), 100)
    dumped = index.dump("a")
    assert len(dumped) == 10 * 8
    other.load("b", dumped, exact=exact)
    assert other.matches(blocks(2, 5)) == {"b": 5}
    if exact:
        other.insert("b", blocks(9, 1), 100)  # nothing is learned of it
        assert other.size("b") == 10
    else:
        assert other.dump("b") == dumped
        other.insert("b", blocks(3, 2), 10)  # the oldest are still the oldest, tails before heads
        assert other.matches(blocks(1, 5)) == {"b": 3}
    assert index.dump("unknown") == b""


def test_blocks_beyond_64_bits_and_torn_dumps_are_errors() -> None:
    index = PrefixIndex()
    for wrong in (-1, 2**64):
        with pytest.raises(OverflowError):
            index.matches((wrong,))
    with pytest.raises(ValueError, match="multiple"):
        index.load("a", b"1234567")


def test_a_thousand_instances_are_told_apart() -> None:
    index, prefix = PrefixIndex(), blocks(1, 40)
    for number in range(1024):
        index.insert(f"i-{number}", prefix[: 1 + number % 40], 100)
    assert index.matches(prefix) == {f"i-{number}": 1 + number % 40 for number in range(1024)}
    for number in range(0, 1024, 2):
        index.forget(f"i-{number}")
    assert index.matches(prefix) == {f"i-{number}": 1 + number % 40 for number in range(1, 1024, 2)}


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
