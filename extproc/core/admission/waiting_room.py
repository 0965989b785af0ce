"""Requests that are held: a bounded number, in the order in which they may go.

Those that want the same thing (a *lane*) stand in one order, so that nobody waits behind a request that waits for
something else: by priority, then whether its tenant is above its share (then its bounds are narrower, and it must not
stop those whose bounds are not), then that one's debt, then its deadline. Where there is no room, the one that would go
last of all goes at once.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field

from extproc.core.admission.accounts import Account
from extproc.core.admission.lazy_heap import Key, LazyHeap
from extproc.core.values.decision import Decision
from extproc.core.values.option import Option

Rank = tuple[float, float, float, float]
"""Where a request stands: its band, whether its tenant is above its share, its debt, its deadline; less goes first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A request that is held. Times are on the clock of `now`."""

    request_id: str
    options: tuple[Option, ...]
    lane: Hashable
    band: float
    account: Account
    arrived_s: float
    until_s: float  # when it is shed at the latest
    number: int  # of its coming
    tokens: float  # that it would add to its tenant's debt
    body_bytes: int
    decision: Decision  # why it could not go when it came
    reachable: bool  # whether `until_s` is as long as it may be held, and not when its bounds are out of reach

    @property
    def order(self) -> tuple[float, int]:
        """Among those of its tenant."""
        return self.until_s, self.number


@dataclass(eq=False, slots=True)
class _Line:
    """Those of one tenant in one band of one lane, in order."""

    lane: Hashable
    band: float
    account: Account
    entries: list[Entry] = field(default_factory=list)
    tokens: float = 0.0


def _order(entry: Entry) -> tuple[float, int]:
    return entry.order


class WaitingRoom:
    """All that is held. `debt_of` gives the debt over the weight of a tenant's account; `weight_of` the weight.

    `is_above` says whether the tenant is above its share; when that changes, `refresh` is to be called.
    """

    def __init__(
        self,
        debt_of: Callable[[Account], float],
        weight_of: Callable[[Account], float],
        is_above: Callable[[Account], bool] = lambda _: False,
    ) -> None:
        self._debt_of, self._weight_of, self._is_above = debt_of, weight_of, is_above
        self._entries: dict[str, Entry] = {}
        self._lines: dict[tuple[Hashable, float, Account], _Line] = {}
        self._lanes: dict[Hashable, LazyHeap[_Line]] = {}
        self._last: LazyHeap[_Line] = LazyHeap(self._last_key)
        self._ends: LazyHeap[Entry] = LazyHeap(self._end_key)
        self._counts: Counter[tuple[Hashable, float]] = Counter()  # by lane and band
        self.body_bytes = 0

    def __len__(self) -> int:
        """Requests that are held."""
        return len(self._entries)

    def __contains__(self, request_id: str) -> bool:
        """Whether a request is held."""
        return request_id in self._entries

    def add(self, entry: Entry) -> None:
        """Hold a request. Raises ValueError if one of this id is held."""
        if entry.request_id in self._entries:
            raise ValueError(f"request {entry.request_id} is held already")
        self._entries[entry.request_id] = entry
        self.body_bytes += entry.body_bytes
        self._counts[entry.lane, entry.band] += 1
        name = entry.lane, entry.band, entry.account
        line = self._lines.get(name)
        if line is None:
            line = self._lines[name] = _Line(*name)
        insort(line.entries, entry, key=_order)
        line.tokens += entry.tokens
        heap = self._lanes.get(entry.lane)
        if heap is None:
            heap = self._lanes[entry.lane] = LazyHeap(self._first_key)
        if line.entries[0] is entry:
            heap.push(line, len(self._lines))
        self._last.push(line, len(self._lines))
        self._ends.push(entry, len(self._entries))

    def remove(self, request_id: str) -> Entry | None:
        """Hold a request no longer, None if it is not held."""
        entry = self._entries.pop(request_id, None)
        if entry is None:
            return None
        self.body_bytes -= entry.body_bytes
        self._counts[entry.lane, entry.band] -= 1
        if not self._counts[entry.lane, entry.band]:
            del self._counts[entry.lane, entry.band]
        name = entry.lane, entry.band, entry.account
        line = self._lines[name]
        del line.entries[bisect_left(line.entries, entry.order, key=_order)]
        line.tokens -= entry.tokens
        if not line.entries:
            del self._lines[name]
            if self._lanes[entry.lane].first() is None:
                del self._lanes[entry.lane]
        return entry

    def refresh(self) -> None:
        """Some tenants may stand further ahead than before."""
        for heap in self._lanes.values():
            heap.refresh()

    def lanes(self) -> Iterator[Hashable]:
        """Those in which anybody is held; whatever is let go meanwhile."""
        return iter(list(self._lanes))

    def head(self, lane: Hashable) -> Entry | None:
        """Who goes first in a lane."""
        heap = self._lanes.get(lane)
        line = None if heap is None else heap.first()
        return None if line is None else line.entries[0]

    def behind(self, head: Entry, number: int) -> list[Entry]:
        """Those of its tenant and band who come next after the head of a lane."""
        return self._lines[head.lane, head.band, head.account].entries[1 : 1 + number]

    def ahead(self, lane: Hashable, band: float) -> int:
        """How many are held in a lane that go before a newcomer of such a band, whoever's they are."""
        return sum(number for (name, other), number in self._counts.items() if name == lane and other <= band)

    def last(self) -> Entry | None:
        """Who would go last of all, by priority and by what its tenant would have had by then."""
        line = self._last.first()
        return None if line is None else line.entries[-1]

    def next_end(self) -> Entry | None:
        """Who is shed first if nothing happens."""
        return self._ends.first()

    def rank(self, band: float, account: Account, until_s: float) -> Rank:
        """Where a request stands, or would."""
        return band, float(self._is_above(account)), self._debt_of(account), until_s

    def rank_of(self, entry: Entry) -> Rank:
        """Where a held request stands."""
        return self.rank(entry.band, entry.account, entry.until_s)

    def _first_key(self, line: _Line) -> Key | None:
        return self.rank_of(line.entries[0]) if line.entries else None

    def _last_key(self, line: _Line) -> Key | None:
        if not line.entries:
            return None
        debt = self._debt_of(line.account) + line.tokens / self._weight_of(line.account)
        return -line.band, -debt, -line.entries[-1].until_s

    def _end_key(self, entry: Entry) -> Key | None:
        return (entry.until_s,) if self._entries.get(entry.request_id) is entry else None
