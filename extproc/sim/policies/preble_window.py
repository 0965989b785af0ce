"""What Preble counts: prompts of the last three minutes under their large nodes, and each instance's least recent."""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field

from extproc.sim.policies.radix import Node

WINDOW_S = 180.0


@dataclass(slots=True, eq=False)
class Tally:
    """Prompts of the window that are counted under one node, and the load that each of its holders has of them."""

    node: Node
    count: int = 0
    hit_tokens: int = 0
    prompt_tokens: int = 0
    load_s: dict[int, float] = field(default_factory=dict)  # of prefill, by number
    active_output_tokens: Counter[int] = field(default_factory=Counter)  # of requests that are not over, by number


class Window:
    """Tallies of the last three minutes; keeps each instance's prefill load up to date as they change."""

    def __init__(self, prefill_s: Callable[[Node, int], float]) -> None:
        self.prefill_s: dict[int, float] = {}  # by number: load of all tallies
        self._prefill_s = prefill_s  # seconds to compute a node on an instance
        self._tallies: dict[Node, Tally] = {}
        self._entries: deque[tuple[float, Tally, int, int]] = deque()

    def add(self, node: Node, hit_tokens: int, prompt_tokens: int, now: float) -> Tally:
        """Count a prompt under its important node."""
        tally = self._tallies.setdefault(node, Tally(node))
        self._entries.append((now, tally, hit_tokens, prompt_tokens))
        self._count(tally, 1, hit_tokens, prompt_tokens)
        return tally

    def expire(self, now: float) -> None:
        """Forget prompts older than the window."""
        while self._entries and self._entries[0][0] < now - WINDOW_S:
            _, tally, hit_tokens, prompt_tokens = self._entries.popleft()
            self._count(tally, -1, -hit_tokens, -prompt_tokens)
            if tally.count == 0:
                self._tallies.pop(tally.node, None)

    def changed(self, node: Node) -> None:
        """A node's holders or length changed."""
        tally = self._tallies.get(node)
        if tally is not None:
            self._refresh(tally)

    def split(self, upper: Node, lower: Node) -> None:
        """A node was cut: its prompts count under the upper part if only that is large now."""
        tally = self._tallies.get(lower)
        if tally is None:
            return
        if upper.is_large and not lower.is_large:
            del self._tallies[lower]
            self._tallies[upper] = tally
            tally.node = upper
        self._refresh(tally)

    def whole_cost_s(self, node: Node, number: int) -> float:
        """Seconds that the window's prompts would cost an instance that has to compute a node anew for them."""
        tally = self._tallies.get(node)
        return 0.0 if tally is None else _miss_rate(tally) * tally.count * self._prefill_s(node, number)

    def repeated(self) -> list[Tally]:
        """Tallies of more than one prompt."""
        return [tally for tally in self._tallies.values() if tally.count > 1]

    def _count(self, tally: Tally, count: int, hit_tokens: int, prompt_tokens: int) -> None:
        tally.count += count
        tally.hit_tokens += hit_tokens
        tally.prompt_tokens += prompt_tokens
        self._refresh(tally)

    def _refresh(self, tally: Tally) -> None:
        """Replace a tally's part of each instance's load."""
        total = self.prefill_s
        for number, load_s in tally.load_s.items():
            total[number] -= load_s
        holders = tally.node.holders
        factor = _miss_rate(tally) * tally.count / len(holders) if holders else 0.0
        tally.load_s = {number: factor * self._prefill_s(tally.node, number) for number in holders}
        for number, load_s in tally.load_s.items():
            total[number] = total.get(number, 0.0) + load_s


class Shelf:
    """Nodes in one instance's cache, the least recent first; its room is in blocks."""

    def __init__(self, number: int, room_blocks: int) -> None:
        self.number = number
        self._room_blocks = room_blocks
        self._nodes: OrderedDict[Node, None] = OrderedDict()
        self._held_blocks = 0

    def touch(self, node: Node) -> None:
        """A node is used now."""
        if node not in self._nodes:
            self._held_blocks += len(node.blocks)
            self._nodes[node] = None
        self._nodes.move_to_end(node)

    def split(self, upper: Node) -> None:
        """A node of the shelf was cut: its upper part is a node of its own now."""
        self._nodes[upper] = None

    def drop(self, node: Node) -> None:
        """A node is here no more."""
        if node in self._nodes:
            del self._nodes[node]
            self._held_blocks -= len(node.blocks)

    def evict(self) -> list[Node]:
        """Take out the least recent until the rest has room."""
        gone = []
        while self._held_blocks > self._room_blocks and self._nodes:
            node = next(iter(self._nodes))
            self.drop(node)
            gone.append(node)
        return gone

    def would_evict(self, new_blocks: int) -> list[Node]:
        """The least recent that would have to go for so many new blocks."""
        surplus = self._held_blocks + new_blocks - self._room_blocks
        gone: list[Node] = []
        if surplus <= 0:
            return gone
        for node in self._nodes:
            gone.append(node)
            surplus -= len(node.blocks)
            if surplus <= 0:
                break
        return gone


def _miss_rate(tally: Tally) -> float:
    return 1.0 - tally.hit_tokens / tally.prompt_tokens if tally.prompt_tokens else 1.0
