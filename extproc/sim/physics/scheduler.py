"""vLLM v1's scheduler without its engine: plans one iteration after the other, and knows no clock.

Rules, as in vLLM 0.32 with its defaults: running requests come first, one token each; what is left of the token
budget goes to prompts, first come first served, the last one perhaps in part (chunked prefill). A request enters
the batch only if its whole prompt fits into free KV blocks. When blocks run out in decode, the youngest running
request loses its own and is computed anew later (preemption), and nobody enters in that iteration.

Decoding requests advance in lockstep, so a step does not touch each of them: the scheduler counts decode steps and
keeps, by step, who will need a block and who will be done. A step costs as much as there are such events.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from extproc.sim.physics.request import Chunk, EngineRequest, Phase, Progress, Step

if TYPE_CHECKING:
    from collections.abc import Iterable

    from extproc.core.profile import Profile
    from extproc.sim.physics.blocks import BlockPool, Holding


class Scheduler:
    """Continuous batching on one engine: `plan` a step, let its time pass, `apply` it.

    `add` and `abort` may be called at any time, also between the two.
    """

    def __init__(
        self,
        pool: BlockPool,
        profile: Profile,
        *,
        max_num_seqs: int = 256,
        max_num_batched_tokens: int = 8192,
    ) -> None:
        if not 1 <= max_num_seqs <= max_num_batched_tokens:
            raise ValueError(
                f"max_num_batched_tokens ({max_num_batched_tokens}) must not be below max_num_seqs ({max_num_seqs})"
            )
        self.pool = pool
        self.profile = profile
        self.max_num_seqs = max_num_seqs
        self.max_num_batched_tokens = max_num_batched_tokens
        self.preemptions = 0
        self._waiting: deque[EngineRequest] = deque()
        self._prefilling: dict[EngineRequest, None] = {}  # younger than every decoding request
        self._decoding: dict[EngineRequest, None] = {}  # oldest first
        self._context_tokens = 0  # computed tokens of all decoding requests
        self._decode_step = 0
        self._order = 0
        self._block_due: dict[int, list[EngineRequest]] = {}
        self._finish_due: dict[int, list[EngineRequest]] = {}
        self._planned: Step | None = None

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

    def plan(self) -> Step | None:
        """Choose the work of the next iteration and take the blocks for it; None if there is nothing to do.

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
        duration_s = self.profile.mixed_step_s(
            [(chunk.new_tokens, chunk.before_tokens) for chunk in chunks],
            len(self._decoding),
            self._context_tokens,
        )
        step = Step(duration_s, chunks, len(self._decoding), self._context_tokens, admitted, preempted)
        self._planned = step
        return step

    def apply(self) -> Progress:
        """End the planned step: hand out its tokens, let finished requests go. RuntimeError without a plan."""
        step = self._planned
        if step is None:
            raise RuntimeError("no step is planned")
        self._planned = None
        self._decode_step += 1
        self._context_tokens += len(self._decoding)
        decoded = list(self._decoding)
        prefilled: list[EngineRequest] = []
        finished: list[EngineRequest] = []
        for request in self._finish_due.pop(self._decode_step, ()):
            if request.phase is Phase.DECODE and request.finish_step == self._decode_step:
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
        return Progress(prefilled, decoded, finished)

    def _computed_tokens(self, request: EngineRequest) -> int:
        if request.phase is Phase.DECODE:
            return request.base_tokens + self._decode_step - request.joined_step
        return request.base_tokens

    def _grow_decoding(self, preempted: list[EngineRequest]) -> None:
        """Give a block to each decoding request whose last one is full, preempting the youngest if need be."""
        now = self._decode_step
        due: Iterable[EngineRequest] | None = self._block_due.pop(now, None)
        if due is None:
            return
        due = [r for r in due if r.phase is Phase.DECODE and r.block_due_step == now]
        if len(due) > self.pool.free_blocks:
            due.sort(key=lambda request: request.order)
        for request in due:
            if request.phase is not Phase.DECODE or request.block_due_step != now:
                continue  # preempted a moment ago, or listed twice because it left and came back
            self.pool.commit(request.holding, request.hashes, self._computed_tokens(request))
            while not self.pool.grow(request.holding, 1):
                victim = next(reversed(self._prefilling or self._decoding))
                self._preempt(victim)
                preempted.append(victim)
                if victim is request:
                    break
            else:
                self._expect_block(request, now + self.pool.block_size_tokens)

    def _expect_block(self, request: EngineRequest, step: int) -> None:
        request.block_due_step = step
        if step < request.finish_step:
            self._block_due.setdefault(step, []).append(request)

    def _continue_prefill(self, budget_tokens: int, chunks: list[Chunk], preempted: list[EngineRequest]) -> int:
        """Plan the next chunk of the one prompt that the last step left unfinished; return its tokens."""
        request = next(iter(self._prefilling))
        before = request.base_tokens
        new = min(request.known_tokens - before, budget_tokens)
        if new < 1:
            return 0
        holding = request.holding
        if not self.pool.grow(holding, self.pool.blocks_for(before + new) - holding.blocks):
            self._preempt(request)  # it is the youngest itself
            preempted.append(request)
            return 0
        self.pool.commit(holding, request.hashes, before + new)
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
            before = hits * pool.block_size_tokens
            new = min(known - before, budget_tokens)
            holding = pool.admit(
                request.hashes[:hits],
                new_blocks=pool.blocks_for(before + new) - hits,
                room_blocks=pool.blocks_for(known) - hits,
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
        self._finish_due.setdefault(request.finish_step, []).append(request)
        self._expect_block(request, self._decode_step + -computed % self.pool.block_size_tokens)
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
            self.pool.commit(request.holding, request.hashes, computed)
            request.generated_tokens += self._decode_step - request.joined_step
            self._context_tokens -= computed
            del self._decoding[request]
        else:
            del self._prefilling[request]
        self.pool.release(request.holding)
