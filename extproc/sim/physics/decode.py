"""The decoding requests of one engine: they advance in lockstep, so an iteration does not touch each of them.

How many of them need a block is known from how full their last blocks are; who is done, and whose output fills a
named piece, from two heaps by decode step. Decode steps count the engine's iterations, prefills alone included.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import TYPE_CHECKING

from extproc.sim.physics.request import EngineRequest, Phase

if TYPE_CHECKING:
    from collections.abc import Iterable

    from extproc.sim.physics.blocks import BlockPool

# Decode step at which something happens to a request, its order in the batch, and itself.
_Due = tuple[int, int, EngineRequest]


class DecodeBatch:
    """The requests in decode, oldest first, with their blocks in the pool and their common counts."""

    def __init__(self, pool: BlockPool) -> None:
        self.pool = pool
        self.requests: dict[EngineRequest, None] = {}
        self.context_tokens = 0  # computed tokens of all of them
        self.step = 0
        self._granted_step = 0  # they have the blocks for all tokens that are computed before this step
        self._by_fill = [0] * pool.block_size_tokens  # requests by (computed tokens - step) % block size
        self._finish_due: list[_Due] = []  # heaps; an entry is void once its request has left the batch
        self._name_due: list[_Due] = []

    def join(self, request: EngineRequest) -> None:
        """Take in a request whose prefill is complete and whose output is not."""
        computed = request.base_tokens
        self.requests[request] = None
        self.context_tokens += computed
        request.phase = Phase.DECODE
        request.joined_step = self.step
        request.finish_step = self.step + request.output_tokens - request.generated_tokens
        heappush(self._finish_due, (request.finish_step, request.order, request))
        self._by_fill[(computed - self.step) % self.pool.block_size_tokens] += 1
        self._expect_name(request)

    def leave(self, request: EngineRequest) -> None:
        """Let a request go, with what it has computed; its blocks are written into its holding."""
        computed = self.computed_tokens(request)
        self._by_fill[(computed - self.step) % self.pool.block_size_tokens] -= 1
        self._count_own(request)
        self.pool.commit(request.holding, request.hashes, computed)
        request.generated_tokens += self.step - request.joined_step
        self.context_tokens -= computed
        del self.requests[request]

    def computed_tokens(self, request: EngineRequest) -> int:
        """Tokens of a request that the applied steps have computed."""
        return request.base_tokens + self.step - request.joined_step

    def growth_blocks(self, until_step: int) -> int:
        """Blocks that the requests need for the steps before `until_step`, beyond those that are granted.

        A request needs one for the step before which its computed tokens fill whole blocks.
        """
        size = self.pool.block_size_tokens
        rounds, rest = divmod(until_step - self._granted_step, size)
        by_fill = self._by_fill
        blocks = rounds * len(self.requests)
        for step in range(until_step - rest, until_step):
            blocks += by_fill[-step % size]
        return blocks

    def grant(self, until_step: int) -> bool:
        """Take the blocks for all steps before `until_step`; False, and nothing changed, if there are too few."""
        blocks = self.growth_blocks(until_step)
        if blocks and not self.pool.take(blocks):
            return False
        self._granted_step = until_step
        return True

    def mark_granted(self) -> None:
        """The blocks for the next step have been taken one by one."""
        self._granted_step = self.step + 1

    def lacking_block(self) -> Iterable[EngineRequest]:
        """Requests that need a block for the next step and have not got it, oldest first; they may leave meanwhile."""
        size = self.pool.block_size_tokens
        for request in list(self.requests):
            if request.phase is Phase.DECODE and self.computed_tokens(request) % size == 0:
                yield request

    def name_outputs(self) -> None:
        """Make those pieces of the output known by their hash that the steps granted so far fill."""
        due, granted = self._name_due, self._granted_step
        while due and due[0][0] < granted:
            at, _, request = heappop(due)
            if request.phase is not Phase.DECODE or request.name_due_step != at:
                continue  # it has left the batch
            self._count_own(request)
            self.pool.commit(request.holding, request.hashes, request.base_tokens + granted - request.joined_step)
            self._expect_name(request)

    def advance(self, iterations: int) -> list[EngineRequest]:
        """Apply that many iterations, of which the first is granted; returns the requests that are done.

        Does in order what planning each of the others would have done: take blocks, name full pieces.
        """
        self.context_tokens += iterations * len(self.requests)
        self.step += iterations
        if iterations > 1:
            due = self._name_due
            while due and due[0][0] < self.step:
                self.grant(due[0][0] + 1)
                self.name_outputs()
            self.grant(self.step)
        return self._done()

    def coasting_iterations(self, most: int, *, stop_at_names: bool) -> int:
        """For how many iterations, the granted one included, every request goes on and finds its blocks.

        `stop_at_names`: end before the next iteration that fills a named piece of somebody's output.
        """
        now, due = self.step, self._finish_due
        while self._is_void(due[0]):
            heappop(due)
        iterations = min(most, due[0][0] - now)
        if stop_at_names and self._name_due:
            iterations = min(iterations, self._name_due[0][0] - now)
        free_blocks = self.pool.free_blocks
        if self.growth_blocks(now + iterations) <= free_blocks:
            return iterations
        enough, too_many = 1, iterations
        while too_many - enough > 1:
            middle = (enough + too_many) // 2
            if self.growth_blocks(now + middle) <= free_blocks:
                enough = middle
            else:
                too_many = middle
        return enough

    def _done(self) -> list[EngineRequest]:
        due = self._finish_due
        done = []
        while due and due[0][0] <= self.step:
            entry = heappop(due)
            if not self._is_void(entry):
                done.append(entry[2])
        return done

    @staticmethod
    def _is_void(finish: _Due) -> bool:
        at, _, request = finish
        return request.phase is not Phase.DECODE or request.finish_step != at

    def _expect_name(self, request: EngineRequest) -> None:
        """Note the step that fills the next named piece of the request's output, if there is one."""
        done = request.holding.full_names
        if done < len(request.hashes):
            missing_tokens = (done + 1) * self.pool.name_tokens - request.base_tokens
            step = request.name_due_step = request.joined_step + missing_tokens - 1
            if step < request.finish_step:
                heappush(self._name_due, (step, request.order, request))

    def _count_own(self, request: EngineRequest) -> None:
        """Write into the request's holding how many blocks it has by now."""
        pool, holding = self.pool, request.holding
        blocks = pool.blocks_for(request.base_tokens + self._granted_step - request.joined_step)
        holding.own_blocks = blocks - pool.blocks_per_name * len(holding.shared)
