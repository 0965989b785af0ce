"""KV events of a simulated engine: what enters and leaves its block pool, published as vLLM publishes it."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from extproc.adapters.kv_events import open_publisher
from extproc.adapters.kv_frames import write_batch
from extproc.sim.engine import tokenizer

if TYPE_CHECKING:
    from extproc.sim.engine.config import KvEventsConfig
    from extproc.sim.physics.blocks import BlockPool


class TokenChain(list[int]):
    """A chain of block hashes that remembers the tokens it was made of, and by which LoRA adapter, if by any."""

    __slots__ = ("adapter", "salt", "tokens")

    def __init__(self, hashes: Iterable[int], tokens: bytes, salt: bytes = b"", adapter: str = "") -> None:
        super().__init__(hashes)
        self.tokens = tokens
        self.salt = salt
        self.adapter = adapter


class KvEventLog:
    """Events since the last `take`, as vLLM's maps; `on_event` is called when there is something to take."""

    def __init__(self, block_size_tokens: int, on_event: Callable[[], object] = lambda: None) -> None:
        self._block_size_tokens = block_size_tokens
        self._on_event = on_event
        self._events: list[dict[str, Any]] = []
        self._last: tuple[Sequence[int], int] | None = None  # chain and index of the block stored last

    def stored(self, chain: Sequence[int], index: int) -> None:
        """The block at `index` of a chain with tokens was cached. Raises TypeError for a chain without."""
        if not isinstance(chain, TokenChain):
            raise TypeError("KV events tell tokens: the request's hashes must be a TokenChain")
        size_bytes = tokenizer.TOKEN_BYTES * self._block_size_tokens
        token_ids = tokenizer.to_ids(chain.tokens[index * size_bytes : (index + 1) * size_bytes])
        extra_keys = [chain.salt.decode()] if chain.salt and not index else None
        if self._last is not None and self._last[0] is chain and self._last[1] == index - 1:
            event = self._events[-1]  # vLLM tells all blocks of a request's step in one event
            event["block_hashes"].append(chain[index])
            event["token_ids"] += token_ids
            event["extra_keys"].append(extra_keys)
        else:
            self._add(
                {
                    "type": "BlockStored",
                    "block_hashes": [chain[index]],
                    "parent_block_hash": chain[index - 1] if index else None,
                    "token_ids": token_ids,
                    "block_size": self._block_size_tokens,
                    "lora_id": None,
                    "medium": "GPU",
                    "lora_name": chain.adapter or None,
                    "extra_keys": [extra_keys],
                    "group_idx": 0,
                    "kv_cache_spec_kind": "full_attention",
                }
            )
        self._last = (chain, index)

    def removed(self, block: int) -> None:
        """A block was evicted."""
        self._add({"type": "BlockRemoved", "block_hashes": [block], "medium": "GPU", "group_idx": 0})

    def cleared(self) -> None:
        """The cache was reset."""
        self._add({"type": "AllBlocksCleared"})

    def take(self) -> list[dict[str, Any]]:
        """All events so far, oldest first, which are then forgotten."""
        events, self._events, self._last = self._events, [], None
        return events

    def _add(self, event: dict[str, Any]) -> None:
        self._last = None
        self._events.append(event)
        if len(self._events) == 1:
            self._on_event()


@contextlib.asynccontextmanager
async def publishing(config: KvEventsConfig | None, pool: BlockPool) -> AsyncIterator[None]:
    """Publish what happens in `pool` inside the context, one batch a turn of the event loop. Raises ConfigError."""
    if config is None:
        yield
        return
    arrays = config.arrays
    async with open_publisher(
        config.endpoint, config.replay_endpoint, topic=config.topic, buffer_steps=config.buffer_steps
    ) as publisher:

        def publish() -> None:
            publisher.publish(write_batch(time.time(), log.take(), 0, arrays=arrays))

        # A step of the engine does not yield: all its events are in one batch, as vLLM has it.
        log = KvEventLog(pool.block_size_tokens, lambda: loop.call_soon(publish))
        loop = asyncio.get_running_loop()
        pool.log = log
        try:
            yield
        finally:
            pool.log = None
