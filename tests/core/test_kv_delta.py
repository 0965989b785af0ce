"""Deltas of KV blocks: what is written is read again, and nothing else is taken for one."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.core.prefixes.kv_delta import KvDelta, KvDeltaError, KvTier, decode, encode, merged, pieces

HASHES = st.lists(st.integers(0, (1 << 64) - 1), max_size=200).map(tuple)
DELTAS = st.builds(
    KvDelta,
    block_size_tokens=st.integers(0, 1 << 20),
    cleared=st.booleans(),
    gpu=HASHES,
    cpu=HASHES,
    disk=HASHES,
    removed=HASHES,
)


@given(DELTAS)
def test_a_delta_that_was_written_is_read_unchanged(delta: KvDelta) -> None:
    """Any delta survives its written form."""
    assert decode(encode(delta)) == delta


@given(DELTAS)
def test_a_delta_takes_at_most_ten_bytes_a_block_beside_a_few(delta: KvDelta) -> None:
    """8 bytes a block, and a head that does not grow with them."""
    assert len(encode(delta)) <= 8 * delta.blocks + 1 + 3 + 4 * 2


@pytest.mark.parametrize(("blocks", "most_bytes"), [(1, 11), (2, 20), (1000, 10_000)])
def test_small_deltas_are_small(blocks: int, most_bytes: int) -> None:
    """A block alone takes 11 bytes, from two on it is at most 10 a block."""
    assert len(encode(KvDelta(16, gpu=tuple(range(blocks))))) <= most_bytes


@given(st.binary(max_size=64))
def test_bytes_that_are_no_delta_raise_the_declared_error(data: bytes) -> None:
    """Whatever comes out of Redis, one error is all that can happen."""
    try:
        delta = decode(data)
    except KvDeltaError:
        return
    assert decode(encode(delta)) == delta


@given(DELTAS, st.data())
def test_a_delta_that_was_cut_is_refused(delta: KvDelta, data: st.DataObject) -> None:
    """No prefix of a delta is a delta."""
    written = encode(delta)
    with pytest.raises(KvDeltaError):
        decode(written[: data.draw(st.integers(0, len(written) - 1))])


def test_a_delta_of_a_later_version_is_refused() -> None:
    """A router of this version must not guess."""
    with pytest.raises(KvDeltaError, match="version"):
        decode(bytes([2 << 5, 16]))


def test_the_written_form_is_what_the_documentation_says() -> None:
    """Other programs write it too: the bytes are part of the contract."""
    delta = KvDelta(16, cleared=True, gpu=(1,), removed=(2, 3))
    assert encode(delta) == (
        bytes([0b001_1001_1, 16, 1, 2])
        + (1).to_bytes(8, "little")
        + (2).to_bytes(8, "little")
        + (3).to_bytes(8, "little")
    )
    assert delta.stored[KvTier.GPU] == (KvTier.GPU, (1,))


def placed(cleared: bool, places: dict[int, int]) -> KvDelta:
    """A delta over few blocks, none of which stands in two of its lists."""
    lists = [tuple(block for block, place in places.items() if place == number) for number in range(4)]
    return KvDelta(16, cleared, *lists)


FEW_BLOCKS = st.builds(placed, st.booleans(), st.dictionaries(st.integers(0, 9), st.integers(0, 3)))


@given(st.lists(FEW_BLOCKS, min_size=1, max_size=6), st.integers(1, 5))
def test_merged_and_cut_to_pieces_deltas_do_the_same(several: list[KvDelta], most: int) -> None:
    """As one by one, whatever instance they are applied to."""

    def applied(some: Iterable[KvDelta]) -> dict[int, KvTier]:
        held = {1: KvTier.GPU, 2: KvTier.CPU}
        for delta in some:
            if delta.cleared:
                held.clear()
            for tier, blocks in delta.stored:
                held.update(dict.fromkeys(blocks, tier))
            for block in delta.removed:
                held.pop(block, None)
        return held

    cut = list(pieces(merged(several), most))
    assert applied(cut) == applied(several)
    assert all(piece.blocks <= most for piece in cut)
