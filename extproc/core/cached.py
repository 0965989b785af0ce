"""What each instance holds of one prompt: as its engine tells, else as learned from where requests were sent."""

from __future__ import annotations

from dataclasses import dataclass

from extproc.core.kv_index import Hit
from extproc.core.model import Claims, Instance, Request
from extproc.core.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class Belief:
    """What is believed of one instance, and what each source claims of it by itself."""

    hit: Hit
    claims: Claims


class Cached:
    """Beliefs about one request, looked up once for all instances."""

    def __init__(self, request: Request, snapshot: Snapshot, now: float) -> None:
        self._request = request
        self._snapshot = snapshot
        self._told = snapshot.kv.hits(request.chains) if request.chains else {}
        self._learned = snapshot.prefixes.matches(request.prefix)  # the last look-up: booking the choice uses it again
        self._recent = snapshot.recent.matches(request.prefix, now)
        # The last token is always computed: its output is the first of the answer.
        self._most_tokens = max(0, request.prompt_tokens - 1)

    def at(self, instance: Instance) -> Belief:
        """What an instance holds of the prompt.

        What engines tell goes before what was learned, unless it has proven wrong. But what was sent there a moment
        ago will be there in a moment, and no engine has told of it yet.
        """
        key, model = instance.key, self._request.model
        told = self._told_hit(instance) if self._request.chains else None
        if told is None and key not in self._learned and key not in self._recent:
            return _NOTHING_BELIEVED
        learned_tokens = self._tokens(self._learned.get(key, 0))
        recent_tokens = self._tokens(self._recent.get(key, 0))
        claims = Claims(learned_tokens, None if told is None else told.tokens, recent_tokens)
        if told is not None and self._snapshot.trust.trusts_told(key, model):
            more = max(0, recent_tokens - told.tokens)
            return Belief(Hit(told.gpu_tokens + more, told.lower_tokens), claims)
        believed = int(learned_tokens * self._snapshot.trust.share(key, model))
        return Belief(Hit(max(believed, recent_tokens)), claims)

    def _told_hit(self, instance: Instance) -> Hit | None:
        """What its engine tells, bounded by the prompt; None if it tells nothing, or nobody counted by its layout."""
        layout = self._snapshot.kv.layout(instance, self._request.model)
        if layout is None or layout not in self._request.chains:
            return None
        hit = self._told.get((layout, instance.key), _NOTHING)
        # Of a prompt that is held as a whole the last block is computed: engines reuse whole blocks only.
        most_tokens = self._most_tokens - self._most_tokens % layout.block_size_tokens
        gpu_tokens = min(hit.gpu_tokens, most_tokens)
        return Hit(gpu_tokens, min(hit.lower_tokens, most_tokens - gpu_tokens))

    def _tokens(self, blocks: int) -> int:
        return min(int(blocks * self._request.tokens_per_block), self._most_tokens)


_NOTHING = Hit(0)
_NOTHING_BELIEVED = Belief(_NOTHING, Claims())  # of most instances of a large fleet
