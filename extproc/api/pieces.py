"""A body in pieces that lie elsewhere in memory: bytes are put between them, and it is cut anew, without a copy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from extproc.api.body import Chunk
from extproc.core.values.model_site import Span

Pieces = tuple[Chunk, ...]
"""A body, from its beginning to its end."""


def size_of(pieces: Sequence[Chunk]) -> int:
    """Its length in bytes."""
    return sum(map(len, pieces))


def spliced(chunks: Sequence[Chunk], spans: Sequence[Span], text: bytes) -> Pieces:
    """The body with a text in place of these parts of it, which are in order."""
    left, at = _Left(chunks), 0
    pieces: list[Chunk] = []
    for start, end in spans:
        pieces += left.take(start - at)
        pieces.append(text)
        left.take(end - start)
        at = end
    pieces += left.take(size_of(chunks) - at)
    return tuple(pieces)


def cut(pieces: Sequence[Chunk], size_bytes: int, count: int) -> Iterator[Chunk]:
    """The body in so many chunks of that size; the last ones may be shorter, or empty. Only small pieces are copied."""
    left = _Left(pieces)
    for _ in range(count):
        parts = left.take(size_bytes)
        yield parts[0] if len(parts) == 1 else b"".join(parts)


class _Left:
    """What is left of a body that is taken apart from its beginning on."""

    def __init__(self, pieces: Sequence[Chunk]) -> None:
        self._following = iter(pieces)
        self._piece = memoryview(b"")

    def take(self, size_bytes: int) -> list[memoryview]:
        """So many bytes, or as many as there are."""
        taken: list[memoryview] = []
        while size_bytes > 0:
            if not self._piece:
                following = next(self._following, None)
                if following is None:
                    break
                self._piece = memoryview(following)
            part, self._piece = self._piece[:size_bytes], self._piece[size_bytes:]
            size_bytes -= len(part)
            if part:
                taken.append(part)
        return taken
