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
        self._owners: dict[str, tuple[str, bool]] = {}  # instance key of a name, and whether it is that of all tiers
        self._block_sizes_tokens: dict[str, int] = {}
        self.layouts_changed = 0  # how often what `layout` answers has

    def apply(self, key: str, delta: KvDelta) -> None:
        """Take in what changed at one incarnation of an instance."""
        if delta.cleared:
            self.forget(key)
        if delta.block_size_tokens and self._block_sizes_tokens.get(key) != delta.block_size_tokens:
            self._block_sizes_tokens[key] = delta.block_size_tokens
            self.layouts_changed += 1
        gpu, anywhere = _on_gpu(key), _anywhere(key)
        self._owners[gpu] = key, False
        if (delta.cpu or delta.disk) and key not in self._tiered:
            self._tiered.add(key)
            self._owners[anywhere] = key, True
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
        for name in (_on_gpu(key), _anywhere(key)):
            self._index.forget(name)
            self._owners.pop(name, None)
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

    def hits(self, chains: Mapping[KvLayout, tuple[int, ...]]) -> dict[tuple[KvLayout, str], Hit]:
        """What instances hold of a prompt, by layout and instance key; those that hold nothing are absent."""
        found: dict[tuple[KvLayout, str], Hit] = {}
        for layout, chain in chains.items():
            size = layout.block_size_tokens
            matches = self._index.matches(chain)
            for name, blocks in matches.items():
                owner = self._owners.get(name)
                if owner is None:
                    continue
                key, is_of_all_tiers = owner
                if is_of_all_tiers:
                    first = matches.get(_on_gpu(key), 0)
                    found[layout, key] = Hit(first * size, max(0, blocks - first) * size)
                else:
                    found.setdefault((layout, key), Hit(blocks * size))
        return found

    def size(self, key: str) -> int:
        """Blocks that an instance holds, in all tiers."""
        return self._index.size(_anywhere(key) if key in self._tiered else _on_gpu(key))

    @property
    def entries(self) -> int:
        """Entries of all instances, those of tiered ones twice."""
        return sum(self._index.size(name) for name in self._owners)

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


def _on_gpu(key: str) -> str:
    return f"{key}\0gpu"  # no instance has such a key


def _anywhere(key: str) -> str:
    return f"{key}\0any"
