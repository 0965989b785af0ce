"""Server errors that one odd prompt may have caused, counted until they are too many in a row for that.

A 500 alone says little: some prompts make every engine answer so. But an instance that answers nothing else, and fast,
looks idle and draws all requests.
"""

from __future__ import annotations

_OUT = 3  # as many in a row are no odd prompt's: each request that is tried at several instances strikes each once


class Strikes:
    """Errors in a row by instance key, without a good answer between them."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}

    def strike(self, key: str) -> bool:
        """Count one more; whether they are enough to call the instance broken.

        From then on each is, until it answers well: on probation the first one tells.
        """
        count = self._counts[key] = min(_OUT, self._counts.get(key, 0) + 1)
        return count >= _OUT

    def clear(self, key: str) -> None:
        """It answered well, or its incarnation has ended."""
        self._counts.pop(key, None)
