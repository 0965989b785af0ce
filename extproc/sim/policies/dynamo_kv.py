"""NVIDIA Dynamo's KV router: prefill to be done and decode blocks to be held, in blocks, by the engines' KV events.

Source: ai-dynamo/dynamo `lib/kv-router/src/scheduling/selector/default.rs` (cost = scale x max((active prefill tokens
+ prompt) / block - credit x hit blocks, 0) + decode blocks with this request; temperature 0, ties random),
`lib/kv-router/src/sequences/single.rs` (a block of several active requests counts once; only full blocks of prompts;
prefill booked at dispatch, dropped at the first token). Replicas tell each other of their requests
(`sequences/replica_sync.rs`: a switch that its guide names for several replicas; it is on here) and each hears all KV
events. Its own queue before busy workers is not modelled: a simulated router cannot hold a request back.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from random import Random

from extproc.sim.policies.desk import Desk, Seen, Trip
from extproc.sim.policies.holdings import Holdings
from extproc.sim.policies.picking import least
from extproc.sim.policies.policy import Ask, Ending, Policy, Setting

CREDIT = 1.0
SCALE = 1.0
TUNED_SCALE = 16.0  # measured clearly better on the Mooncake traces
ENGINE_BLOCK_TOKENS = 16  # where an instance does not tell


class DynamoKv:
    """Blocks of active requests at each instance, and the rule on them."""

    def __init__(self, scale: float, block_size_tokens: int) -> None:
        self._scale = scale
        self._size = block_size_tokens  # of the traffic's blocks
        self._uses: dict[int, Counter[int]] = {}  # by number: active requests that use each block
        self._tails: Counter[int] = Counter()  # by number: tokens of active prompts behind their last named block
        self._active = Holdings()  # the used blocks again, to look up all instances at once

    def __call__(self, ask: Ask, candidates: Sequence[Seen], random: Random, now: float) -> Seen:
        """The lowest cost in blocks."""
        shared = self._active.blocks_held(ask.prompt_blocks)
        isl = ask.arrival.prompt_tokens
        named, tail = len(ask.prompt_blocks) * self._size, self._tail(ask)

        def cost(seen: Seen) -> float:
            block = seen.instance.block_size_tokens or ENGINE_BLOCK_TOKENS
            prefill = max((seen.prefill_tokens + isl - CREDIT * seen.hit_tokens) / block, 0.0)
            new = named - shared.get(seen.number, 0) * self._size + tail
            return self._scale * prefill + (self.active_tokens(seen) + new) / block

        return least(candidates, cost, random)

    def active_tokens(self, seen: Seen) -> int:
        """Tokens in full blocks of active prompts, shared blocks once."""
        return len(self._uses.get(seen.number, ())) * self._size + self._tails[seen.number]

    def sent(self, trip: Trip, now: float) -> None:
        """Count a request's blocks as active."""
        number = trip.seen.number
        uses = self._uses.setdefault(number, Counter())
        self._active.store(number, [block for block in trip.ask.prompt_blocks if not uses[block]])
        uses.update(trip.ask.prompt_blocks)
        self._tails[number] += self._tail(trip.ask)

    def over(self, trip: Trip, ending: Ending | None, now: float) -> None:
        """A request's blocks are active no more, unless others use them."""
        number = trip.seen.number
        uses = self._uses[number]
        uses.subtract(trip.ask.prompt_blocks)
        unused = [block for block in trip.ask.prompt_blocks if uses[block] <= 0]
        for block in unused:
            uses.pop(block, None)
        self._active.remove(number, unused)
        self._tails[number] -= self._tail(trip.ask)

    def _tail(self, ask: Ask) -> int:
        """Tokens in full engine blocks behind the last named block."""
        rest = ask.arrival.prompt_tokens - len(ask.prompt_blocks) * self._size
        return rest // ENGINE_BLOCK_TOKENS * ENGINE_BLOCK_TOKENS


def dynamo_kv(setting: Setting) -> Policy:
    """Dynamo's KV cost with its defaults."""
    return _dynamo(setting, SCALE)


def dynamo_kv_tuned(setting: Setting) -> Policy:
    """Dynamo's KV cost that weighs prefill 16 times."""
    return _dynamo(setting, TUNED_SCALE)


def _dynamo(setting: Setting, scale: float) -> Policy:
    rule = DynamoKv(scale, setting.block_size_tokens)
    return Desk(setting, rule, holdings=Holdings(), shares=True, on_sent=rule.sent, on_over=rule.over)
