"""Preble's E2: exploit a long cached prefix, else explore by the load of a three-minute window.

Srivatsa et al., "Preble: Efficient Distributed Prompt Scheduling for LLM Serving" (ICLR 2025) and WukLab/preble
`preble/global_scheduler_with_time.py`, with eviction cost and rebalancing on as its server has them:

* hit > miss: the cheapest of the instances that the matched node was given to; else the cheapest of all;
* cost of an instance: sum over the window's large nodes that it holds of miss rate x count x prefill time / holders,
  + output tokens of its active requests x median TPOT of its last 200 answers (0.15 s before there are any),
  + miss rate x count x prefill time of the large nodes that its least recent would lose to this prompt;
* output is the client's own cap, else 45 tokens;
* rebalancing: where an instance costs more than 1.5 x the cheapest, its cheapest large nodes go there.

Where we differ, all in Preble's favour: prefill times are those of a sound engine on each instance's own hardware, what
it spends beside its kernels included, and not of one profiled GPU; the room of a cache is what the instance publishes
and not taken to be full; a node is held until it is evicted, not only for the window. Rebalancing looks once a second;
a single hot node is not split in two.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from math import ceil
from random import Random
from statistics import median

from extproc.sim.fleet.spec import InstanceSpec
from extproc.sim.policies.desk import Desk, Seen, Trip
from extproc.sim.policies.picking import least
from extproc.sim.policies.policy import Ask, Ending, Policy, Setting
from extproc.sim.policies.preble_window import Shelf, Tally, Window
from extproc.sim.policies.radix import Node, Radix

OUTPUT_TOKENS = 45
FIRST_TPOT_S = 0.15
ANSWERS = 200
IMBALANCE = 1.5
REQUESTS_BEFORE_REBALANCING = 50  # an instance
REBALANCE_S = 1.0


class _Machine:
    """What is known of one instance: its speed, its answers and what lies in its cache."""

    def __init__(self, seen: Seen, spec: InstanceSpec, block_size_tokens: int) -> None:
        self._profile = spec.profile()
        self._step_overhead_s = spec.step_overhead_s
        self._step_tokens = spec.max_num_batched_tokens
        self.shelf = Shelf(seen.number, _room_tokens(seen) // block_size_tokens)
        self.tpots = deque((FIRST_TPOT_S,), maxlen=ANSWERS)
        self.tpot_s = FIRST_TPOT_S
        self.active_output_tokens = 0

    def prefill_s(self, new_tokens: int, cached_tokens: int) -> float:
        """Seconds to compute a part of a prompt on an idle engine of this kind, in as many steps as it takes."""
        steps = max(1, ceil(new_tokens / self._step_tokens))
        more_s = (steps - 1) * self._profile.a_ms * 1e-3 + steps * self._step_overhead_s
        return self._profile.prefill_s(new_tokens, cached_tokens) + more_s

    def answered(self, tpot_s: float) -> None:
        self.tpots.append(tpot_s)
        self.tpot_s = median(self.tpots)


class Preble:
    """The tree, the window and the machines, and the rule on them."""

    def __init__(self, specs: Mapping[str, InstanceSpec], block_size_tokens: int) -> None:
        self._specs = specs
        self._size = block_size_tokens
        self._tree = Radix()
        self._machines: dict[int, _Machine] = {}
        self._window = Window(self._prefill_s)
        self._leaf: tuple[Node, int] = (self._tree.root, 0)  # of the request that is being routed
        self._tallies: dict[tuple[str, int], Tally] = {}  # that requests which are not over are counted in
        self._requests = 0
        self._rebalanced_at_s = 0.0

    def __call__(self, ask: Ask, candidates: Sequence[Seen], random: Random, now: float) -> Seen:
        """The cheapest holder, or the cheapest of all."""
        for seen in candidates:
            if seen.number not in self._machines:
                self._machines[seen.number] = _Machine(seen, self._specs[seen.id], self._size)
        self._window.expire(now)
        leaf, matched = self._insert(ask)
        pool = candidates
        if 2 * matched * self._size > ask.arrival.prompt_tokens:
            pool = self._holders_of(leaf, candidates) or candidates
        new = len(ask.prompt_blocks) - matched
        return pool[0] if len(pool) == 1 else least(pool, lambda seen: self.cost_s(seen, new), random)

    def cost_s(self, seen: Seen, new_blocks: int) -> float:
        """Load of an instance, and what a prompt of so many new blocks would throw out there."""
        machine = self._machines[seen.number]
        evicted = machine.shelf.would_evict(new_blocks)
        return (
            self._window.prefill_s.get(seen.number, 0.0)
            + machine.active_output_tokens * machine.tpot_s
            + sum(self._window.whole_cost_s(node, seen.number) for node in evicted if node.is_large)
        )

    def sent(self, trip: Trip, now: float) -> None:
        """Give the prompt's nodes to the instance and count it under its important node."""
        ask, number = trip.ask, trip.seen.number
        machine = self._machines[number]
        leaf, matched = self._leaf
        node: Node | None = leaf
        while node is not None and node is not self._tree.root:
            if number not in node.holders:
                node.holders.add(number)
                self._window.changed(node)
            machine.shelf.touch(node)
            node = node.parent
        for evicted in machine.shelf.evict():
            self._lose(evicted, number)
        output_tokens = _output_tokens(ask)
        machine.active_output_tokens += output_tokens
        if ask.prompt_blocks:
            tally = self._window.add(leaf.important(), matched * self._size, ask.arrival.prompt_tokens, now)
            tally.active_output_tokens[number] += output_tokens
            self._tallies[ask.id, number] = tally
        self._requests += 1
        if now >= self._rebalanced_at_s + REBALANCE_S:
            self._rebalanced_at_s = now
            self._rebalance()

    def over(self, trip: Trip, ending: Ending | None, now: float) -> None:
        """Take an answer's speed and end its part of the load."""
        number = trip.seen.number
        machine, output_tokens = self._machines[number], _output_tokens(trip.ask)
        machine.active_output_tokens -= output_tokens
        if (tally := self._tallies.pop((trip.ask.id, number), None)) is not None:
            tally.active_output_tokens[number] -= output_tokens
        if ending is not None and ending.ttft_s is not None and ending.completion_tokens > 1:
            machine.answered((ending.duration_s - ending.ttft_s) / (ending.completion_tokens - 1))

    def _insert(self, ask: Ask) -> tuple[Node, int]:
        leaf, matched = self._tree.insert(ask.prompt_blocks)
        for upper, lower in self._tree.splits:
            for number in upper.holders:
                self._machines[number].shelf.split(upper)
            self._window.split(upper, lower)
        self._leaf = leaf, matched
        return self._leaf

    def _holders_of(self, leaf: Node, candidates: Sequence[Seen]) -> list[Seen]:
        """Candidates that hold the nearest node that anybody holds."""
        node: Node | None = leaf
        while node is not None:
            held = [seen for seen in candidates if seen.number in node.holders]
            if held:
                return held
            node = node.parent
        return []

    def _lose(self, node: Node, number: int) -> None:
        node.holders.discard(number)
        self._window.changed(node)
        self._tree.prune(node)

    def _prefill_s(self, node: Node, number: int) -> float:
        size = self._size
        return self._machines[number].prefill_s(len(node.blocks) * size, node.start * size)

    def _rebalance(self) -> None:
        """Move the cheapest large nodes from those that cost too much to the cheapest, by prefixes seen twice."""
        if len(self._machines) < 2 or self._requests < REQUESTS_BEFORE_REBALANCING * len(self._machines):
            return
        costs = {number: self._costs_s(number) for number in self._machines}
        load = {number: sum(cost_s for cost_s, _ in borne) for number, borne in costs.items()}
        smallest, *others = sorted(load, key=lambda number: load[number])
        for largest in reversed(others):
            if load[largest] < IMBALANCE * load[smallest]:
                return
            for cost_s, tally in costs[largest]:
                if load[largest] - cost_s < load[smallest] + cost_s:
                    break
                load[largest] -= cost_s
                load[smallest] += cost_s
                self._move(tally, smallest)
                if load[largest] < IMBALANCE * load[smallest]:
                    break

    def _costs_s(self, number: int) -> list[tuple[float, Tally]]:
        """What each prefix that was seen twice costs an instance, the cheapest first."""
        tpot_s = self._machines[number].tpot_s
        borne = [
            (tally.load_s[number] + tally.active_output_tokens[number] * tpot_s, tally)
            for tally in self._window.repeated()
            if number in tally.load_s
        ]
        return sorted(borne, key=lambda pair: pair[0])

    def _move(self, tally: Tally, number: int) -> None:
        for node in tally.node.below():
            for other in node.holders - {number}:
                self._machines[other].shelf.drop(node)
            node.holders = {number}
            self._machines[number].shelf.touch(node)
            self._window.changed(node)


def _output_tokens(ask: Ask) -> int:
    return ask.arrival.max_output_tokens or OUTPUT_TOKENS


def _room_tokens(seen: Seen) -> int:
    """KV tokens of an instance; Preble's own figure where it does not tell."""
    instance = seen.instance
    if instance.kv_blocks is None or instance.block_size_tokens is None:
        return 198_516
    return instance.kv_blocks * instance.block_size_tokens


def preble(setting: Setting) -> Policy:
    """Preble's E2."""
    rule = Preble(setting.specs, setting.block_size_tokens)
    return Desk(setting, rule, on_sent=rule.sent, on_over=rule.over)
