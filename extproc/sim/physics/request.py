"""A request inside one engine, and what an iteration of that engine does to it."""

from __future__ import annotations

from enum import StrEnum
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
    FINISHED = "finished"
    ABORTED = "aborted"


class EngineRequest:
    """A request inside one engine. `hashes` is the chain of its full blocks, over prompt and output if known.

    Attributes other than the constructor's are the scheduler's to write. `cached_tokens` and `preemptions` are for
    reading at any time, `generated_tokens` once the request is finished or aborted.
    """

    __slots__ = (
        "base_tokens",
        "block_due_step",
        "cached_tokens",
        "finish_step",
        "generated_tokens",
        "hashes",
        "holding",
        "id",
        "joined_step",
        "order",
        "output_tokens",
        "phase",
        "preemptions",
        "prompt_tokens",
    )

    def __init__(self, request_id: str, prompt_tokens: int, output_tokens: int, hashes: Sequence[int] = ()) -> None:
        self.id = request_id
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
        self.block_due_step = -1  # the decode step for which it needs one more block
        self.finish_step = -1

    @property
    def known_tokens(self) -> int:
        """Tokens that a prefill must compute: the prompt, after a preemption also the output so far."""
        return self.prompt_tokens + self.generated_tokens


class Chunk(msgspec.Struct, frozen=True, gc=False):
    """Prompt tokens of one request that are computed in a step."""

    request: EngineRequest
    new_tokens: int
    before_tokens: int


class Step(msgspec.Struct, frozen=True):
    """One planned iteration of the engine."""

    duration_s: float
    chunks: list[Chunk]
    decode_sequences: int
    decode_context_tokens: int  # tokens that those hold before the step
    admitted: list[EngineRequest]  # entered the batch, the preempted that come back included
    preempted: list[EngineRequest]

    @property
    def tokens(self) -> int:
        """Tokens computed in the step."""
        return self.decode_sequences + sum(chunk.new_tokens for chunk in self.chunks)


class Progress(msgspec.Struct, frozen=True):
    """What a step has brought: each request of `prefilled` and `decoded` got one token."""

    prefilled: list[EngineRequest]
    decoded: list[EngineRequest]
    finished: list[EngineRequest]  # of those, the ones that are complete
