"""The order in which an instance's blocks were last used, without a stamp for each.

Two lists of rows: `old`, each row once, least recently used first, and `recent`, every use since, some rows many times.
A row of `old` that was used since is told by a mark that the index keeps with the block's holders. `renew` folds the
recent uses into one list again; it costs a few nanoseconds a row, once in as many uses as it has rows.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from extproc.core.prefixes.block_table import Rows

_SMALL = 512  # uses that are never folded away


class TouchOrder:
    """Rows of one instance from the least to the most recently used."""

    def __init__(self) -> None:
        self._old: Rows = np.zeros(0, np.int32)
        self._next = 0  # of `old`: what lies before it was evicted or used since
        self._recent: Rows = np.zeros(64, np.int32)
        self._uses = 0

    def use(self, rows: Rows) -> None:
        """Rows are used, the least important first."""
        end = self._uses + len(rows)
        if end > len(self._recent):
            self._recent.resize(end + end // 4, refcheck=False)
        self._recent[self._uses : end] = rows
        self._uses = end

    def is_overdue(self, held_blocks: int) -> bool:
        """Whether the uses since the last `renew` weigh more than half of what is held."""
        return self._uses > held_blocks // 2 + _SMALL

    def oldest(self, count: int) -> Rows:
        """The next rows to look at for eviction; those that were used since are among them."""
        return self._old[self._next : self._next + count]

    def skip(self, count: int) -> None:
        """That many of `oldest` were evicted, or used since."""
        self._next += count

    def rest(self) -> Rows:
        """All that `oldest` has still to give."""
        return self._old[self._next :]

    def drop(self, rows: Rows) -> None:
        """Rows leave for another reason; only right after `renew`."""
        self._old = self._old[~np.isin(self._old, rows)]

    def recent(self) -> Rows:
        """Every use since, the latest last; of a row that was used again the last one counts."""
        return self._recent[: self._uses]

    def renew(self, unused: npt.NDArray[np.bool_], recent: Rows) -> None:
        """Start again from the rest that was not used since, followed by `recent`."""
        self._old = np.concatenate((self.rest()[unused], recent))
        self._next = self._uses = 0
        self._recent = np.zeros(64, np.int32)
