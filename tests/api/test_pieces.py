"""A body that is put together from pieces is what it would be if it were one, however it came."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from extproc.api.model_field import replaced
from extproc.api.pieces import cut, size_of, spliced

BODY = bytes(range(100))
EDGES = st.lists(st.integers(0, len(BODY)), max_size=8)


def chunks(cuts: list[int]) -> tuple[memoryview, ...]:
    return tuple(memoryview(BODY)[a:b] for a, b in pairwise([0, *sorted(cuts), len(BODY)]))


@given(EDGES, EDGES, st.binary(max_size=5))
def test_what_is_put_in_stands_where_it_stands_in_one_piece(cuts: list[int], edges: list[int], text: bytes) -> None:
    """Parts may be empty, or lie in several chunks, and chunks may be empty."""
    ordered = sorted(edges)
    spans = list(zip(ordered[::2], ordered[1::2], strict=False))
    pieces = spliced(chunks(cuts), spans, text)
    assert b"".join(pieces) == replaced(BODY, spans, text)
    assert size_of(pieces) == len(b"".join(pieces))


@given(EDGES, st.integers(1, 120))
def test_a_body_is_cut_anew_into_chunks_of_one_size(cuts: list[int], size: int) -> None:
    """The last ones are shorter, or empty."""
    count = len(BODY) // size + 2
    assert list(cut(chunks(cuts), size, count)) == [BODY[at * size : (at + 1) * size] for at in range(count)]


def test_nothing_is_copied_but_what_is_cut_out_of_several_pieces() -> None:
    """Neither when something is put in, nor when the body is cut."""
    text = b"new"
    pieces = spliced((memoryview(BODY),), [(10, 20)], text)
    assert [isinstance(piece, memoryview) and piece.obj is BODY for piece in pieces] == [True, False, True]
    whole, mixed, rest = cut(pieces, 8, 3)
    assert all(isinstance(chunk, memoryview) and chunk.obj is BODY for chunk in (whole, rest))
    assert mixed == BODY[8:10] + text + BODY[20:23]
