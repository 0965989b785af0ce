"""Which KV blocks each instance truly holds, as its engine's own events tell, and how a prompt is looked up there.

Blocks are those of the engine: of its own size, named by `prefix_chain.token_chain`. So a prompt can be looked up only
where its exact token ids are known.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from extproc.core.prefixes.kv_delta import KvDelta, KvTier
from extproc.core.prefixes.prefix import PrefixIndex
from extproc.core.values.instance import Instance
from extproc.core.values.request import KvLayout

_MARK = "\0"  # is in no instance's key


@dataclass(frozen=True, slots=True)
class Hit:
    """Leading tokens of a prompt that an instance holds."""

    gpu_tokens: int
    lower_tokens: int = 0  # that follow these, in the host's memory or on its disk

    @property
    def tokens(self) -> int:
        """All of them."""
        return self.gpu_tokens + self.lower_tokens


class KvIndex:
    """Blocks by instance key, kept up by deltas.

    They lie in an index that may hold learned blocks too, so that one cap bounds both: on the GPU under one name, and
    of instances that also have lower tiers once more under another, in whatever tier. A look-up is one pass, however
    many instances and tiers there are.
    """

    def __init__(self, index: PrefixIndex | None = None) -> None:
        self._index = index or PrefixIndex()
        self._tiered: set[str] = set()
        self._names: set[str] = set()  # in the index
        self._block_sizes_tokens: dict[str, int] = {}
        self.layouts_changed = 0  # how often what `layout` answers has

    def apply(self, key: str, delta: KvDelta) -> None:
        """Take in what changed at one incarnation of an instance."""
        if delta.cleared:
            self.forget(key)
        if delta.block_size_tokens and self._block_sizes_tokens.get(key) != delta.block_size_tokens:
            self._block_sizes_tokens[key] = delta.block_size_tokens
            self.layouts_changed += 1
        gpu, anywhere = on_gpu(key), in_any_tier(key)
        self._names.add(gpu)
        if (delta.cpu or delta.disk) and key not in self._tiered:
            self._tiered.add(key)
            self._names.add(anywhere)
            self._index.load(anywhere, self._index.dump(gpu), exact=True)
        for tier, blocks in delta.stored:
            if not blocks:
                continue
            if tier is KvTier.GPU:
                self._index.store(gpu, blocks)
            else:
                self._remove(gpu, blocks)
            if key in self._tiered:
                self._index.store(anywhere, blocks)
        if delta.removed:
            self._remove(gpu, delta.removed)
            self._remove(anywhere, delta.removed)

    def forget(self, key: str) -> None:
        """Drop an instance: it ended, or its events can no longer be trusted to be complete."""
        for name in (on_gpu(key), in_any_tier(key)):
            self._index.forget(name)
            self._names.discard(name)
        self._tiered.discard(key)
        if self._block_sizes_tokens.pop(key, None) is not None:
            self.layouts_changed += 1

    def layout(self, instance: Instance, model: str) -> KvLayout | None:
        """How prompts to `model` are named at an instance; None if its engine does not tell what it holds."""
        block_size_tokens = self._block_sizes_tokens.get(instance.key)
        if block_size_tokens is None:
            return None
        # Of a base model's several names its agent knows the first; an adapter's is its own.
        name = model if model in instance.loras or not instance.models else instance.models[0]
        return KvLayout(block_size_tokens, name)

    def depths(self, layout: KvLayout, chain: tuple[int, ...]) -> list[tuple[tuple[str, ...], int]]:
        """Groups of names, and how many leading blocks of a chain all of a group hold; a later group's word counts.

        Names are those of `on_gpu` and `in_any_tier`, the latter of instances that have lower tiers; of learned
        holders there may be some among them. So a decision knows the rows of a group without a look at its members.
        """
        return self._index.depths(chain)

    @property
    def any_lower_tier(self) -> bool:
        """Whether any instance has told of blocks that are not on its GPU."""
        return bool(self._tiered)

    def hits(self, chains: Mapping[KvLayout, tuple[int, ...]]) -> dict[tuple[KvLayout, str], Hit]:
        """What instances hold of a prompt, by layout and instance key; those that hold nothing are absent."""
        found: dict[tuple[KvLayout, str], Hit] = {}
        for layout, chain in chains.items():
            size, blocks_of = layout.block_size_tokens, dict[str, int]()
            for names, blocks in self.depths(layout, chain):
                blocks_of.update(dict.fromkeys(names, blocks))
            for name in self._names & blocks_of.keys():
                key = name.partition(_MARK)[0]
                first = blocks_of.get(on_gpu(key), 0)
                lower = max(0, blocks_of.get(in_any_tier(key), 0) - first)
                found[layout, key] = Hit(first * size, lower * size)
        return found

    def size(self, key: str) -> int:
        """Blocks that an instance holds, in all tiers."""
        return self._index.size(in_any_tier(key) if key in self._tiered else on_gpu(key))

    @property
    def entries(self) -> int:
        """Entries of all instances, those of tiered ones twice."""
        return sum(self._index.size(name) for name in self._names)

    @property
    def refused_blocks(self) -> int:
        """Blocks that engines told of and that were not taken in for want of room."""
        return self._index.refused_blocks

    @property
    def keys(self) -> Iterable[str]:
        """Instances whose engines tell what they hold."""
        return self._block_sizes_tokens.keys()

    def _remove(self, name: str, blocks: tuple[int, ...]) -> None:
        if self._index.size(name):
            self._index.remove(name, blocks)


def on_gpu(key: str) -> str:
    """Under which name the index has what an instance holds on its GPU."""
    return f"{key}{_MARK}gpu"


def in_any_tier(key: str) -> str:
    """Under which name it has all that an instance with lower tiers holds."""
    return f"{key}{_MARK}any"
