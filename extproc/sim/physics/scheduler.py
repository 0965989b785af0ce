"""vLLM v1's scheduler without its engine: plans one iteration after the other, and knows no clock.

Rules, as in vLLM 0.32 with its defaults: running requests come first, one token each; what is left of the token
budget goes to prompts, first come first served, the last one perhaps in part (chunked prefill). A request enters
the batch only if its whole prompt fits into free KV blocks. When blocks run out in decode, the youngest running
request loses its own and is computed anew later (preemption), and nobody enters in that iteration. A request whose
LoRA adapter finds no slot is passed over; one that is loaded makes its iteration longer.

As long as nothing but decode goes on, one step may stand for many iterations (coasting).
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import msgspec

from extproc.sim.physics.adapters import AdapterSlots
from extproc.sim.physics.decode import DecodeBatch
from extproc.sim.physics.remote import RemotePrompts
from extproc.sim.physics.request import Chunk, EngineRequest, Phase, Progress, Step

if TYPE_CHECKING:
    from extproc.core.speeds.profile import Profile
    from extproc.sim.physics.blocks import BlockPool, Holding


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
        max_loras: int = 1,
        lora_load_s: float = 0.0,
    ) -> None:
        if not 1 <= max_num_seqs <= max_num_batched_tokens:
            raise ValueError(
                f"max_num_batched_tokens ({max_num_batched_tokens}) must not be below max_num_seqs ({max_num_seqs})"
            )
        self.pool = pool
        self.adapters = AdapterSlots(max_loras, lora_load_s)
        self.profile = profile
        self.max_num_seqs = max_num_seqs
        self.max_num_batched_tokens = max_num_batched_tokens
        self.step_overhead_s = step_overhead_s  # what each iteration takes beside the profile's time
        self.slowness = 1.0  # factor on the time of each iteration that is planned from now on
        self.preemptions = 0
        self._waiting: deque[EngineRequest] = deque()
        self._prefilling: dict[EngineRequest, None] = {}  # younger than every decoding request
        self._decode = DecodeBatch(pool)
        self._order = 0
        self._planned: Step | None = None
        self.remote = RemotePrompts(pool)

    @property
    def running(self) -> int:
        """Requests in the batch."""
        return len(self._decode.requests) + len(self._prefilling)

    @property
    def waiting(self) -> int:
        """Requests in the queue, the preempted and those that wait for KV from elsewhere included."""
        return len(self._waiting) + len(self.remote)

    @property
    def waiting_adapters(self) -> list[str]:
        """Adapters that requests in the queue ask for."""
        return list(dict.fromkeys(request.adapter for request in self._waiting if request.adapter))

    @property
    def context_tokens(self) -> int:
        """KV tokens that the decoding requests hold together."""
        return self._decode.context_tokens

    @property
    def planned(self) -> Step | None:
        """The step that is being computed, as it was cut last."""
        return self._planned

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
            self.pool.release(request.holding)  # nothing, unless it is a remote prompt that has arrived
        elif request.phase in (Phase.PREFILL, Phase.DECODE):
            self._leave_batch(request)
        elif request.phase is Phase.RECEIVING:
            self.remote.drop(request)
        else:
            return False
        request.phase = Phase.ABORTED
        return True

    def received(self, request: EngineRequest) -> None:
        """The KV of a remote prompt is here: its last token is computed next, before what waits, as in vLLM."""
        self.remote.end(request)
        self._waiting.appendleft(request)

    def let_go(self, request: EngineRequest) -> None:
        """Another engine has fetched the KV of a finished request that hands over."""
        self.pool.release(request.holding)

    def plan(self, most_iterations: int = 1) -> Step | None:
        """Choose the work of the next iteration and take the blocks for it; None if there is nothing to do.

        With `most_iterations` the step may stand for as many equal iterations if nothing but decode goes on in
        them: it ends at the latest when a request does, and before a request would have to be preempted.
        Raises RuntimeError if the step planned before has not been applied.
        """
        if self._planned is not None:
            raise RuntimeError("the planned step has not been applied")
        decode = self._decode
        if not (decode.requests or self._prefilling or self._waiting):
            return None
        preempted: list[EngineRequest] = []
        admitted: list[EngineRequest] = []
        chunks: list[Chunk] = []
        loading_s = 0.0
        if not decode.grant(decode.step + 1):
            self._grow_oldest(preempted)
        decode.name_outputs()
        budget_tokens = self.max_num_batched_tokens - len(decode.requests)
        if self._prefilling:
            budget_tokens -= self._continue_prefill(budget_tokens, chunks, preempted)
        if self._waiting and not preempted:
            loading_s = self._admit(budget_tokens, chunks, admitted)
        if not (chunks or decode.requests):
            return None  # all that waits lacks blocks which are kept for other engines
        iterations = 1
        if most_iterations > 1 and not (chunks or preempted):
            # A longer cached prefix may let in the next one, which lacks blocks.
            in_want = bool(self._waiting) and len(decode.requests) < self.max_num_seqs
            iterations = decode.coasting_iterations(most_iterations, stop_at_names=in_want)
        self._planned = step = self._step(iterations, loading_s, chunks, admitted, preempted)
        return step

    def _step(
        self,
        iterations: int,
        loading_s: float,
        chunks: list[Chunk],
        admitted: list[EngineRequest],
        preempted: list[EngineRequest],
    ) -> Step:
        sequences, context_tokens = len(self._decode.requests), self._decode.context_tokens
        profile, slowness = self.profile, self.slowness
        kernels_s = profile.mixed_step_s([(c.new_tokens, c.before_tokens) for c in chunks], sequences, context_tokens)
        return Step(
            first_s=slowness * (self.step_overhead_s + kernels_s) + loading_s,
            longer_s=slowness * 1e-3 * profile.f_ms * sequences,
            iterations=iterations,
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
        if not 1 <= iterations <= step.iterations:
            raise ValueError(f"a step of {step.iterations} iterations cannot be cut to {iterations}")
        self._planned = step = msgspec.structs.replace(step, iterations=iterations)
        return step.duration_s

    def used_blocks_after(self, iterations: int) -> int:
        """KV blocks held once that many iterations of the planned step are over; nothing changes."""
        return self.pool.used_blocks + self._decode.growth_blocks(self._decode.step + max(1, iterations))

    def apply(self) -> Progress:
        """End the planned step: hand out its tokens, let finished requests go. RuntimeError without a plan."""
        step = self._planned
        if step is None:
            raise RuntimeError("no step is planned")
        self._planned = None
        decoded = list(self._decode.requests)
        prefilled: list[EngineRequest] = []
        finished = self._decode.advance(step.iterations)
        for request in finished:
            self._finish(request)
        for chunk in step.chunks:
            request = chunk.request
            if request.phase is not Phase.PREFILL:
                continue  # aborted meanwhile
            request.base_tokens = chunk.before_tokens + chunk.new_tokens
            if request.base_tokens == request.known_tokens:
                prefilled.append(request)
                if self._end_prefill(request):
                    finished.append(request)
        return Progress(prefilled, decoded, finished, step.iterations)

    def _grow_oldest(self, preempted: list[EngineRequest]) -> None:
        """Give out the blocks that there are, oldest request first, and preempt the youngest for more."""
        decode = self._decode
        for request in decode.lacking_block():
            while not self.pool.take(1):
                victim = next(reversed(self._prefilling or decode.requests))
                self._preempt(victim)
                preempted.append(victim)
                if victim is request:
                    break
        decode.mark_granted()

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

    def _admit(self, budget_tokens: int, chunks: list[Chunk], admitted: list[EngineRequest]) -> float:
        """Let waiting requests into the batch, first come first served, as long as everything suffices.

        Returns the seconds that their adapters take to load. Requests whose adapter has no slot let others pass. A
        prompt's blocks count as cached from here on: who comes next in the same step may share them, as in vLLM.
        """
        pool, passed = self.pool, deque[EngineRequest]()
        loading_s = 0.0
        while self._waiting and budget_tokens > 0 and self.running < self.max_num_seqs and pool.free_blocks:
            request = self._waiting[0]
            if not self.adapters.admits(request.adapter):
                passed.append(self._waiting.popleft())
                continue
            if request.remote:
                if not self.remote.begin(request):
                    break
                self._waiting.popleft()
                continue
            room = self._room_for(request, budget_tokens)
            if room is None:
                break
            holding, before, new = room
            self._waiting.popleft()
            pool.commit(holding, request.hashes, before + new)
            self._enter_batch(request, holding, before)
            chunks.append(Chunk(request, new, before))
            admitted.append(request)
            budget_tokens -= new
            loading_s += self.adapters.enter(request.adapter)
        self._waiting.extendleft(reversed(passed))
        return loading_s

    def _room_for(self, request: EngineRequest, budget_tokens: int) -> tuple[Holding, int, int] | None:
        """The blocks of a request that may enter the batch, its tokens that they hold already, and those to compute."""
        pool, known = self.pool, request.known_tokens
        if request.holding.own_blocks:  # of a remote prompt that has arrived: its last block is never full
            return request.holding, known - 1, 1
        hits = pool.match(request.hashes, known)
        before = hits * pool.name_tokens
        new = min(known - before, budget_tokens)
        cached_blocks = hits * pool.blocks_per_name
        holding = pool.admit(
            request.hashes[:hits],
            new_blocks=pool.blocks_for(before + new) - cached_blocks,
            room_blocks=pool.blocks_for(known) - cached_blocks,
        )
        return None if holding is None else (holding, before, new)

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
        self._decode.join(request)
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
            self._decode.leave(request)
        else:
            del self._prefilling[request]
        self.adapters.leave(request.adapter)
        if not (request.hands_over and request.generated_tokens):
            self.pool.release(request.holding)
