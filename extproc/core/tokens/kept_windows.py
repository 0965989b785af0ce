"""Which windows of answer lengths are kept, of more kinds than there is room for: those that learn most often.

While there is room, every kind has a window. Then a kind gets one in another's place, if the next wider one knows
enough to speak already, and if its answers come far more often than the other's do now. To keep those that came last
does not do: of more tenants than there is room for, each would lose its window before it had learned anything.

*Often* is measured in lessons between two of a kind, no clock: the mean of the last ones, or, where a kind has not been
heard of for much longer than that, what its silence says. A wider kind is worth more than a narrower one, which adds
less to what the wider one knows already: so every tenant comes first, and then what one tenant's answers differ by.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from extproc.core.tokens.length_window import LengthWindow

Level = tuple[str | bool | int, ...]
"""What answers are kept under; a wider one has fewer fields."""

_MEMORY = 32  # lessons of a kind that its mean gap looks back on
_SILENCE = 8.0  # of such gaps, from which on silence says more: by chance it lasts as long once in 3,000 times
_OFTENER = 4.0  # times, that who comes must come; chance alone makes kinds that come equally often differ by 3
_FEWEST = 8  # lessons of a kind before its mean gap says anything
_NARROWER = 8.0  # times less is the next narrower kind worth
_WAITING = 8  # times as many as have a window: kinds whose gaps are known without one, some 250 bytes each


@dataclass(slots=True)
class _Pace:
    """How often a kind is heard of, in lessons of all kinds."""

    last: int
    count: int = 1
    gap: float = 0.0

    def hear(self, lesson: int) -> None:
        self.gap += (lesson - self.last - self.gap) / min(self.count, _MEMORY)
        self.last = lesson
        self.count += 1

    def expected(self, lesson: int) -> float:
        """Lessons until the next one, as far as can be told."""
        silence = lesson - self.last
        return float(silence) if self.count == 1 else max(self.gap, silence / _SILENCE)


@dataclass(slots=True)
class _Kept:
    window: LengthWindow
    pace: _Pace
    worth: float  # by which its gap is divided


class KeptWindows:
    """At most `most` windows; `made` makes one, of the widest kind of all or of another."""

    def __init__(self, most: int, made: Callable[[bool], LengthWindow], speaks: int) -> None:
        """A window speaks from `speaks` answers on."""
        self._most, self._made, self._speaks = most, made, speaks
        self._kept: dict[Level, _Kept] = {}
        self._waiting: OrderedDict[Level, _Pace] = OrderedDict()  # the latest last
        self._lesson = 0

    def __len__(self) -> int:
        """How many there are."""
        return len(self._kept)

    def get(self, level: Level) -> LengthWindow | None:
        """That of a kind, None if it has none."""
        kept = self._kept.get(level)
        return None if kept is None else kept.window

    def learn(self, levels: Sequence[Level], length_tokens: int, is_bound: bool) -> None:
        """Add an answer to all windows that it belongs to. `levels`: the narrowest first; the rest as in `add`."""
        self._lesson += 1
        wider: LengthWindow | None = None
        for depth, level in enumerate(reversed(levels)):
            kept = self._kept.get(level)
            if kept is not None:
                kept.pace.hear(self._lesson)
                wider = kept.window
            else:
                wider = self._begun(level, depth, wider)
            if wider is None:
                return
            wider.add(length_tokens, is_bound)

    def _begun(self, level: Level, depth: int, wider: LengthWindow | None) -> LengthWindow | None:
        """A new window of a kind, None if there is no room for one."""
        pace, worth = _Pace(self._lesson), _NARROWER**-depth
        if len(self._kept) >= self._most:
            if wider is not None:
                if wider.learned < self._speaks:
                    return None
                pace = self._waited(level)
                if pace.count < _FEWEST or pace.count % _FEWEST:  # now and then: all windows are looked at
                    return None
            rarest = max(self._kept, key=self._rarity)
            if wider is not None and self._rarity(rarest) < _OFTENER * pace.gap / worth:
                return None
            del self._kept[rarest]
            self._waiting.pop(level, None)
        window = self._made(wider is None)
        self._kept[level] = _Kept(window, pace, worth)
        return window

    def _waited(self, level: Level) -> _Pace:
        """How often a kind without a window is heard of, now included."""
        pace = self._waiting.get(level)
        if pace is None:
            pace = self._waiting[level] = _Pace(self._lesson)
            if len(self._waiting) > _WAITING * self._most:
                self._waiting.popitem(last=False)
        else:
            pace.hear(self._lesson)
            self._waiting.move_to_end(level)
        return pace

    def _rarity(self, level: Level) -> float:
        kept = self._kept[level]
        return kept.pace.expected(self._lesson) / kept.worth
