"""Learns how many requests an engine takes into one batch, where neither it nor the operator tells. Pure.

While requests wait although KV blocks are free, what keeps them out is the batch limit, so it equals the number that
run. A long prefill holds requests back too, for some looks; therefore only the highest number ever seen to run counts.
"""

from __future__ import annotations

from extproc.core.values.instance import Load

LOOKS_UNTIL_SURE = 8
_KV_USAGE_BELOW = 0.8  # from here on, missing blocks may be what keeps requests waiting


class BatchLimit:
    """Follows one incarnation of an engine; `limit` is None until it is sure."""

    def __init__(self, looks: int = LOOKS_UNTIL_SURE) -> None:
        self._looks = looks
        self._highest = 0  # that was ever seen to run
        self._full = 0  # looks in a row that found just so many running, others waiting, and KV blocks free
        self.limit: int | None = None

    def observe(self, load: Load) -> int | None:
        """Take the load of one look and return the limit as far as it is known now."""
        running = load.running
        if running is None:
            self._full = 0
            return self.limit
        if running > self._highest:  # contradicts a limit, and begins a new count
            self._highest, self._full, self.limit = running, 0, None
        kept_out = bool(load.waiting) and load.kv_usage is not None and load.kv_usage < _KV_USAGE_BELOW
        self._full = self._full + 1 if kept_out and running == self._highest else 0
        if running > 0 and self._full >= self._looks:
            self.limit = running
        return self.limit
