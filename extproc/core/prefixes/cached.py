"""What each instance holds of one prompt: as its engine tells, else as learned from where requests were sent."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from extproc.core.prefixes.kv_index import Hit
from extproc.core.snapshot import Snapshot
from extproc.core.values.arrays import Flags, Floats
from extproc.core.values.decision import Claims
from extproc.core.values.request import KvLayout, Request


@dataclass(frozen=True, slots=True)
class Hits:
    """Leading tokens of the prompt that each instance is believed to hold."""

    gpu_tokens: Floats
    lower_tokens: Floats | None = None  # that follow these, in the host's memory or on its disk; None: nowhere
    handed_tokens: Floats | None = None  # of these, yet to come from another instance: nothing to compute, but to hold

    def tokens(self) -> Floats:
        """All of them."""
        return self.gpu_tokens if self.lower_tokens is None else self.gpu_tokens + self.lower_tokens

    def at(self, row: int) -> int:
        """All of one instance's."""
        tokens: float = self.gpu_tokens.item(row)
        return int(tokens if self.lower_tokens is None else tokens + self.lower_tokens.item(row))


class Cached:
    """Beliefs about one request, looked up once for all instances. The snapshot's columns must be those of `now`."""

    def __init__(self, request: Request, snapshot: Snapshot, now: float) -> None:
        self._request = request
        self._snapshot = snapshot
        self._columns = snapshot.columns
        # The last token is always computed: its output is the first of the answer.
        self._most_tokens = max(0, request.prompt_tokens - 1)
        self._told = snapshot.kv.hits(request.chains) if request.chains else {}
        # The learned index is looked up last: booking the choice uses that again.
        self._learned_tokens = self._tokens(snapshot.prefixes.depths(request.prefix))
        self._recent_tokens = self._tokens(snapshot.recent.depths(request.prefix, now))

    def hits(self) -> Hits:
        """What the instances hold of the prompt.

        What engines tell goes before what was learned, unless it has proven wrong. But what was sent there a moment
        ago will be there in a moment, and no engine has told of it yet.
        """
        learned_tokens, recent_tokens = self._learned_tokens, self._recent_tokens
        shares = self._columns.shares(self._request.model, self._snapshot)
        if shares is not None:
            learned_tokens = np.floor(learned_tokens * shares)
        believed_tokens = np.maximum(learned_tokens, recent_tokens)
        tells = self._trusted_tellers() if self._request.chains else None
        if tells is None:
            return Hits(believed_tokens)
        gpu_tokens, lower_tokens = np.zeros(len(self._columns)), np.zeros(len(self._columns))
        for (layout, key), _ in self._told.items():
            row = self._columns.row_of.get(key)
            if row is not None and tells[row] and self._layouts()[row] == layout:
                hit = self._bounded(layout, key)
                gpu_tokens[row], lower_tokens[row] = hit.gpu_tokens, hit.lower_tokens
        more_tokens = np.maximum(recent_tokens - gpu_tokens - lower_tokens, 0.0)
        return Hits(
            np.where(tells, gpu_tokens + more_tokens, believed_tokens),
            lower_tokens if np.count_nonzero(lower_tokens) else None,
        )

    def claims(self, row: int) -> Claims:
        """What each source by itself says of one instance."""
        layout = self._layouts()[row] if self._request.chains else None
        told_tokens = None
        if layout is not None and layout in self._request.chains:
            told_tokens = self._bounded(layout, self._columns.keys[row]).tokens
        return Claims(int(self._learned_tokens.item(row)), told_tokens, int(self._recent_tokens.item(row)))

    def _trusted_tellers(self) -> Flags | None:
        """Whose engine tells what it holds of the prompt, and is believed; None if nobody's."""
        chains = self._request.chains
        tells = np.array([layout in chains for layout in self._layouts()], np.bool_)
        for key in self._snapshot.trust.distrusted(self._request.model):
            if key in self._columns.row_of:
                tells[self._columns.row_of[key]] = False
        return tells if np.count_nonzero(tells) else None

    def _layouts(self) -> list[KvLayout | None]:
        return self._columns.layouts(self._request.model, self._snapshot)

    def _bounded(self, layout: KvLayout, key: str) -> Hit:
        """What an engine tells, bounded by the prompt."""
        hit = self._told.get((layout, key), _NOTHING)
        # Of a prompt that is held as a whole the last block is computed: engines reuse whole blocks only.
        most_tokens = self._most_tokens - self._most_tokens % layout.block_size_tokens
        gpu_tokens = min(hit.gpu_tokens, most_tokens)
        return Hit(gpu_tokens, min(hit.lower_tokens, most_tokens - gpu_tokens))

    def _tokens(self, depths: Iterable[tuple[tuple[str, ...], int]]) -> Floats:
        """Tokens that the blocks stand for which groups of instances hold, as a column."""
        tokens: Floats = np.zeros(len(self._columns))
        for keys, blocks in depths:
            self._columns.fill(tokens, keys, min(int(blocks * self._request.tokens_per_block), self._most_tokens))
        return tokens


_NOTHING = Hit(0)
