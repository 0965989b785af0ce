"""A prompt's text as decisions need it: what its bytes look like, how long it is, and the names of its blocks."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from extproc.core.flight.work import DEFAULT_BLOCK_SIZE_TOKENS
from extproc.core.models.signals import Signals, signals_of
from extproc.core.prefixes.prefix_chain import byte_chain, token_chain
from extproc.core.tokens.token_counts import Counts, count_text

Chain = Callable[[str], tuple[int, ...]]
"""From a salt to the hash chain of a prompt's blocks under it; empty if it is not known."""


class PromptText(msgspec.Struct, frozen=True):
    """One prompt's text, whichever model it is for. `chain` and `signals` cost by its length: made when asked for."""

    counts: Counts  # as `token_counts` has them; () if there is no text
    size_bytes: int
    chain: Chain
    signals: Callable[[], Signals]
    is_guess: bool = False  # made from a body that nobody has read


def text_of(pieces: Sequence[bytes], token_ids: Sequence[int] = ()) -> PromptText:
    """A prompt's text from its parts, which are joined once; its blocks are of token ids if there are any."""
    text = b"".join(pieces)
    counts = count_text(text, len(pieces)) if pieces else ()

    def chain(salt: str) -> tuple[int, ...]:
        return id_chain(token_ids, salt, DEFAULT_BLOCK_SIZE_TOKENS) if token_ids else byte_chain((text,), salt)

    return PromptText(counts, len(text), chain, lambda: signals_of(pieces))


def id_chain(token_ids: Sequence[int], salt: str, block_size_tokens: int) -> tuple[int, ...]:
    """Hash chain of token ids; none if there is one that no token has: what to say of it is the engine's part."""
    try:
        return token_chain(token_ids, salt, block_size_tokens)
    except OverflowError:
        return ()
