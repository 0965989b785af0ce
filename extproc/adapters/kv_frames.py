"""The bytes of KV events: frames as vLLM, SGLang and TensorRT-LLM publish them, read as `prefixes.kv_fold`'s events.

A frame is (topic, number as 8 bytes big-endian, msgpack). The msgpack is a batch, `[ts, [events], rank]` or, in the
newest vLLM, a map with `ts`, `events` and `data_parallel_rank`. Events are maps with a `type` (vLLM from 0.30 on,
TensorRT-LLM) or arrays that begin with it (vLLM before, SGLang), fields in the order of `_FIELDS`; those at the end
may be missing, and what is not known here is skipped. Sources: vllm/distributed/kv_events.py of vLLM,
python/sglang/srt/disaggregation/kv_events.py of SGLang, TensorRT-LLM's streaming KV events.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import msgspec
import xxhash

from extproc.core.prefixes.kv_delta import KvTier
from extproc.core.prefixes.kv_fold import Cleared, Event, Removed, Stored
from extproc.core.prefixes.kv_sequence import Frame

SEQ_BYTES = 8
END_OF_REPLAY = b"\xff" * SEQ_BYTES  # in the place of a number
_HASH_MASK = (1 << 64) - 1  # as vLLM shortens its hashes when it publishes numbers
# kv_cache_spec_kind (KVCacheSpecKind in vllm/v1/kv_cache_interface.py) of layers for which every block of a prefix
# counts; the others keep a window or a state.
_WHOLE_PREFIX_KINDS = (None, "full_attention", "mla_attention", "sink_full_attention", "unknown")
_FIELDS = {
    "BlockStored": (
        "block_hashes parent_block_hash token_ids block_size lora_id medium lora_name extra_keys group_idx "
        "kv_cache_spec_kind kv_cache_spec_sliding_window"
    ).split(),
    "BlockRemoved": "block_hashes medium group_idx remaining_copy_counts".split(),
    "AllBlocksCleared": [],
}


# Engines differ in what stands where at the end of an array: from a value of another type on, nothing is believed.
_OPTIONAL = {
    "lora_id": int,
    "medium": str,
    "lora_name": str,
    "extra_keys": list,
    "group_idx": int,
    "kv_cache_spec_kind": str,
    "remaining_copy_counts": list,
}


class KvEventsError(ValueError):
    """A frame that is not one of KV events, or is damaged."""


class _Stored(msgspec.Struct, frozen=True, kw_only=True):
    block_hashes: list[int | bytes]
    parent_block_hash: int | bytes | None = None
    token_ids: tuple[int, ...] = ()
    block_size: int
    lora_id: int | None = None
    medium: str | None = None
    lora_name: str | None = None
    extra_keys: list[Any] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    cache_salt: str | None = None  # SGLang


class _Removed(msgspec.Struct, frozen=True, kw_only=True):
    block_hashes: list[int | bytes]
    medium: str | None = None
    group_idx: int | None = None
    remaining_copy_counts: list[int] | None = None


def read_frame(parts: Sequence[bytes]) -> Frame:
    """Read a message's last two parts, number and batch; raises KvEventsError and nothing else."""
    seq = read_seq(parts)
    payload = parts[-1]
    ts, events = _read_batch(payload)
    return Frame(seq, ts, events, xxhash.xxh3_64_intdigest(payload))


def read_seq(parts: Sequence[bytes]) -> int:
    """The number of a message; raises KvEventsError if it has none."""
    if len(parts) < 2 or len(parts[-2]) != SEQ_BYTES:
        raise KvEventsError(f"a message of {len(parts)} parts without an 8-byte number before the last")
    return int.from_bytes(parts[-2], "big")


def _read_batch(payload: bytes) -> tuple[float, tuple[Event, ...]]:
    try:
        batch = msgspec.msgpack.decode(payload)
    except (ValueError, RecursionError) as error:  # msgspec's errors are ValueErrors, of bad UTF-8 too
        raise KvEventsError(f"not msgpack: {error}") from None
    if isinstance(batch, dict):
        batch = [batch.get("ts"), batch.get("events")]
    if not isinstance(batch, list) or len(batch) < 2 or not isinstance(batch[1], list):
        raise KvEventsError("a batch is no list of a time and events")
    ts = batch[0]
    if not isinstance(ts, int | float) or not math.isfinite(ts):
        raise KvEventsError("a batch has no time")
    events = [event for raw in batch[1] if (event := _event(raw)) is not None]
    return float(ts), tuple(events)


