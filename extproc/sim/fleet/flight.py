"""A request on its way through the simulated fleet."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from extproc.sim.fleet.engine import Engine
    from extproc.sim.physics.request import EngineRequest
    from extproc.sim.policies.policy import Ask


@dataclass(slots=True)
class Flight:
    """A request on its way; what it has not got yet is None."""

    index: int
    ask: Ask
    hashes: tuple[int, ...]  # names of all blocks, those of the answer too
    arrived_s: float
    replica: int
    attempts: int = 0
    engine: Engine | None = None  # that answers
    request: EngineRequest | None = None  # there
    ttft_s: float | None = None
    heard_s: float = 0.0  # when the latest word of an engine arrives, or arrived: none overtakes another
    partner: Engine | None = None  # that computes the prompt; None: the one that answers does
    prompt: EngineRequest | None = None  # there, until its KV has been fetched
    prompt_cached_tokens: int | None = None  # that the partner held of it
    partner_broke: bool = False
    held_s: float = 0.0  # in the router

    @property
    def cached_tokens(self) -> int | None:
        """Prompt tokens that needed not be computed; None without a word of an engine."""
        if self.partner is not None:
            return self.prompt_cached_tokens
        return self.request.cached_tokens if self.request else None

    def needs(self, engine: Engine) -> bool:
        """Whether it is lost with an engine; that of its prompt has done its part once its KV was fetched."""
        return self.engine is engine or (self.partner is engine and self.prompt is not None)
