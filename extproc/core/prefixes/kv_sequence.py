"""Keeps one publisher's numbered frames in order: finds gaps, restarts and repetitions, and says what to ask for.

Rests on one fact: events that follow each other without a gap, taken in from an empty state on, never make a block
appear that the engine does not hold. So whatever cannot be proven to follow is preceded by a reset.
"""

from __future__ import annotations

import msgspec

from extproc.core.prefixes.kv_fold import Event, KvFold


class Frame(msgspec.Struct, frozen=True):
    """One message of a publisher."""

    seq: int
    ts: float  # the publisher's clock, s
    events: tuple[Event, ...]
    digest: int  # of its bytes: tells whether two frames are the same


class KvSequence:
    """Feeds one publisher's (one rank's) frames to a fold. Methods return the number to ask a replay from, or None.

    When a number is returned, ask the replay endpoint for all frames from there on, hand them to `replay` one by one,
    and then call `replay_ended`, before anything else. Without a replay endpoint None is all that is returned, and a
    gap costs the rank's whole index.
    """

    def __init__(self, fold: KvFold, rank: int, *, can_replay: bool) -> None:
        self.gaps = 0  # numbers that did not follow, restarts included
        self.resets = 0  # times that everything was forgotten
        self.heard = 0  # frames taken in, and replays that proved that none was missed
        self._fold = fold
        self._rank = rank
        self._can_replay = can_replay
        self._last: Frame | None = None  # the last one taken in
        self._pending: Frame | None = None  # waits for a replay
        self._from_start = False  # the replay that was asked for is one of everything
        self._unproven = False  # nothing of its answer has been taken in
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
                self._reset(another=True)  # numbers began anew
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

    def replay(self, frame: Frame) -> bool:
        """Take in the next frame of a replay's answer; False if the rest of the answer is of no use.

        Frames that cannot be read are left out. An answer begins with the last frame taken in: that it comes back the
        same proves that the engine is the same, and that nothing after it was overwritten.
        """
        last = self._last
        if self._unproven:
            if last is not None and (frame.seq, frame.digest) == (last.seq, last.digest):
                self._unproven = False
                self.heard += 1
                return True
            self._reset()
            if not self._from_start:
                return False
            self._unproven = False
        elif last is not None and frame.seq != last.seq + 1:
            self._reset()
        self._take(frame)
        return True

    def replay_ended(self, *, complete: bool) -> int | None:
        """The answer came to its end or its use, or (not `complete`) broke off.

        May ask for another replay: the one of everything, when this one showed that the engine is another.
        """
        if self._unproven and (complete or not self._only_checks):
            self._reset()
            if complete and not self._from_start:
                return self._ask()
        self._take_pending()
        return None

    def _take_pending(self) -> None:
        pending, self._pending = self._pending, None
        last = self._last
        if pending is None or (last is not None and pending.seq <= last.seq):
            return
        if last is not None and pending.seq != last.seq + 1:
            self._reset()
        self._take(pending)

    def _ask(self) -> int:
        self._unproven, self._only_checks = True, False
        self._from_start = self._last is None
        return 0 if self._last is None else self._last.seq

    def _take(self, frame: Frame) -> None:
        self._fold.apply(self._rank, frame.events)
        self._last = frame
        self.heard += 1

    def _reset(self, *, another: bool = False) -> None:
        if self._last is not None:
            self.resets += 1
        if another:  # engine process: what the old one called its blocks means nothing
            self._fold.clear(self._rank)
        else:
            self._fold.lose(self._rank)
        self._last = None
