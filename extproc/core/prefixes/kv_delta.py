"""What changed in the set of KV blocks that one instance holds, and how that is written in few bytes.

Blocks are known by the hashes of `core.prefix_chain.token_chain`. Written form: a byte of flags (version in the upper
three bits, then which lists follow, then `cleared`), the block size and the length of each list that follows as LEB128
numbers, then the hashes, 8 bytes each, little-endian. That is 8 bytes a block and at most 11 for a block alone.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterator, Sequence
from enum import IntEnum

import msgspec

_VERSION = 1
_CLEARED = 1
_HASH_BYTES = 8
_MAX_NUMBER_BYTES = 5


class KvDeltaError(ValueError):
    """Bytes that are no delta, or one of a version that this program does not know."""


class KvTier(IntEnum):
    """Where a block lies; a lower tier is nearer to the GPU, so that a hit there is worth more."""

    GPU = 0
    CPU = 1
    DISK = 2


class KvDelta(msgspec.Struct, frozen=True):
    """Blocks whose place changed: forget all if `cleared`, then take over the lists; no hash stands in two of them.

    A block that was held already may be listed again: its nearest copy has moved to another tier. Applying a delta
    twice is the same as once.
    """

    block_size_tokens: int
    cleared: bool = False
    gpu: tuple[int, ...] = ()  # blocks whose nearest copy lies on the GPU now, parents before children
    cpu: tuple[int, ...] = ()
    disk: tuple[int, ...] = ()
    removed: tuple[int, ...] = ()  # held nowhere any more

    @property
    def stored(self) -> tuple[tuple[KvTier, tuple[int, ...]], ...]:
        """The lists of held blocks, by tier."""
        return (KvTier.GPU, self.gpu), (KvTier.CPU, self.cpu), (KvTier.DISK, self.disk)

    @property
    def blocks(self) -> int:
        """Number of blocks listed."""
        return len(self.gpu) + len(self.cpu) + len(self.disk) + len(self.removed)


def merged(deltas: Sequence[KvDelta]) -> KvDelta:
    """One delta that does what several do one after another; there must be one at least."""
    if len(deltas) == 1:
        return deltas[0]
    cleared, places = False, dict[int, KvTier | None]()
    for delta in deltas:
        if delta.cleared:
            cleared = True
            places.clear()
        for tier, blocks in delta.stored:
            for block in blocks:
                places.pop(block, None)  # to the end: parents stay before children
                places[block] = tier
        places.update(dict.fromkeys(delta.removed))
    lists: dict[KvTier | None, list[int]] = {None: [], **{tier: [] for tier in KvTier}}
    for block, place in places.items():
        lists[place].append(block)
    gpu, cpu, disk = (tuple(lists[tier]) for tier in KvTier)
    sizes = [delta.block_size_tokens for delta in deltas if delta.block_size_tokens]
    return KvDelta(sizes[-1] if sizes else 0, cleared, gpu, cpu, disk, tuple(lists[None]))


def pieces(delta: KvDelta, blocks: int) -> Iterator[KvDelta]:
    """The same in deltas of at most so many blocks each, to be applied in this order."""
    if delta.blocks <= blocks:
        yield delta
        return
    size = delta.block_size_tokens
    if delta.cleared:
        yield KvDelta(size, True)
    for name in ("gpu", "cpu", "disk", "removed"):
        listed = getattr(delta, name)
        for start in range(0, len(listed), blocks):
            yield KvDelta(size, **{name: listed[start : start + blocks]})


def encode(delta: KvDelta) -> bytes:
    """Write a delta as this file's head tells."""
    lists = (delta.gpu, delta.cpu, delta.disk, delta.removed)
    flags = _VERSION << 5 | (_CLEARED if delta.cleared else 0)
    head = bytearray(1)
    _write(head, delta.block_size_tokens)
    hashes = array("Q")
    for place, blocks in enumerate(lists):
        if blocks:
            flags |= 2 << place
            _write(head, len(blocks))
            hashes.extend(blocks)
    head[0] = flags
    return bytes(head) + _little_endian(hashes).tobytes()


def decode(data: bytes) -> KvDelta:
    """Read a delta; raises KvDeltaError and nothing else."""
    if not data or data[0] >> 5 != _VERSION:
        raise KvDeltaError(f"no delta of version {_VERSION}: {data[:1].hex() or 'empty'}")
    flags = data[0]
    block_size_tokens, position = _read(data, 1)
    lengths = []
    for place in range(4):
        length = 0
        if flags & 2 << place:
            length, position = _read(data, position)
        lengths.append(length)
    if len(data) - position != _HASH_BYTES * sum(lengths):
        raise KvDeltaError(f"a delta of {sum(lengths)} blocks has {len(data) - position} bytes of hashes")
    hashes = array("Q")
    hashes.frombytes(data[position:])
    _little_endian(hashes)
    lists, start = [], 0
    for length in lengths:
        lists.append(tuple(hashes[start : start + length]))
        start += length
    return KvDelta(block_size_tokens, bool(flags & _CLEARED), *lists)


def _write(out: bytearray, number: int) -> None:
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)


def _read(data: bytes, position: int) -> tuple[int, int]:
    number = 0
    for place, byte in enumerate(data[position : position + _MAX_NUMBER_BYTES]):
        number |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            return number, position + place + 1
    raise KvDeltaError("a delta ends or goes astray within a number")


def _little_endian(hashes: array[int]) -> array[int]:
    if sys.byteorder == "big":
        hashes.byteswap()
    return hashes
