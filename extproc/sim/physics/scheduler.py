"""vLLM v1's scheduler without its engine: plans one iteration after the other, and knows no clock.

Rules, as in vLLM 0.32 with its defaults: running requests come first, one token each; what is left of the token
budget goes to prompts, first come first served, the last one perhaps in part (chunked prefill). A request enters
the batch only if its whole prompt fits into free KV blocks. When blocks run out in decode, the youngest running
request loses its own and is computed anew later (preemption), and nobody enters in that iteration.

Decoding requests advance in lockstep, so a step does not touch each of them: how many need a block is known from
how full their last blocks are, who is done and whose output fills a named piece from two heaps by decode step. As
long as nothing but decode goes on, one step may stand for many iterations (coasting).
"""

from __future__ import annotations

from collections import deque
from heapq import heappop, heappush
from typing import TYPE_CHECKING

from extproc.sim.physics.request import Chunk, EngineRequest, Phase, Progress, Step

if TYPE_CHECKING:
    from extproc.core.profile import Profile
    from extproc.sim.physics.blocks import BlockPool, Holding

# Decode step at which something happens to a request, its order in the batch, and itself.
_Due = tuple[int, int, EngineRequest]


class Scheduler:
    """Continuous batching on one engine: `plan` a step, let its time pass, `apply` it.

    `add` and `abort` may be called at any time, also between the two. Whoever plans several iterations at once must
    `cut` the step at the first iteration that ends at or after an `add`; before an `abort` in a later iteration
    than the first, cut and apply those before it.
    """

    def __init__(
        self,
        pool: BlockPool,
        profile: Profile,
        *,
        max_num_seqs: int = 256,
        max_num_batched_tokens: int = 8192,
        step_overhead_s: float = 0.0,
    ) -> None:
        if not 1 <= max_num_seqs <= max_num_batched_tokens:
            raise ValueError(
                f"max_num_batched_tokens ({max_num_batched_tokens}) must not be below max_num_seqs ({max_num_seqs})"
            )
        self.pool = pool
        self.profile = profile
        self.max_num_seqs = max_num_seqs
        self.max_num_batched_tokens = max_num_batched_tokens
        self.step_overhead_s = step_overhead_s  # what each iteration takes beside the profile's time
        self.slowness = 1.0  # factor on the time of each iteration that is planned from now on
        self.preemptions = 0
        self._waiting: deque[EngineRequest] = deque()
        self._prefilling: dict[EngineRequest, None] = {}  # younger than every decoding request
        self._decoding: dict[EngineRequest, None] = {}  # oldest first
        self._context_tokens = 0  # computed tokens of all decoding requests
        self._decode_step = 0
        self._granted_step = 0  # decoding requests have the blocks for all tokens that they compute before this step
        self._by_fill = [0] * pool.block_size_tokens  # decoding requests by (computed tokens - decode step) % size
        self._order = 0
        self._finish_due: list[_Due] = []  # heaps; an entry is void once its request has left the batch
        self._name_due: list[_Due] = []
        self._planned: Step | None = None
        self._iterations = 0  # of the planned step, after cuts

    @property
    def running(self) -> int:
        """Requests in the batch."""
        return len(self._decoding) + len(self._prefilling)

    @property
    def waiting(self) -> int:
        """Requests in the queue, the preempted included."""
        return len(self._waiting)

    @property
    def context_tokens(self) -> int:
        """KV tokens that the decoding requests hold together."""
        return self._context_tokens

    def add(self, request: EngineRequest) -> None:
        """Queue a new request; ValueError if it could not run even alone, or asks for nothing."""
        if request.prompt_tokens < 1 or request.output_tokens < 1:
            raise ValueError(f"request {request.id} needs a prompt and an output of one token at least")
        needed = self.pool.blocks_for(request.prompt_tokens + request.output_tokens - 1)
        if needed > self.pool.total_blocks:
            raise ValueError(f"request {request.id} needs {needed} KV blocks of {self.pool.total_blocks}")
        self._waiting.append(request)

    def abort(self, request: EngineRequest) -> bool:
        """Drop a request and take its blocks back; False if it is not here any more."""
        if request.phase is Phase.WAITING:
            self._waiting.remove(request)
        elif request.phase in (Phase.PREFILL, Phase.DECODE):
            self._leave_batch(request)
        else:
            return False
        request.phase = Phase.ABORTED
        return True

    def plan(self, most_iterations: int = 1) -> Step | None:
        """Choose the work of the next iteration and take the blocks for it; None if there is nothing to do.

        With `most_iterations` the step may stand for as many equal iterations if nothing but decode goes on in
        them: it ends at the latest when a request does, and before a request would have to be preempted.
        Raises RuntimeError if the step planned before has not been applied.
        """
        if self._planned is not None:
            raise RuntimeError("the planned step has not been applied")
        if not (self._decoding or self._prefilling or self._waiting):
            return None
        preempted: list[EngineRequest] = []
        admitted: list[EngineRequest] = []
        chunks: list[Chunk] = []
        self._grow_decoding(preempted)
        budget_tokens = self.max_num_batched_tokens - len(self._decoding)
        if self._prefilling:
            budget_tokens -= self._continue_prefill(budget_tokens, chunks, preempted)
        if self._waiting and not preempted:
            self._admit(budget_tokens, chunks, admitted)
        coasting = most_iterations > 1 and not (chunks or preempted)
        self._iterations = self._coasting_iterations(most_iterations) if coasting else 1
        self._planned = step = self._step(chunks, admitted, preempted)
        return step

    def _step(self, chunks: list[Chunk], admitted: list[EngineRequest], preempted: list[EngineRequest]) -> Step:
        sequences, context_tokens = len(self._decoding), self._context_tokens
        profile, slowness = self.profile, self.slowness
        kernels_s = profile.mixed_step_s([(c.new_tokens, c.before_tokens) for c in chunks], sequences, context_tokens)
        return Step(
            first_s=slowness * (self.step_overhead_s + kernels_s),
            longer_s=slowness * 1e-3 * profile.f_ms * sequences,
            iterations=self._iterations,
            chunks=chunks,
            decode_sequences=sequences,
            decode_context_tokens=context_tokens,
            admitted=admitted,
            preempted=preempted,
        )

    def cut(self, iterations: int) -> float:
        """End the planned step after that many of its iterations; returns its new duration in seconds.

        Raises RuntimeError without a plan, ValueError if it is not 1 to as many as are planned.
        """
        step = self._planned
        if step is None:
            raise RuntimeError("no step is planned")
        if not 1 <= iterations <= self._iterations:
            raise ValueError(f"a step of {self._iterations} iterations cannot be cut to {iterations}")
        self._iterations = iterations
        return step.elapsed_s(iterations)

    def used_blocks_after(self, iterations: int) -> int:
        """KV blocks held once that many iterations of the planned step are over; nothing changes."""
        return self.pool.used_blocks + self._growth_blocks(self._decode_step + max(1, iterations))

    def apply(self) -> Progress:
        """End the planned step: hand out its tokens, let finished requests go. RuntimeError without a plan."""
        step = self._planned
        if step is None:
            raise RuntimeError("no step is planned")
        self._planned = None
        iterations, decoded = self._iterations, list(self._decoding)
        now = self._decode_step = self._decode_step + iterations
        self._context_tokens += iterations * len(decoded)
        if iterations > 1:
            self._grant_until(now)
        prefilled: list[EngineRequest] = []
        finished: list[EngineRequest] = []
        due = self._finish_due
        while due and due[0][0] <= now:
            at, _, request = heappop(due)
            if request.phase is Phase.DECODE and request.finish_step == at:
                self._finish(request)
                finished.append(request)
        for chunk in step.chunks:
            request = chunk.request
            if request.phase is not Phase.PREFILL:
                continue  # aborted meanwhile
            request.base_tokens = chunk.before_tokens + chunk.new_tokens
            if request.base_tokens == request.known_tokens:
                prefilled.append(request)
                if self._end_prefill(request):
                    finished.append(request)
        return Progress(prefilled, decoded, finished, iterations)

    def _computed_tokens(self, request: EngineRequest) -> int:
        if request.phase is Phase.DECODE:
            return request.base_tokens + self._decode_step - request.joined_step
        return request.base_tokens

    def _growth_blocks(self, until_step: int) -> int:
        """Blocks that the decoding requests need for the steps that are not granted yet, before `until_step`.

        A request needs one for the step before which its computed tokens fill whole blocks.
        """
        size = self.pool.block_size_tokens
        rounds, rest = divmod(until_step - self._granted_step, size)
        by_fill = self._by_fill
        blocks = rounds * len(self._decoding)
        for step in range(until_step - rest, until_step):
            blocks += by_fill[-step % size]
        return blocks

    def _grant(self, until_step: int) -> bool:
        """Take the blocks for all steps before `until_step`; False, and nothing changed, if there are too few."""
        blocks = self._growth_blocks(until_step)
        if blocks and not self.pool.take(blocks):
            return False
        self._granted_step = until_step
        return True

    def _grant_until(self, now: int) -> None:
        """Do what planning each of the iterations that have passed would have done: take blocks, name full ones."""
        due = self._name_due
        while due and due[0][0] < now:
            self._grant(due[0][0] + 1)
            self._name_outputs()
        self._grant(now)

    def _grow_decoding(self, preempted: list[EngineRequest]) -> None:
        """Give a block to each decoding request whose last one is full, preempting the youngest if need be."""
        now = self._decode_step
        if not self._grant(now + 1):
            self._grow_oldest(preempted)
            self._granted_step = now + 1
        if self._name_due:
            self._name_outputs()

    def _grow_oldest(self, preempted: list[EngineRequest]) -> None:
        size = self.pool.block_size_tokens
        for request in list(self._decoding):
            if request.phase is not Phase.DECODE or self._computed_tokens(request) % size:
                continue  # preempted a moment ago, or its last block is not full
            while not self.pool.take(1):
                victim = next(reversed(self._prefilling or self._decoding))
                self._preempt(victim)
                preempted.append(victim)
                if victim is request:
                    break

    def _name_outputs(self) -> None:
        """Make those pieces of the output known by their hash that the steps granted so far fill."""
        due, granted = self._name_due, self._granted_step
        while due and due[0][0] < granted:
            at, _, request = heappop(due)
            if request.phase is not Phase.DECODE or request.name_due_step != at:
                continue  # it has left the batch
            self._count_own(request)
            self.pool.commit(request.holding, request.hashes, request.base_tokens + granted - request.joined_step)
            self._expect_name(request)

    def _expect_name(self, request: EngineRequest) -> None:
        """Note the step that fills the next named piece of the request's output, if there is one."""
        done = request.holding.full_names
        if done < len(request.hashes):
            missing_tokens = (done + 1) * self.pool.name_tokens - request.base_tokens
            step = request.name_due_step = request.joined_step + missing_tokens - 1
            if step < request.finish_step:
                heappush(self._name_due, (step, request.order, request))

    def _count_own(self, request: EngineRequest) -> None:
        """Write into a decoding request's holding how many blocks it has by now."""
        pool, holding = self.pool, request.holding
        blocks = pool.blocks_for(request.base_tokens + self._granted_step - request.joined_step)
        holding.own_blocks = blocks - pool.blocks_per_name * len(holding.shared)

    def _coasting_iterations(self, most: int) -> int:
        """How many iterations, the planned one included, pass before anything else than decode can happen."""
        now, due = self._decode_step, self._finish_due
        while due[0][2].phase is not Phase.DECODE or due[0][2].finish_step != due[0][0]:
            heappop(due)
        iterations = min(most, due[0][0] - now)
        if self._waiting and self._name_due and len(self._decoding) < self.max_num_seqs:
            # A longer cached prefix may let the next one in, which lacks blocks.
            iterations = min(iterations, self._name_due[0][0] + 1 - now)
        free_blocks = self.pool.free_blocks
        if self._growth_blocks(now + iterations) <= free_blocks:
            return iterations
        enough, too_many = 1, iterations
        while too_many - enough > 1:
            middle = (enough + too_many) // 2
            if self._growth_blocks(now + middle) <= free_blocks:
                enough = middle
            else:
                too_many = middle
        return enough

    def _continue_prefill(self, budget_tokens: int, chunks: list[Chunk], preempted: list[EngineRequest]) -> int:
        """Plan the next chunk of the one prompt that the last step left unfinished; return its tokens."""
        request = next(iter(self._prefilling))
        before = request.base_tokens
        new = min(request.known_tokens - before, budget_tokens)
        if new < 1:
            return 0
        pool, holding = self.pool, request.holding
        if not pool.grow(holding, pool.blocks_for(before + new) - pool.held_blocks(holding)):
            self._preempt(request)  # it is the youngest itself
            preempted.append(request)
            return 0
        pool.commit(holding, request.hashes, before + new)
        chunks.append(Chunk(request, new, before))
        return new

    def _admit(self, budget_tokens: int, chunks: list[Chunk], admitted: list[EngineRequest]) -> None:
        """Let waiting requests into the batch, first come first served, as long as everything suffices.

        A prompt's blocks count as cached from here on: who comes next in the same step may share them, as in vLLM.
        """
        pool = self.pool
        while self._waiting and budget_tokens > 0 and self.running < self.max_num_seqs and pool.free_blocks:
            request = self._waiting[0]
            known = request.known_tokens
            hits = pool.match(request.hashes, known)
            before = hits * pool.name_tokens
            new = min(known - before, budget_tokens)
            cached_blocks = hits * pool.blocks_per_name
            holding = pool.admit(
                request.hashes[:hits],
                new_blocks=pool.blocks_for(before + new) - cached_blocks,
                room_blocks=pool.blocks_for(known) - cached_blocks,
            )
            if holding is None:
                return
            self._waiting.popleft()
            pool.commit(holding, request.hashes, before + new)
            self._enter_batch(request, holding, before)
            chunks.append(Chunk(request, new, before))
            admitted.append(request)
            budget_tokens -= new

    def _enter_batch(self, request: EngineRequest, holding: Holding, cached_tokens: int) -> None:
        self._order += 1
        request.order = self._order
        request.holding = holding
        request.base_tokens = cached_tokens
        request.phase = Phase.PREFILL
        self._prefilling[request] = None
        if request.cached_tokens is None:
            request.cached_tokens = cached_tokens
            self.pool.count_lookup(request.prompt_tokens, cached_tokens)

    def _end_prefill(self, request: EngineRequest) -> bool:
        """Hand out the token that ends a prefill; True if that was the request's last one."""
        request.generated_tokens += 1
        if request.generated_tokens >= request.output_tokens:
            self._finish(request)
            return True
        del self._prefilling[request]
        self._decoding[request] = None
        computed = request.base_tokens
        self._context_tokens += computed
        request.phase = Phase.DECODE
        request.joined_step = self._decode_step
        request.finish_step = self._decode_step + request.output_tokens - request.generated_tokens
        heappush(self._finish_due, (request.finish_step, request.order, request))
        self._by_fill[(computed - self._decode_step) % self.pool.block_size_tokens] += 1
        self._expect_name(request)
        return False

    def _finish(self, request: EngineRequest) -> None:
        self._leave_batch(request)
        request.phase = Phase.FINISHED

    def _preempt(self, request: EngineRequest) -> None:
        self._leave_batch(request)
        request.phase = Phase.WAITING
        request.base_tokens = 0
        request.preemptions += 1
        self.preemptions += 1
        self._waiting.appendleft(request)

    def _leave_batch(self, request: EngineRequest) -> None:
        """Take a running request out of the batch; its full blocks stay cached."""
        if request.phase is Phase.DECODE:
            computed = self._computed_tokens(request)
            self._by_fill[(computed - self._decode_step) % self.pool.block_size_tokens] -= 1
            self._count_own(request)
            self.pool.commit(request.holding, request.hashes, computed)
            request.generated_tokens += self._decode_step - request.joined_step
            self._context_tokens -= computed
            del self._decoding[request]
        else:
            del self._prefilling[request]
        self.pool.release(request.holding)
