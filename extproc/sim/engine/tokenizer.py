"""A make-believe tokenizer: four bytes of UTF-8 are one token, so texts with a common start have common tokens.

About as many tokens as a real tokenizer makes of English, and no vocabulary: a token's id is its bytes read as a
number. A sequence is passed around as those bytes, 4 a token. What a chat template adds (who speaks, where a
message ends) are tokens that begin with 0xFF, a byte that no UTF-8 text contains.
"""

from __future__ import annotations

import sys
from array import array
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

TOKEN_BYTES = 4
_END_OF_MESSAGE = b"\xffend"
_ROLES = {"system": b"\xffsys", "user": b"\xffusr", "assistant": b"\xffast", "tool": b"\xfftol"}
_OTHER_ROLE = b"\xffrol"


def encode(text: str) -> bytes:
    """Tokens of a text; the last one is filled up with zeros. Lone surrogates, which JSON allows, become `?`."""
    data = text.encode("utf-8", "replace")
    return data + bytes(-len(data) % TOKEN_BYTES)


def encode_chat(messages: Iterable[tuple[str, str]]) -> bytes:
    """Tokens of (role, text) messages as a chat template lays them out, up to where the assistant shall speak.

    A conversation that goes on begins with the tokens of the one before and of its answer.
    """
    parts: list[bytes] = []
    for role, text in messages:
        parts += (_ROLES.get(role, _OTHER_ROLE), encode(text), _END_OF_MESSAGE)
    parts.append(_ROLES["assistant"])
    return b"".join(parts)


def from_ids(ids: Sequence[int]) -> bytes:
    """Tokens given by number; OverflowError or TypeError if one is not an unsigned 32-bit integer."""
    numbers = array("I", ids)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers.tobytes()


def to_ids(tokens: bytes) -> list[int]:
    """Numbers of tokens."""
    numbers = array("I", tokens)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers.tolist()


def count(tokens: bytes) -> int:
    """Number of tokens."""
    return len(tokens) // TOKEN_BYTES
