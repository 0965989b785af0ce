"""A request inside one engine, and what an iteration of that engine does to it."""

from __future__ import annotations

from enum import StrEnum
from math import ceil, sqrt
from typing import TYPE_CHECKING

import msgspec

from extproc.sim.physics.blocks import Holding

if TYPE_CHECKING:
    from collections.abc import Sequence


class Phase(StrEnum):
    """Where a request is inside the engine."""

    WAITING = "waiting"
    PREFILL = "prefill"
    DECODE = "decode"
    RECEIVING = "receiving"  # its blocks are taken, and filled by another engine
    FINISHED = "finished"
    ABORTED = "aborted"


class EngineRequest:
    """A request inside one engine. `hashes` is the chain of its full blocks, over prompt and output if known.

    Attributes other than the constructor's are the scheduler's to write. `cached_tokens` and `preemptions` are for
    reading at any time, `generated_tokens` once the request is finished or aborted.
    """

    __slots__ = (
        "adapter",
        "base_tokens",
        "cached_tokens",
        "finish_step",
        "generated_tokens",
        "hands_over",
        "hashes",
        "holding",
        "id",
        "joined_step",
        "name_due_step",
        "order",
        "output_tokens",
        "phase",
        "preemptions",
        "prompt_tokens",
        "remote",
    )

    def __init__(
        self,
        request_id: str,
        prompt_tokens: int,
        output_tokens: int,
        hashes: Sequence[int] = (),
        adapter: str = "",
    ) -> None:
        self.id = request_id
        self.adapter = adapter  # "": the base model alone
        self.prompt_tokens = prompt_tokens
        self.output_tokens = output_tokens  # how many it will make
        self.hashes = hashes
        self.phase = Phase.WAITING
        self.generated_tokens = 0
        self.cached_tokens: int | None = None  # prompt tokens found in the cache when it first entered the batch
        self.preemptions = 0
        self.holding = Holding()
        self.order = 0  # position among the running, older is less
        self.base_tokens = 0  # computed tokens: in prefill now, in decode at `joined_step`
        self.joined_step = 0
        self.finish_step = -1
        self.name_due_step = -1  # the decode step that fills the next named piece of its output
        self.hands_over = False  # keeps its blocks beyond its end, until `Scheduler.let_go`
        self.remote = False  # its prompt was computed elsewhere, and has not arrived yet

    @property
    def known_tokens(self) -> int:
        """Tokens that a prefill must compute: the prompt, after a preemption also the output so far."""
        return self.prompt_tokens + self.generated_tokens


class Chunk(msgspec.Struct, frozen=True, gc=False):
    """Prompt tokens of one request that are computed in a step."""

    request: EngineRequest
    new_tokens: int
    before_tokens: int


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """One planned iteration of the engine, or several equal ones in which nothing but decode goes on.

    An iteration of decode lasts `longer_s` more than the one before it, because every sequence has a token more.
    """

    first_s: float  # duration of the first iteration
    longer_s: float
    iterations: int
    chunks: list[Chunk]
    decode_sequences: int
    decode_context_tokens: int  # tokens that those hold before the step
    admitted: list[EngineRequest]  # entered the batch, the preempted that come back included
    preempted: list[EngineRequest]

    @property
    def duration_s(self) -> float:
        """Seconds from the start to the end of all iterations."""
        return self.elapsed_s(self.iterations)

    @property
    def tokens(self) -> int:
        """Tokens computed in all iterations."""
        return self.iterations * self.decode_sequences + sum([chunk.new_tokens for chunk in self.chunks])

    def elapsed_s(self, iterations: int) -> float:
        """Seconds from the start to the end of the first `iterations`."""
        return iterations * (self.first_s + 0.5 * self.longer_s * (iterations - 1))

    def iterations_until(self, seconds: float) -> int:
        """How many iterations it takes until `seconds` have passed: 1 at least, all of them at most.

        The positive root of `elapsed_s(k) = seconds`, in the form without cancellation, rounded up.
        """
        if self.iterations == 1 or seconds <= self.first_s:
            return 1
        if seconds >= self.duration_s:
            return self.iterations
        linear_s = self.first_s - 0.5 * self.longer_s
        root = 2 * seconds / (linear_s + sqrt(linear_s * linear_s + 2 * self.longer_s * seconds))
        count = min(ceil(root), self.iterations)
        if count > 1 and self.elapsed_s(count - 1) >= seconds:
            return count - 1  # the root was rounded over a whole number
        return count if self.elapsed_s(count) >= seconds else count + 1


class Progress(msgspec.Struct, frozen=True):
    """What a step has brought: each of `prefilled` got one token, each of `decoded` one in every iteration."""

    prefilled: list[EngineRequest]
    decoded: list[EngineRequest]
    finished: list[EngineRequest]  # of those, the ones that are complete
    iterations: int = 1
