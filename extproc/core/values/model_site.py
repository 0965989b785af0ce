"""Where in a request's body its model is named."""

from __future__ import annotations

from dataclasses import dataclass

Span = tuple[int, int]
"""Begin and end of a part of a body, in bytes."""


@dataclass(frozen=True, slots=True)
class ModelSite:
    """Parts of a body, in order, in the place of each of which a name is to stand, between `before` and `after`.

    No parts: the body names no model and is to name none.
    """

    spans: tuple[Span, ...] = ()
    before: bytes = b""
    after: bytes = b""

    def filled(self, name: bytes) -> bytes:
        """What stands in the place of each part, for a name that is written as the body wants it."""
        return self.before + name + self.after
