"""A make-believe engine that publishes KV events, and a router that applies deltas."""

from __future__ import annotations

from collections.abc import Iterable

from extproc.core.prefixes.kv_delta import KvDelta, KvTier
from extproc.core.prefixes.kv_fold import Cleared, Event, KvFold, Removed, Stored
from extproc.core.prefixes.kv_sequence import Frame, KvSequence
from extproc.core.prefixes.prefix_chain import prefix_salt, token_chain

MODEL = "llama"
BLOCK = 4


def names(*paths: tuple[int, ...], model: str = MODEL, cache_salt: str = "") -> set[int]:
    """Our hashes of the last blocks of some paths; each number of a path stands for a block of equal tokens."""
    salt = prefix_salt(model, cache_salt=cache_salt)
    return {token_chain([n for n in path for _ in range(BLOCK)], salt, BLOCK)[-1] for path in paths}


def engine_hash(path: tuple[int, ...], seed: int = 0) -> int:
    """What an engine might call the last block of a path."""
    return hash((seed, "block", *path)) & (1 << 64) - 1


def stored(path: tuple[int, ...], start: int = 0, seed: int = 0, **fields: object) -> Stored:
    """The blocks of a path from index `start` on enter the cache."""
    values: dict[str, object] = {
        "hashes": tuple(engine_hash(path[: i + 1], seed) for i in range(start, len(path))),
        "parent": engine_hash(path[:start], seed) if start else None,
        "token_ids": tuple(n for n in path[start:] for _ in range(BLOCK)),
        "block_size_tokens": BLOCK,
    }
    return Stored(**{**values, **fields})  # type: ignore[arg-type]


def removed(*paths: tuple[int, ...], seed: int = 0, **fields: object) -> Removed:
    """The last blocks of some paths leave the cache."""
    hashes = tuple(engine_hash(path, seed) for path in paths)
    return Removed(hashes=hashes, **fields)  # type: ignore[arg-type]


class Router:
    """What a router knows of one instance from deltas alone."""

    def __init__(self) -> None:
        self.tiers: dict[int, KvTier] = {}

    def apply(self, delta: KvDelta | None) -> None:
        """Take over what a delta says."""
        if delta is None:
            return
        if delta.cleared:
            self.tiers.clear()
        for tier, blocks in delta.stored:
            self.tiers.update(dict.fromkeys(blocks, tier))
        for block in delta.removed:
            self.tiers.pop(block, None)

    def follow(self, fold: KvFold) -> set[int]:
        """Apply all that a fold has to tell, and give the blocks known."""
        while (delta := fold.take()) is not None:
            self.apply(delta)
        return set(self.tiers)


def answer(sequence: KvSequence, frames: Iterable[Frame] | None) -> int | None:
    """Hand a replay's answer to a sequence, None for one that did not come."""
    all(sequence.replay(frame) for frame in frames or ())
    return sequence.replay_ended(complete=frames is not None)


class Engine:
    """A cache without a limit whose frames lie in a replay buffer; `paths` is the truth."""

    def __init__(self, buffer_frames: int = 1000) -> None:
        self.paths: set[tuple[int, ...]] = set()
        self.buffer: list[Frame] = []
        self.buffer_frames = buffer_frames
        self.break_off: int | None = None  # how many frames the next answer has before it breaks off
        self._seed = 0
        self._seq = 0
        self._clock = 0.0

    def store(self, path: tuple[int, ...]) -> Frame:
        """Compute what is missing of a path, from the first block that is not cached."""
        start = next((i for i in range(len(path)) if path[: i + 1] not in self.paths), len(path))
        self.paths |= {path[: i + 1] for i in range(start, len(path))}
        return self._publish(stored(path, start, self._seed) if start < len(path) else None)

    def evict(self, number: int) -> Frame:
        """Let one leaf go, and all blocks if there is none."""
        leaves = [p for p in sorted(self.paths) if not any(q[:-1] == p for q in self.paths)]
        if not leaves:
            return self.clear()
        path = leaves[number % len(leaves)]
        self.paths.discard(path)
        return self._publish(removed(path, seed=self._seed))

    def clear(self) -> Frame:
        """Reset the cache."""
        self.paths.clear()
        return self._publish(Cleared())

    def restart(self) -> None:
        """Begin anew as another process: other hashes, numbers from 0, an empty buffer."""
        self.paths.clear()
        self.buffer.clear()
        self._seed += 1
        self._seq = 0

    def replay(self, start: int) -> list[Frame]:
        """What the replay endpoint answers."""
        return [frame for frame in self.buffer if frame.seq >= start]

    def catch_up(self, sequence: KvSequence, start: int | None) -> None:
        """Answer a sequence until it is content."""
        while start is not None:
            frames, self.break_off, cut = self.replay(start), None, self.break_off
            if cut is None:
                start = answer(sequence, frames)
            else:
                all(sequence.replay(frame) for frame in frames[:cut])
                start = sequence.replay_ended(complete=False)

    def _publish(self, event: Event | None) -> Frame:
        self._clock += 1.0
        digest = hash((self._clock, self._seed))
        frame = Frame(self._seq, self._clock, () if event is None else (event,), digest)
        self._seq += 1
        self.buffer = [*self.buffer, frame][-self.buffer_frames :]
        return frame
