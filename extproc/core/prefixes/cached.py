"""What each instance holds of one prompt: as its engine tells, else as learned from where requests were sent."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
import numpy as np

from extproc.core.snapshot import Snapshot
from extproc.core.values.arrays import Flags, Floats, number
from extproc.core.values.decision import Claims
from extproc.core.values.request import Request

_NOTHING = number(0.0)


class Hits(msgspec.Struct, frozen=True):
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


class _Told(msgspec.Struct, frozen=True):
    """What engines tell that they hold; of who tells nothing the tokens have no meaning."""

    tells: Flags
    gpu_tokens: Floats
    lower_tokens: Floats

    def at(self, row: int) -> int | None:
        """All that one instance's engine tells of."""
        return int(self.gpu_tokens.item(row) + self.lower_tokens.item(row)) if self.tells[row] else None

    def beside(self, other: _Told) -> _Told:
        """Both: of engines that cut prompts into other blocks."""
        gpu_tokens = np.where(other.tells, other.gpu_tokens, self.gpu_tokens)
        lower_tokens = np.where(other.tells, other.lower_tokens, self.lower_tokens)
        return _Told(self.tells | other.tells, gpu_tokens, lower_tokens)


class Cached:
    """Beliefs about one request, looked up once for all instances. The snapshot's columns must be those of `now`."""

    def __init__(self, request: Request, snapshot: Snapshot, now: float) -> None:
        self._request = request
        self._snapshot = snapshot
        self._columns = snapshot.columns
        # The last token is always computed: its output is the first of the answer.
        self._most_tokens = max(0, request.prompt_tokens - 1)
        self._told = self._look_up_told() if request.chains else None
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
        if self._told is None:
            return Hits(believed_tokens)
        told, trusted = self._told, self._trusted(self._told.tells)
        more_tokens = np.maximum(recent_tokens - told.gpu_tokens - told.lower_tokens, _NOTHING)
        lower_tokens = told.lower_tokens * trusted
        return Hits(
            np.where(trusted, told.gpu_tokens + more_tokens, believed_tokens),
            lower_tokens if np.count_nonzero(lower_tokens) else None,
        )

    def claims(self, row: int) -> Claims:
        """What each source by itself says of one instance."""
        told_tokens = None if self._told is None else self._told.at(row)
        return Claims(int(self._learned_tokens.item(row)), told_tokens, int(self._recent_tokens.item(row)))

    def _look_up_told(self) -> _Told | None:
        """What engines tell of the prompt, bounded by it; None if nobody tells of it."""
        columns, kv, found = self._columns, self._snapshot.kv, None
        for layout, chain in self._request.chains.items():
            tells = columns.tellers(self._request.model, layout, self._snapshot)
            if not np.count_nonzero(tells):
                continue
            size = layout.block_size_tokens
            gpu_tokens, all_tokens = np.zeros(len(columns)), np.zeros(len(columns))
            for names, blocks in kv.depths(layout, chain):
                columns.on_gpu.fill(gpu_tokens, names, blocks * size)
                if kv.any_lower_tier:
                    columns.in_any_tier.fill(all_tokens, names, blocks * size)
            # Of a prompt that is held as a whole the last block is computed: engines reuse whole blocks only.
            most_tokens = number(self._most_tokens - self._most_tokens % size)
            gpu_tokens = np.minimum(gpu_tokens, most_tokens)
            lower_tokens = np.maximum(np.minimum(all_tokens, most_tokens) - gpu_tokens, _NOTHING)
            told = _Told(tells, gpu_tokens, lower_tokens)
            found = told if found is None else found.beside(told)
        return found

    def _trusted(self, tells: Flags) -> Flags:
        """Those whose word has not proven wrong."""
        distrusted = self._snapshot.trust.distrusted(self._request.model)
        if not distrusted:
            return tells
        trusted, row_of = tells.copy(), self._columns.row_of
        trusted[[row_of[key] for key in distrusted if key in row_of]] = False
        return trusted

    def _tokens(self, depths: Iterable[tuple[tuple[str, ...], int]]) -> Floats:
        """Tokens that the blocks stand for which groups of instances hold, as a column."""
        tokens: Floats = np.zeros(len(self._columns))
        for keys, blocks in depths:
            self._columns.places.fill(
                tokens, keys, min(int(blocks * self._request.tokens_per_block), self._most_tokens)
            )
        return tokens
