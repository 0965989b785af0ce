"""Tells an engine that rests from one whose KV events do not arrive: this one works, by its own metrics.

An engine that computes tokens fills blocks, and tells of them. Few tokens prove nothing: a prompt that is held as a
whole is counted too, and some engines tell of a request's blocks only when it ends. A replay that shows that nothing
was missed counts as word of the engine.
"""

from __future__ import annotations

PROOF_TOKENS = 16_384  # computed or read from the cache: several long prompts, or a minute of a long answer alone
PATIENCE_S = 30.0  # above the time between two looks of a listener at the replay endpoint, and a replay's own


class KvSilence:
    """What one incarnation's engine has worked since it was heard last. Times are on one clock, in seconds."""

    def __init__(self, patience_s: float = PATIENCE_S) -> None:
        self._patience_s = patience_s
        self._work_done: float | None = None
        self._work_then: float | None = None  # when it was heard last
        self._heard = -1
        self._heard_at_s = float("-inf")

    def worked(self, work_done: float | None) -> None:
        """Take in the engine's count of tokens; None where it does not tell."""
        self._work_done = work_done
        if self._work_then is None:
            self._work_then = work_done

    def look(self, heard: int, now: float) -> bool:
        """Whether its events must be thought lost; `heard` counts all word of it."""
        if heard != self._heard:
            self._heard, self._heard_at_s, self._work_then = heard, now, self._work_done
        if self._work_done is None or self._work_then is None:
            return False
        return self._work_done - self._work_then >= PROOF_TOKENS and now - self._heard_at_s > self._patience_s
