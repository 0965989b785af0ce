"""Several routers' dumps become one."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.core.prefixes.prefix import PrefixIndex
from extproc.core.prefixes.prefix_merge import merged_dumps
from tests.core.builders import blocks


def dump(*words: int) -> bytes:
    return struct.pack(f"<{len(words)}Q", *words)


@pytest.mark.parametrize(
    ("dumps", "merged"),
    [
        ((), dump()),
        ((dump(),), dump()),
        ((dump(1, 2, 3),), dump(1, 2, 3)),
        ((dump(1, 2, 3), dump(), dump(1, 2, 3)), dump(1, 2, 3)),
        ((dump(1, 2, 3), dump(9)), dump(1, 2, 9, 3)),
        ((dump(1, 2, 3), dump(3, 1)), dump(2, 1, 3)),
        ((dump(2**64 - 1), dump(0)), dump(0, 2**64 - 1)),
    ],
)
def test_a_block_is_as_recent_as_the_router_that_used_it_last_knows(dumps: tuple[bytes, ...], merged: bytes) -> None:
    """The least recent come first, each once."""
    assert merged_dumps(dumps) == merged


@given(st.lists(st.lists(st.tuples(st.integers(1, 4), st.integers(1, 12)), max_size=8), min_size=1, max_size=4))
def test_whatever_routers_know_is_known_and_no_chain_is_broken(sent: list[list[tuple[int, int]]]) -> None:
    """Also when the one that starts has room for a part only: then tails are missing, never heads."""
    indexes = [PrefixIndex(1000) for _ in sent]
    for index, prompts in zip(indexes, sent, strict=True):
        for start, count in prompts:
            index.insert("a", blocks(start, count), 1000)
    merged = merged_dumps([index.dump("a") for index in indexes])
    whole = PrefixIndex(1000)
    whole.load("a", merged)
    longest = {start: max(i.matches(blocks(start, 12)).get("a", 0) for i in indexes) for start in range(1, 5)}
    assert {start: whole.matches(blocks(start, 12)).get("a", 0) for start in range(1, 5)} == longest
    part = PrefixIndex(1000)
    part.load("a", merged[-8 * 10 :])
    assert sum(part.matches(blocks(start, 12)).get("a", 0) for start in range(1, 5)) == min(10, len(merged) // 8)


def test_what_is_no_dump_is_told() -> None:
    """Bytes come from Redis."""
    with pytest.raises(ValueError, match=r"multiple of element size|buffer size"):
        merged_dumps([b"seven b"])