def _event(raw: object) -> Event | None:
    """An event, None if it is of a kind that is not known here."""
    if isinstance(raw, list) and raw and isinstance(raw[0], str):
        kind, fields = raw[0], _fields(raw)
    elif isinstance(raw, dict) and isinstance(raw.get("type"), str):
        kind, fields = raw["type"], raw
    else:
        raise KvEventsError("an event has no type")
    try:
        if kind == "BlockStored":
            if _not_single_tokens(fields.get("token_ids")):
                fields = {**fields, "token_ids": ()}
            return _stored(msgspec.convert(fields, _Stored))
        if kind == "BlockRemoved":
            return _removed(msgspec.convert(fields, _Removed))
    except (msgspec.ValidationError, ValueError, OverflowError) as error:
        raise KvEventsError(f"{kind}: {error}") from None
    return Cleared() if kind == "AllBlocksCleared" else None


def _fields(raw: list[Any]) -> dict[str, Any]:
    """An event's array as a map."""
    fields = {}
    if isinstance(raw[-1], dict):  # so SGLang tells a cache salt
        *raw, fields = raw
    for name, value in zip(_FIELDS.get(raw[0], ()), raw[1:], strict=False):
        if value is not None and not isinstance(value, _OPTIONAL.get(name, object)):
            break
        fields[name] = value
    return fields


def _not_single_tokens(token_ids: object) -> bool:
    """Whether blocks consist of pairs of tokens, as speculative decoding may cache them: no router has such blocks."""
    return isinstance(token_ids, list) and bool(token_ids) and isinstance(token_ids[0], list)


def _stored(raw: _Stored) -> Stored:
    if raw.block_size < 1 and raw.token_ids:
        raise ValueError(f"block_size is {raw.block_size}")
    cache_salt, plain_blocks = _extra_keys(raw)
    return Stored(
        hashes=tuple(map(_hash, raw.block_hashes)),
        parent=None if raw.parent_block_hash is None else _hash(raw.parent_block_hash),
        token_ids=raw.token_ids,
        block_size_tokens=raw.block_size,
        tier=_tier(raw.medium),
        adapter=raw.lora_name or (None if raw.lora_id else ""),
        cache_salt=raw.cache_salt or cache_salt,
        plain_blocks=plain_blocks,
        group=raw.group_idx or 0,
        whole_prefix=raw.kv_cache_spec_kind in _WHOLE_PREFIX_KINDS,
    )


def _removed(raw: _Removed) -> Removed:
    return Removed(
        hashes=tuple(map(_hash, raw.block_hashes)),
        tier=_tier(raw.medium),
        group=raw.group_idx or 0,
        copies_left=tuple(max(0, left) for left in raw.remaining_copy_counts or ()),
    )


def _extra_keys(raw: _Stored) -> tuple[str, int]:
    """The cache salt of a prompt's first block, and how many leading blocks are told by their tokens alone.

    A block's extra keys are the adapter's name (its number in older versions), in the first block the cache salt,
    and marks of images or embeddings. Of a single further text in the first block one cannot tell whether it is a
    salt or, in older versions, an image: as a salt it parts the block from plain ones either way.
    """
    cache_salt = ""
    for index, keys in enumerate(raw.extra_keys or ()):
        if keys is None:
            continue
        if not isinstance(keys, list):
            return cache_salt, index
        further = [key for key in keys if key not in (raw.lora_name, raw.lora_id)]
        if index == 0 and raw.parent_block_hash is None and len(further) == 1 and isinstance(further[0], str):
            cache_salt = further[0]
        elif further:
            return cache_salt, index
    return cache_salt, len(raw.block_hashes)


def _hash(value: int | bytes) -> int:
    if isinstance(value, bytes):
        value = int.from_bytes(value[-8:], "big")
    return value & _HASH_MASK


def _tier(medium: str | None) -> KvTier:
    """Tier by a medium's name: GPU, CPU, CPU_TIER1, cpu_pinned …; whatever is neither GPU nor CPU is slower."""
    if not medium or "GPU" in medium.upper():
        return KvTier.GPU
    return KvTier.CPU if "CPU" in medium.upper() else KvTier.DISK


def write_batch(ts: float, events: Sequence[dict[str, Any]], rank: int, *, arrays: bool = False) -> bytes:
    """Msgpack of a batch as an engine writes it, from events as maps; `arrays`: in the older form."""
    if not arrays:
        return msgspec.msgpack.encode([ts, events, rank])
    lists = [[event["type"], *(event.get(field) for field in _FIELDS[event["type"]])] for event in events]
    return msgspec.msgpack.encode([ts, lists, rank])
