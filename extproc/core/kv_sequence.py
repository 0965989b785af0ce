"""Keeps one publisher's numbered frames in order: finds gaps, restarts and repetitions, and says what to ask for.

Rests on one fact: events that follow each other without a gap, taken in from an empty state on, never make a block
appear that the engine does not hold. So whatever cannot be proven to follow is preceded by a reset.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import msgspec

from extproc.core.kv_fold import Event, KvFold


class Frame(msgspec.Struct, frozen=True):
    """One message of a publisher."""

    seq: int
    ts: float  # the publisher's clock, s
    events: tuple[Event, ...]
    digest: int  # of its bytes: tells whether two frames are the same


class KvSequence:
    """Feeds one publisher's (one rank's) frames to a fold. Methods return the number to ask a replay from, or None.

    When a number is returned, ask the replay endpoint for all frames from there on, and hand the answer to `replayed`
    before anything else. Without a replay endpoint None is all they return, and a gap costs the rank's whole index.
    """

    def __init__(self, fold: KvFold, rank: int, *, can_replay: bool) -> None:
        self.gaps = 0  # numbers that did not follow, restarts included
        self.resets = 0  # times that everything was forgotten
        self._fold = fold
        self._rank = rank
        self._can_replay = can_replay
        self._last: Frame | None = None  # the last one taken in
        self._pending: Frame | None = None  # waits for a replay
        self._from_start = False  # the replay that was asked for is one of everything
        self._only_checks = False  # nothing speaks for a loss: a replay that fails proves none

    def connected(self) -> int | None:
        """A connection came up: frames may have been missed, and the engine may be another."""
        if self._can_replay:
            return self._ask()
        self._reset()
        return None

    def idle(self) -> int | None:
        """Nothing came for a while: frames that were lost at the end show in no later number."""
        start = self._ask() if self._can_replay else None
        self._only_checks = start is not None
        return start

    def live(self, frame: Frame) -> int | None:
        """Take in a frame that was published just now."""
        last = self._last
        if last is None:
            if frame.seq == 0 or not self._can_replay:
                self._take(frame)
                return None
        elif frame.seq == last.seq + 1:
            self._take(frame)
            return None
        elif frame.seq <= last.seq and frame.ts <= last.ts:
            return None  # seen already
        else:
            self.gaps += 1
            if frame.seq <= last.seq:
                self._reset()  # numbers began anew: another engine process
                if frame.seq == 0:
                    self._take(frame)
                    return None
        if self._can_replay:
            self._pending = frame
            return self._ask()
        self._reset()
        self._take(frame)
        return None

    def unreadable(self, seq: int) -> None:
        """A frame whose content is lost for good: go on behind it, with nothing known from before."""
        ts = self._last.ts if self._last is not None else 0.0
        self.gaps += 1
        self._reset()
        self._last = Frame(seq, ts, (), -1)

    def replayed(self, frames: Sequence[Frame] | None) -> int | None:
        """Take in the answer to a request for a replay, None if none came; frames that are unreadable are left out.

        May ask for another replay: the one of everything, when the first shows that the engine is another.
        """
        if frames is None and self._only_checks:
            return None
        proven = self._proves(frames)
        if not proven:
            self._reset()
            if frames is not None and not self._from_start:
                return self._ask()
        frames = frames or ()
        begin = _after_last_gap(frames)
        if proven and begin:
            self._reset()
        for frame in frames[begin or proven :]:
            self._take(frame)
        self._take_pending()
        return None

    def _proves(self, frames: Sequence[Frame] | None) -> bool:
        """Whether a replay begins with the last frame taken in: the same engine, and nothing overwritten since."""
        last = self._last
        if not frames or last is None:
            return False
        return (frames[0].seq, frames[0].digest) == (last.seq, last.digest)

    def _take_pending(self) -> None:
        pending, self._pending = self._pending, None
        last = self._last
        if pending is None or (last is not None and pending.seq <= last.seq):
            return
        if last is not None and pending.seq != last.seq + 1:
            self._reset()
        self._take(pending)

    def _ask(self) -> int:
        self._only_checks = False
        self._from_start = self._last is None
        return 0 if self._last is None else self._last.seq

    def _take(self, frame: Frame) -> None:
        self._fold.apply(self._rank, frame.events)
        self._last = frame

    def _reset(self) -> None:
        if self._last is not None:
            self.resets += 1
        self._fold.clear(self._rank)
        self._last = None


def _after_last_gap(frames: Sequence[Frame]) -> int:
    """Index from which on the frames follow each other without a gap up to the end."""
    gaps = [index for index, (one, next_) in enumerate(pairwise(frames), 1) if next_.seq != one.seq + 1]
    return gaps[-1] if gaps else 0
