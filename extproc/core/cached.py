"""What each instance holds of one prompt: as its engine tells, else as learned from where requests were sent."""

from __future__ import annotations

from extproc.core.kv_index import Hit
from extproc.core.model import CacheSource, Instance, Request
from extproc.core.snapshot import Snapshot

_NOTHING_LEARNED = Hit(0, 0, CacheSource.LEARNED)
_NOTHING_TOLD = Hit(0)


class Cached:
    """Hits of one request, looked up once for all instances."""

    def __init__(self, request: Request, snapshot: Snapshot) -> None:
        self._request = request
        self._snapshot = snapshot
        self._learned = snapshot.prefixes.matches(request.prefix)
        self._told = snapshot.kv.hits(request.chains)
        # The last token is always computed: its output is the first of the answer.
        self._most_tokens = max(0, request.prompt_tokens - 1)

    def at(self, instance: Instance) -> Hit:
        """Prompt tokens that an instance is believed to hold."""
        request = self._request
        if request.chains:
            layout = self._snapshot.kv.layout(instance, request.model)
            trusted = self._snapshot.trust.trusts_told(instance.key, request.model)
            if layout is not None and layout in request.chains and trusted:
                hit = self._told.get((layout, instance.key), _NOTHING_TOLD)
                return self._bounded(hit, layout.block_size_tokens)
        blocks = self._learned.get(instance.key, 0)
        if not blocks:
            return _NOTHING_LEARNED
        tokens = blocks * request.tokens_per_block * self._snapshot.trust.share(instance.key, request.model)
        return Hit(min(int(tokens), self._most_tokens), 0, CacheSource.LEARNED)

    def _bounded(self, hit: Hit, block_size_tokens: int) -> Hit:
        """The hit, of a prompt that is held as a whole without its last block: engines reuse whole blocks only."""
        most_tokens = self._most_tokens - self._most_tokens % block_size_tokens
        if hit.tokens <= most_tokens:
            return hit
        gpu_tokens = min(hit.gpu_tokens, most_tokens)
        return Hit(gpu_tokens, most_tokens - gpu_tokens)
