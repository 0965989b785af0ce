"""Prompts on one engine that another has computed: they hold their blocks while their KV is on the way.

As in vLLM, the blocks of a whole prompt are taken at once, and its last token is computed here once the rest is there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from extproc.sim.physics.request import EngineRequest, Phase

if TYPE_CHECKING:
    from extproc.sim.physics.blocks import BlockPool


class RemotePrompts:
    """Those of one engine that have got their blocks, up to the moment in which they are filled."""

    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool
        self._under_way = 0
        self.arriving: list[EngineRequest] = []
        """Have got their blocks; whoever drives the engine moves their KV, and empties this."""

    def __len__(self) -> int:
        """How many wait for their KV."""
        return self._under_way

    def begin(self, request: EngineRequest) -> bool:
        """Take the blocks of a whole prompt; False if there are too few."""
        pool, known = self._pool, request.prompt_tokens
        hits = pool.match(request.hashes, known)
        new_blocks = pool.blocks_for(known) - hits * pool.blocks_per_name
        holding = pool.admit(request.hashes[:hits], new_blocks=new_blocks)
        if holding is None:
            return False
        self._under_way += 1
        request.holding, request.phase = holding, Phase.RECEIVING
        request.cached_tokens = hits * pool.name_tokens
        self.arriving.append(request)
        return True

    def end(self, request: EngineRequest) -> None:
        """The KV of a prompt is here: it waits for its last token to be computed."""
        self._under_way -= 1
        request.remote = False
        self._pool.commit(request.holding, request.hashes, request.prompt_tokens - 1)
        request.phase = Phase.WAITING

    def drop(self, request: EngineRequest) -> None:
        """Take the blocks of a prompt back whose KV is not wanted any more."""
        self._under_way -= 1
        self._pool.release(request.holding)
