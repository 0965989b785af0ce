"""Hash chains of a prompt's blocks: equal hashes mean equal prompts up to and including that block.

Two forms: blocks of bytes, which need no tokenizer, and blocks of tokens of the engine's own size.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from functools import lru_cache
from struct import Struct

import xxhash

BLOCK_BYTES = 256  # about 64 tokens of English, four KV blocks of vLLM's default size
MAX_BLOCKS = 16_384  # of one prompt: 4 MiB of text, or 262,144 tokens in blocks of 16; what follows has no hash
_TOKEN_BYTES = 4
_TOGETHER = 64  # blocks that are cut at once: a call for each costs as much as its hash


def byte_chain(pieces: Iterable[bytes], salt: str, block_bytes: int = BLOCK_BYTES) -> tuple[int, ...]:
    """Hash chain of a prompt's full blocks, first block first; the rest at the end has no hash.

    `pieces` are the prompt's parts in the order in which the engine sees them; `salt` keeps apart what engines never
    share (model, LoRA adapter, tenant, cache salt).
    """
    return _extend(chain_seed(salt), b"".join(pieces), block_bytes)


def token_chain(token_ids: Sequence[int], salt: str, block_size_tokens: int) -> tuple[int, ...]:
    """The same over blocks of token ids. Raises OverflowError for ids that are negative or beyond 32 bits."""
    return extend_chain(chain_seed(salt), token_ids, block_size_tokens)


def prefix_salt(model: str, tenant: str = "", cache_salt: str = "") -> str:
    """What keeps equal prompts apart: router and agent salt with this one function, or their chains never meet.

    `model` is the name that requests ask for; a LoRA adapter has a name of its own. An engine shares blocks between
    tenants unless a cache salt parts them, so a chain that shall meet the engine's own blocks names no tenant.
    """
    return "\0".join((model, tenant, cache_salt))


def chain_seed(salt: str) -> int:
    """What stands in the place of the hash before a chain's first block."""
    return xxhash.xxh3_64_intdigest(salt.encode("utf-8", "replace"))


def extend_chain(parent: int, token_ids: Sequence[int], block_size_tokens: int) -> tuple[int, ...]:
    """Hashes of the full blocks of `token_ids` that follow the block hashed `parent`; raises as `token_chain`."""
    return _extend(parent, array("I", token_ids).tobytes(), block_size_tokens * _TOKEN_BYTES)


def _extend(parent: int, prompt: bytes, block_bytes: int) -> tuple[int, ...]:
    digest, blocks = xxhash.xxh3_64_intdigest, min(len(prompt) // block_bytes, MAX_BLOCKS)
    hashes: list[int] = []
    for first in range(0, blocks, _TOGETHER):
        cut = _cutter(block_bytes, min(_TOGETHER, blocks - first)).unpack_from(prompt, first * block_bytes)
        hashes += [parent := digest(block, parent) for block in cut]
    return tuple(hashes)


@lru_cache(maxsize=1024)
def _cutter(block_bytes: int, blocks: int) -> Struct:
    return Struct(f"{block_bytes}s" * blocks)
