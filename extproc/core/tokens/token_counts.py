"""What a prompt's bytes look like: counts of byte classes and of the runs that they form, a model's tokens aside.

BPE tokenizers first split text where its character classes change (a word with the blank before it, a group of digits,
a run of symbols, a line's end) and then merge within these parts. So a part costs about one token for its start and a
fraction of one for each byte that follows; that fraction depends on the vocabulary and is learned in `tokens`.
Base64 and hexadecimal text need no class of their own: their many short runs of letters and digits tell them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

SAMPLE_BYTES = 16_384  # longer prompts are counted by sample
_WINDOW_BYTES = 128
_WINDOWS = np.arange(SAMPLE_BYTES // _WINDOW_BYTES, dtype=np.float64)
_GOLDEN = 0.618_033_988_749_895  # spreads the windows' phases evenly: no period of the text is in step with them
_PHASES = _WINDOWS * _GOLDEN % 1.0
_ARRAYS_FROM_BYTES = 3072  # of text: arrays take less time than big integers from here on

Counts = tuple[int, ...]
"""One number for each name of `COUNT_NAMES`, in that order."""

COUNT_NAMES = (
    "requests",  # always 1: what a chat template adds once
    "pieces",  # what it adds for every message
    "letter_runs",
    "lower",
    "upper",
    "camel",  # a capital after a small letter
    "digit_runs",
    "digits",
    "blank_runs",
    "more_blanks",  # after the first of a run
    "line_ends",  # runs of line ends
    "more_line_ends",
    "symbol_runs",
    "more_symbols",
    "cjk",  # characters: UTF-8 lead bytes E3 to ED, kana and Hangul included
    "other",  # characters of all other scripts
)

_LOWER, _UPPER, _DIGIT, _BLANK, _LINE_END, _SYMBOL, _CJK, _OTHER = range(8)  # bit numbers


def _class_bits(byte: int) -> int:
    """One bit for the class of a byte; none for the bytes that continue a UTF-8 character."""
    char = chr(byte)
    if byte >= 0x80:
        return 0 if byte < 0xC0 else 1 << (_CJK if 0xE3 <= byte <= 0xED else _OTHER)
    if char.islower():
        return 1 << _LOWER
    if char.isupper():
        return 1 << _UPPER
    if char.isdigit():
        return 1 << _DIGIT
    if char in " \t":
        return 1 << _BLANK
    return 1 << (_LINE_END if char in "\r\n" else _SYMBOL)


_CLASSES = bytes(map(_class_bits, range(256)))
_MASKS = tuple(int.from_bytes(bytes([1 << bit]) * SAMPLE_BYTES, "little") for bit in range(8))
_BITS = np.left_shift(1, np.arange(8)).astype(np.uint8)
_LOWERS, _UPPERS, _LETTER = _BITS[_LOWER], _BITS[_UPPER], _BITS[_LOWER] | _BITS[_UPPER]
_COUNTED = _BITS[[_UPPER, _DIGIT, _BLANK, _LINE_END, _SYMBOL], np.newaxis]
_COUNTED_RUNS, _OTHERS = _COUNTED[1:], _BITS[[_LOWER, _CJK, _OTHER], np.newaxis]


def count_classes(pieces: Sequence[bytes]) -> Counts:
    """Counts of a prompt given as parts of UTF-8 text (broken UTF-8 is counted all the same).

    Up to `SAMPLE_BYTES` are counted exactly; of longer prompts so many are, in windows at fixed and evenly spread
    places, and the counts are scaled up. The same prompt always gives the same counts.
    """
    return count_text(b"".join(pieces), len(pieces))


def count_text(text: bytes, pieces: int) -> Counts:
    """The same of a prompt whose parts, so many, are joined already."""
    if len(text) <= SAMPLE_BYTES:
        return (1, pieces, *_count(text))
    scale = len(text) / SAMPLE_BYTES
    return (1, pieces, *[round(scale * count) for count in _count(_sample(text))])


def _sample(text: bytes) -> bytes:
    """`SAMPLE_BYTES` of a longer text. Windows are joined bare: a joint changes class about as often as text does."""
    stride_bytes = len(text) / len(_WINDOWS)
    starts = (_WINDOWS * stride_bytes + _PHASES * (stride_bytes - _WINDOW_BYTES)).astype(np.int64).tolist()
    return b"".join([text[start : start + _WINDOW_BYTES] for start in starts])


def _count(text: bytes) -> tuple[int, ...]:
    """Counts of one text of at most `SAMPLE_BYTES`."""
    return _count_by_arrays(text) if len(text) >= _ARRAYS_FROM_BYTES else _count_by_integers(text)


def _count_by_arrays(text: bytes) -> tuple[int, ...]:
    """Counts of one text, by an array with a byte of class bits for each of its bytes."""
    padded: NDArray[np.uint8] = np.frombuffer(b"\0" + text.translate(_CLASSES), np.uint8)
    classes, before = padded[1:], padded[:-1]
    starts = classes & ~before  # where a run of one class begins
    letter_starts = _true(((classes & _LETTER) != 0) & ((before & _LETTER) == 0))
    camel = _true((classes == _UPPERS) & (before == _LOWERS))
    of_class = [_true(marks) for marks in classes == _COUNTED]
    runs = [_true(marks) for marks in starts == _COUNTED_RUNS]
    others = [len(text) - sum(of_class), 0, 0] if text.isascii() else [_true(marks) for marks in classes == _OTHERS]
    return _in_order(letter_starts, camel, of_class, runs, others)


def _true(marks: NDArray[np.bool_]) -> int:
    """How many are set, as Python's own number: products with NumPy's take ten times as long."""
    return int(np.count_nonzero(marks))


def _count_by_integers(text: bytes) -> tuple[int, ...]:
    """Counts of one text of at most `SAMPLE_BYTES`.

    The whole text is one integer with a byte of class bits for each of its bytes (the first byte lowest), so that a
    few big-integer operations and population counts in C look at all bytes at once.
    """
    classes = int.from_bytes(text.translate(_CLASSES), "little")
    before = classes << 8  # at each byte the class of the one before it
    starts = classes ^ (classes & before)  # where a run of one class begins
    letters = (classes | classes >> 1) & _MASKS[_LOWER]
    letter_starts = letters ^ (letters & letters << 8)
    camel = before & (classes >> 1) & _MASKS[_LOWER]
    of_class = [(classes & _MASKS[bit]).bit_count() for bit in (_UPPER, _DIGIT, _BLANK, _LINE_END, _SYMBOL)]
    runs = [(starts & _MASKS[bit]).bit_count() for bit in (_DIGIT, _BLANK, _LINE_END, _SYMBOL)]
    if text.isascii():
        others = [len(text) - sum(of_class), 0, 0]
    else:
        others = [(classes & _MASKS[bit]).bit_count() for bit in (_LOWER, _CJK, _OTHER)]
    return _in_order(letter_starts.bit_count(), camel.bit_count(), of_class, runs, others)


def _in_order(
    letter_starts: int, camel: int, of_class: Sequence[int], runs: Sequence[int], others: Sequence[int]
) -> tuple[int, ...]:
    """Counts of a text in the order of `COUNT_NAMES`."""
    upper, digits, blanks, line_ends, symbols = of_class
    digit_runs, blank_runs, line_end_runs, symbol_runs = runs
    lower, cjk, other = others
    return (
        letter_starts,
        lower,
        upper,
        camel,
        digit_runs,
        digits,
        blank_runs,
        blanks - blank_runs,
        line_end_runs,
        line_ends - line_end_runs,
        symbol_runs,
        symbols - symbol_runs,
        cjk,
        other,
    )
