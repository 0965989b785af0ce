"""Prompts without roles, as completions and embeddings have them: a string, token ids, or a list of either."""

from __future__ import annotations

from collections.abc import Sequence, Sized
from dataclasses import dataclass
from typing import Any

from extproc.api.body import MAX_MESSAGES, Body, BodyError


@dataclass(frozen=True, slots=True)
class Prompts:
    """All prompts of one body: their text, their token ids, and how many there are."""

    pieces: tuple[bytes, ...]
    token_ids: Sequence[int]
    count: int
    longest_share: float = 1.0  # of all tokens that stand in the longest of them

    def countable(self) -> tuple[bytes, ...] | None:
        """The text of one prompt; None if there are several, or token ids, which are counted already."""
        return self.pieces if self.count == 1 and self.pieces else None


def prompts_of(body: Body, name: str) -> Prompts:
    """Prompts in a field: a string, token ids, or a list of strings and lists of token ids. Raises BodyError."""
    value = body.get(name)
    if isinstance(value, str):
        return Prompts((value.encode(),), (), 1)
    if not isinstance(value, list) or not value:
        raise _unknown(name)
    types = set(map(type, value))
    if types == {int}:
        return Prompts((), value, 1)
    if len(value) > MAX_MESSAGES:
        raise BodyError(f"'{name}' must not have more than {MAX_MESSAGES} prompts.", name)
    if types == {str}:
        texts = tuple([text.encode() for text in value])
        return Prompts(texts, (), len(texts), longest_share(texts))
    if types == {list}:
        return Prompts((), _flat(value, name), len(value), longest_share(value))
    raise _unknown(name)


def longest_share(prompts: Sequence[Sized]) -> float:
    """Share of the longest in all; 1 if all are empty."""
    lengths = list(map(len, prompts))
    return max(lengths, default=0) / (sum(lengths) or 1) or 1.0


def _flat(lists: list[list[Any]], name: str) -> list[int]:
    token_ids = [token_id for ids in lists for token_id in ids]
    if not all(lists) or set(map(type, token_ids)) != {int}:
        raise _unknown(name)
    return token_ids


def _unknown(name: str) -> BodyError:
    return BodyError(f"'{name}' must be a string, token ids, or a non-empty array of strings or of token ids.", name)
