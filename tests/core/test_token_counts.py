"""Short, long and sampled texts are counted in three ways, and all of them as one would count byte by byte."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from extproc.core.prefixes.prefix_chain import BLOCK_BYTES, MAX_BLOCKS, byte_chain, chain_seed
from extproc.core.tokens.token_counts import COUNT_NAMES, SAMPLE_BYTES, count_classes

LETTERS = "abAB 19\n\t.,:é漢и"


def kind(byte: int) -> str:
    """Class of a byte, "" of one that continues a character."""
    if byte >= 0x80:
        return "" if byte < 0xC0 else "cjk" if 0xE3 <= byte <= 0xED else "other"
    char = chr(byte)
    if char.isalpha():
        return "lower" if char.islower() else "upper"
    if char.isdigit():
        return "digit"
    return "blank" if char in " \t" else "line_end" if char in "\r\n" else "symbol"


def one_by_one(text: bytes, pieces: int) -> dict[str, int]:
    """The plain form of all counts."""
    kinds = ["", *map(kind, text)]
    pairs = list(pairwise(kinds))
    total = Counter(kinds[1:])
    runs = Counter(each for before, each in pairs if each != before)
    letters = ("lower", "upper")
    return {
        "requests": 1,
        "pieces": pieces,
        "letter_runs": sum(each in letters and before not in letters for before, each in pairs),
        "lower": total["lower"],
        "upper": total["upper"],
        "camel": pairs.count(("lower", "upper")),
        "digit_runs": runs["digit"],
        "digits": total["digit"],
        "blank_runs": runs["blank"],
        "more_blanks": total["blank"] - runs["blank"],
        "line_ends": runs["line_end"],
        "more_line_ends": total["line_end"] - runs["line_end"],
        "symbol_runs": runs["symbol"],
        "more_symbols": total["symbol"] - runs["symbol"],
        "cjk": total["cjk"],
        "other": total["other"],
    }


@given(st.one_of(st.binary(max_size=40), st.text(LETTERS, max_size=40).map(str.encode)), st.sampled_from([1, 40, 300]))
def test_counts_are_those_of_a_count_byte_by_byte(part: bytes, times: int) -> None:
    """Whatever the bytes are, and on both sides of the length from which arrays are used; longer ones are sampled."""
    text = (part * times)[:SAMPLE_BYTES]
    counts = count_classes([text[:7], text[7:]])
    assert dict(zip(COUNT_NAMES, counts, strict=True)) == one_by_one(text, 2)
    assert {type(count) for count in counts} == {int}


@pytest.mark.parametrize("text", ["Ab cD 12, 345!\n\n", "你好 é x9 "])
def test_a_sampled_text_of_one_pattern_has_the_counts_of_the_pattern_by_its_length(text: str) -> None:
    """As far as the joints between windows let it."""
    whole = text.encode() * (16 * SAMPLE_BYTES // len(text.encode()))
    found, true = count_classes([whole[:99], whole[99:]]), one_by_one(whole, 2)
    for name, count in zip(COUNT_NAMES, found, strict=True):
        assert count == pytest.approx(true[name], rel=0.05, abs=len(whole) / 50)


@pytest.mark.parametrize("size", [0, BLOCK_BYTES - 1, BLOCK_BYTES, 64 * BLOCK_BYTES, 65 * BLOCK_BYTES + 1, 200_000])
def test_a_chain_is_made_block_after_block_each_with_the_hash_before_it(size: int) -> None:
    """However many of them are cut at once: other processes and earlier versions know blocks by these names."""
    text = bytes(number * 7 % 251 for number in range(size))
    parent, names = chain_seed("s"), []
    for start in range(0, size - BLOCK_BYTES + 1, BLOCK_BYTES):
        parent = xxhash.xxh3_64_intdigest(text[start : start + BLOCK_BYTES], parent)
        names.append(parent)
    assert byte_chain([text[:300], text[300:]], "s") == tuple(names)


def test_a_chain_ends_at_its_longest() -> None:
    """What follows has no name."""
    text = bytes((MAX_BLOCKS + 3) * 4)
    assert len(byte_chain([text], "s", 4)) == MAX_BLOCKS
