"""Hash chains of a prompt's blocks: equal hashes mean equal prompts up to and including that block.

Two forms: blocks of bytes, which need no tokenizer, and blocks of tokens of the engine's own size.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence

import xxhash

BLOCK_BYTES = 256  # about 64 tokens of English, four KV blocks of vLLM's default size
MAX_BLOCKS = 16_384  # of one prompt: 4 MiB of text, or 262,144 tokens in blocks of 16; what follows has no hash
_TOKEN_BYTES = 4


def byte_chain(pieces: Iterable[bytes], salt: str, block_bytes: int = BLOCK_BYTES) -> tuple[int, ...]:
    """Hash chain of a prompt's full blocks, first block first; the rest at the end has no hash.

    `pieces` are the prompt's parts in the order in which the engine sees them; `salt` keeps apart what engines never
    share (model, LoRA adapter, tenant, cache salt).
    """
    return _chain(b"".join(pieces), salt, block_bytes)


def token_chain(token_ids: Sequence[int], salt: str, block_size_tokens: int) -> tuple[int, ...]:
    """The same over blocks of token ids. Raises OverflowError for ids that are negative or beyond 32 bits."""
    return _chain(array("I", token_ids).tobytes(), salt, block_size_tokens * _TOKEN_BYTES)


def _chain(prompt: bytes, salt: str, block_bytes: int) -> tuple[int, ...]:
    blocks = memoryview(prompt)
    seed = xxhash.xxh3_64_intdigest(salt.encode())
    hashes = []
    for start in range(0, min(len(blocks), MAX_BLOCKS * block_bytes) - block_bytes + 1, block_bytes):
        seed = xxhash.xxh3_64_intdigest(blocks[start : start + block_bytes], seed)
        hashes.append(seed)
    return tuple(hashes)
