"""Which beginnings of prompts come most often, told apart by their hashes alone: no prompt text is kept.

A hash of a chain names all blocks before it, so that a request counts for its beginnings of 1, 2, 4 … blocks. Only some
requests a second are looked at: the most frequent beginnings are seen all the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import exp
from typing import Any

from extproc.core.values.instance import id_of
from extproc.core.values.request import Request

_DEPTHS = (1, 2, 4, 8, 16, 32, 64)  # in blocks
_LOOK_EVERY_S = 0.02
_MEMORY_S = 60.0  # time constant with which counts are forgotten
_MOST = 512
_LEAST = 1.5  # times that it came lately; what came once says nothing
_SAME_SHARE = 0.8  # a longer beginning that comes nearly as often stands for a shorter one


@dataclass(slots=True)
class _Beginning:
    chain: tuple[int, ...]
    model: str
    tokens: float
    count: float
    at_s: float

    def count_at(self, now: float) -> float:
        """How often it came lately."""
        return self.count * exp((self.at_s - now) / _MEMORY_S)


class HotPrefixes:
    """At most `_MOST` beginnings; the rarest make room."""

    def __init__(self) -> None:
        self._beginnings: dict[int, _Beginning] = {}
        self._next_look_s = float("-inf")

    def note(self, request: Request, now: float) -> None:
        """A request is routed."""
        prefix = request.prefix
        if not prefix or now < self._next_look_s:
            return
        self._next_look_s = now + _LOOK_EVERY_S
        for depth in _DEPTHS:
            if depth > len(prefix):
                break
            known = self._beginnings.get(prefix[depth - 1])
            if known is None:
                tokens = depth * request.tokens_per_block
                self._beginnings[prefix[depth - 1]] = _Beginning(prefix[:depth], request.model, tokens, 1.0, now)
            else:
                known.count, known.at_s = known.count_at(now) + 1.0, now
        if len(self._beginnings) > _MOST:
            self._make_room(now)

    def top(
        self, most: int, now: float, matches: Callable[[tuple[int, ...]], Mapping[str, int]]
    ) -> list[dict[str, Any]]:
        """The most frequent ones with who holds how much of each, as plain values; `matches` is the index's."""
        found: list[_Beginning] = []
        ranked = sorted(self._beginnings.values(), key=lambda each: (each.count_at(now), each.tokens), reverse=True)
        for each in ranked:
            if len(found) == most or each.count_at(now) < _LEAST:
                break
            if not self._is_part_of_another(each, now):
                found.append(each)
        return [
            {
                "id": f"{each.chain[-1] & 0xFFFFFF:06x}",
                "model": each.model,
                "tokens": round(each.tokens),
                "lately": round(each.count_at(now), 1),
                "age_s": now - each.at_s,
                "held": {id_of(key): blocks / len(each.chain) for key, blocks in matches(each.chain).items()},
            }
            for each in found
        ]

    def _is_part_of_another(self, each: _Beginning, now: float) -> bool:
        depth, least = len(each.chain), _SAME_SHARE * each.count_at(now)
        return any(
            len(other.chain) > depth and other.chain[depth - 1] == each.chain[-1] and other.count_at(now) >= least
            for other in self._beginnings.values()
        )

    def _make_room(self, now: float) -> None:
        ranked = sorted(self._beginnings.items(), key=lambda item: item[1].count_at(now), reverse=True)
        self._beginnings = dict(ranked[: _MOST // 2])
