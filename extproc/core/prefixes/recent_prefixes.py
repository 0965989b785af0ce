"""Prompts that were sent a moment ago: what instances will soon hold, before any engine can tell.

A tree of the chains themselves. A stretch is the blocks from one branch to the next, with the time at which each
instance was last sent them. A block's hash covers all blocks before it, so two chains that meet at a block are equal up
to there: where they part is found by bisection, and a look-up costs by branches, not by blocks.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from itertools import takewhile
from math import inf, nextafter

RECENT_S = 7.5  # a queue, a prefill and an event's way to us together seldom take longer
MAX_BLOCKS = 500_000  # about 45 bytes each

Chain = tuple[int, ...]


@dataclass(slots=True, eq=False)
class _Stretch:
    blocks: Chain
    parent: _Stretch | None
    sent_s: dict[str, float] = field(default_factory=dict)  # by instance key; never later than at the parent
    children: dict[int, _Stretch] = field(default_factory=dict)  # by their first block
    _keys: tuple[str, ...] | None = None

    @property
    def keys(self) -> tuple[str, ...]:
        """Of all instances; the same tuple until one comes or goes."""
        if self._keys is None:
            self._keys = tuple(self.sent_s)
        return self._keys

    def send(self, key: str, sent_s: float) -> None:
        """An instance is sent these blocks."""
        if key not in self.sent_s:
            self._keys = None
        self.sent_s[key] = sent_s

    def drop(self, key: str) -> None:
        """An instance was not sent these blocks, or too long ago."""
        del self.sent_s[key]
        self._keys = None


class RecentPrefixes:
    """By instance key, in the same blocks as the learned index. Every `now` is the caller's clock, in seconds.

    Entries end with their time or, beyond `max_blocks` distinct blocks, the oldest first. An instance that ended is not
    asked for any more, so nobody needs to tell.
    """

    def __init__(self, max_blocks: int = MAX_BLOCKS) -> None:
        self.max_blocks = max_blocks
        self.blocks = 0  # distinct ones that are kept
        self._root = _Stretch((), None)
        self._sent: deque[tuple[float, str, _Stretch]] = deque()  # each prompt with the stretch that it ends with

    def insert(self, key: str, prefix: Chain, now: float) -> None:
        """A prompt is on its way to an instance."""
        sent_s = max(now, nextafter(self._sent[-1][0], inf)) if self._sent else now  # no two at the same moment
        at, depth = self._root, 0
        while depth < len(prefix):
            child = at.children.get(prefix[depth])
            if child is None:
                child = _Stretch(prefix[depth:], at)
                at.children[prefix[depth]] = child
                self.blocks += len(child.blocks)
            else:
                common = _common(child.blocks, prefix, depth)
                if common < len(child.blocks):
                    child = _cut(child, common)
            child.send(key, sent_s)
            depth += len(child.blocks)
            at = child
        self._sent.append((sent_s, key, at))
        while self._sent[0][0] <= now - RECENT_S or self.blocks > self.max_blocks:
            self._end(*self._sent.popleft())
            if not self._sent:
                break

    def withdraw(self, key: str, prefix: Chain) -> None:
        """The prompt that was last sent to an instance did not stay there."""
        at, depth = self._root, 0
        while depth < len(prefix):
            child = at.children.get(prefix[depth])
            if child is None or _common(child.blocks, prefix, depth) < len(child.blocks):
                return
            depth += len(child.blocks)
            at = child
        for index in range(len(self._sent) - 1, -1, -1):
            sent_s, to, last = self._sent[index]
            if to == key and last is at:
                del self._sent[index]
                self._end(sent_s, key, last)
                return

    def matches(self, prefix: Chain, now: float) -> dict[str, int]:
        """Blocks of `prefix`, from its start, that were sent to each instance lately; those of none are absent."""
        found: dict[str, int] = {}
        for keys, blocks in self.depths(prefix, now):
            found.update(dict.fromkeys(keys, blocks))
        return {key: blocks for key, blocks in found.items() if blocks}

    def depths(self, prefix: Chain, now: float) -> list[tuple[tuple[str, ...], int]]:
        """The same by groups: keys, and blocks that all of them were sent. What a later group says of one counts."""
        found: list[tuple[tuple[str, ...], int]] = []
        over_s = now - RECENT_S
        # The few that are too old and whom no insertion has ended yet: what each was sent lately is less.
        sent = self._sent
        old = list(takewhile(lambda each: each[0] <= over_s, sent)) if sent and sent[0][0] <= over_s else ()
        less: dict[str, int] = {}
        at, depth = self._root, 0
        while depth < len(prefix):
            child = at.children.get(prefix[depth])
            if child is None:
                break
            common = _common(child.blocks, prefix, depth)
            found.append((child.keys, depth + common))
            for sent_s, key, _ in old:
                if child.sent_s.get(key) == sent_s:
                    found.append(((key,), less.setdefault(key, depth)))
            depth += common
            if common < len(child.blocks):
                break
            at = child
        return found

    def _end(self, sent_s: float, key: str, last: _Stretch) -> None:
        """Forget that a prompt was sent, as far up as nothing later was sent there."""
        at = last
        while at.parent is not None and at.sent_s.get(key) == sent_s:
            at.drop(key)
            if not at.sent_s:
                del at.parent.children[at.blocks[0]]
                self.blocks -= len(at.blocks)
            at = at.parent


def _common(blocks: Chain, prefix: Chain, depth: int) -> int:
    """How many blocks a stretch has in common with a chain from `depth` on, knowing that the first is equal."""
    most = min(len(blocks), len(prefix) - depth)
    if blocks[most - 1] == prefix[depth + most - 1]:
        return most
    same, other = 0, most - 1
    while other - same > 1:
        middle = (same + other) // 2
        if blocks[middle] == prefix[depth + middle]:
            same = middle
        else:
            other = middle
    return other


def _cut(stretch: _Stretch, blocks: int) -> _Stretch:
    """Cut a stretch in two after so many blocks; returns the upper one."""
    assert stretch.parent is not None
    upper = _Stretch(stretch.blocks[:blocks], stretch.parent, stretch.sent_s.copy())
    stretch.parent.children[stretch.blocks[0]] = upper
    stretch.blocks = stretch.blocks[blocks:]
    stretch.parent = upper
    upper.children[stretch.blocks[0]] = stretch
    return upper
