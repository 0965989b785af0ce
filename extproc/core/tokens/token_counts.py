"""What a prompt's bytes look like: counts of byte classes and of the runs that they form, a model's tokens aside.

BPE tokenizers first split text where its character classes change (a word with the blank before it, a group of digits,
a run of symbols, a line's end) and then merge within these parts. So a part costs about one token for its start and a
fraction of one for each byte that follows; that fraction depends on the vocabulary and is learned in `tokens`.
Base64 and hexadecimal text need no class of their own: their many short runs of letters and digits tell them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate

SAMPLE_BYTES = 16_384  # longer prompts are counted by sample
_WINDOW_BYTES = 128
_WINDOWS = SAMPLE_BYTES // _WINDOW_BYTES
_GOLDEN = (
    0.618_033_988_749_895  # spreads the windows' phases evenly, so that no period of the text is in step with them
)

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


def count_classes(pieces: Sequence[bytes]) -> Counts:
    """Counts of a prompt given as parts of UTF-8 text (broken UTF-8 is counted all the same).

    Up to `SAMPLE_BYTES` are counted exactly; of longer prompts so many are, in windows at fixed and evenly spread
    places, and the counts are scaled up. The same prompt always gives the same counts.
    """
    total_bytes = sum(map(len, pieces))
    if total_bytes <= SAMPLE_BYTES:
        return (1, len(pieces), *_count(b"".join(pieces)))
    scale = total_bytes / SAMPLE_BYTES
    return (1, len(pieces), *(round(scale * count) for count in _count(_sample(pieces))))


def _sample(pieces: Sequence[bytes]) -> bytes:
    """`SAMPLE_BYTES` of a longer text. Windows are joined bare: a joint changes class about as often as text does."""
    ends = list(accumulate(map(len, pieces)))
    stride_bytes = ends[-1] / _WINDOWS
    slack_bytes = stride_bytes - _WINDOW_BYTES
    parts: list[bytes] = []
    for window in range(_WINDOWS):
        start = int(window * stride_bytes + (window * _GOLDEN % 1.0) * slack_bytes)
        index = bisect_right(ends, start)
        offset = start - (ends[index - 1] if index else 0)
        wanted_bytes = _WINDOW_BYTES
        while wanted_bytes and index < len(pieces):
            part = pieces[index][offset : offset + wanted_bytes]
            parts.append(part)
            wanted_bytes -= len(part)
            index, offset = index + 1, 0
    return b"".join(parts)


def _count(text: bytes) -> tuple[int, ...]:
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
    upper, digits, blanks, line_ends, symbols = (
        (classes & _MASKS[bit]).bit_count() for bit in (_UPPER, _DIGIT, _BLANK, _LINE_END, _SYMBOL)
    )
    digit_runs, blank_runs, line_end_runs, symbol_runs = (
        (starts & _MASKS[bit]).bit_count() for bit in (_DIGIT, _BLANK, _LINE_END, _SYMBOL)
    )
    if text.isascii():
        lower, cjk, other = len(text) - upper - digits - blanks - line_ends - symbols, 0, 0
    else:
        lower, cjk, other = ((classes & _MASKS[bit]).bit_count() for bit in (_LOWER, _CJK, _OTHER))
    return (
        letter_starts.bit_count(),
        lower,
        upper,
        camel.bit_count(),
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
