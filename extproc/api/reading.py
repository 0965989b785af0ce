"""A body as the prompt that it asks for: read at once, or, where nobody had the time, guessed from its size.

All of it are pure functions of a path, a content type and bytes, so that another process can do the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from extproc.api.body import BodyError, Chunk
from extproc.api.model_at_edge import model_at_edge
from extproc.api.paths import endpoint_for
from extproc.api.renaming import site_of, takes_form
from extproc.core.models.signals import Signals
from extproc.core.prompt_text import PromptText
from extproc.core.tokens.token_counts import SAMPLE_BYTES, count_text
from extproc.core.values.model_site import ModelSite
from extproc.core.values.request import Countable, Prompt

_PARTS = 16  # of a body that is not read, whose bytes are counted

MAX_NAMES = 1000  # members `model` of a large body that is renamed: to put so many in takes a third of a millisecond


@dataclass(frozen=True, slots=True)
class Unread:
    """A body that is to be read: the path and the content type tell how."""

    path: str
    content_type: str
    chunks: tuple[Chunk, ...]

    @property
    def size_bytes(self) -> int:
        """Its length."""
        return sum(map(len, self.chunks))


def joined(chunks: Sequence[Chunk]) -> bytes:
    """A body in one piece; it is copied only if it came in several, or as part of something larger."""
    return chunks[0] if len(chunks) == 1 and isinstance(chunks[0], bytes) else b"".join(chunks)


def read_prompt(path: str, content_type: str, body: bytes) -> Prompt:
    """The prompt of a body that was sent to a path. Raises BodyError."""
    endpoint = endpoint_for("POST", path)
    if endpoint is None:
        raise BodyError("The path is none that takes a prompt.")
    return endpoint.parse(body, content_type)


def site_in(path: str, content_type: str, body: bytes, prompt: Prompt) -> ModelSite:
    """Where a body names its model, of which the prompt was read. Raises BodyError if in too many places."""
    endpoint = endpoint_for("POST", path)
    assert endpoint is not None  # there is a prompt
    site = site_of(endpoint, content_type, body, named=bool(prompt.model))
    if len(site.spans) > MAX_NAMES:
        raise BodyError(f"The request body must not name 'model' more than {MAX_NAMES} times.", "model")
    return site


def countable_of(unread: Unread) -> Countable | None:
    """What can be counted exactly of a body that was read elsewhere: it is read once more. None if nothing can."""
    prompt = read_prompt(unread.path, unread.content_type, joined(unread.chunks))
    return None if prompt.countable is None else prompt.countable()


def guessed(unread: Unread) -> Prompt | None:
    """A stand-in for the prompt of a body that nobody has read; None if not even the model can be told.

    Its model is the last one named at the body's end, or the first at its beginning; should it be renamed, then there.
    Its tokens are what so many bytes that look like these would have: too many where it holds images. No blocks are
    known.
    """
    endpoint = endpoint_for("POST", unread.path)
    if endpoint is None or takes_form(endpoint, unread.content_type):
        return None
    named = model_at_edge(unread.chunks)
    if named is None:
        return None
    size_bytes = unread.size_bytes
    sample = _sample(unread.chunks)
    one, pieces, *counts = count_text(sample, 1)
    scale = size_bytes / max(1, len(sample))
    scaled = (one, pieces, *[round(scale * count) for count in counts])
    text = PromptText(scaled, size_bytes, lambda _salt: (), Signals, is_guess=True)
    return Prompt(api=endpoint.api, model=named.model, pieces=(), text=text, site=named.site)


def _sample(chunks: Sequence[Chunk]) -> bytes:
    """Some bytes from all over a body."""
    part_bytes = SAMPLE_BYTES // _PARTS
    if len(chunks) == 1:
        step = max(1, len(chunks[0]) // _PARTS)
        return b"".join([chunks[0][start : start + part_bytes] for start in range(0, step * _PARTS, step)])
    step = max(1, len(chunks) // _PARTS)
    return b"".join([chunk[:part_bytes] for chunk in chunks[::step][:_PARTS]])


@dataclass(frozen=True, slots=True)
class Abridged:
    """What a process that has read a body tells of it: its text and what of it can be counted are left out."""

    prompt: Prompt
    counts: tuple[int, ...]
    size_bytes: int
    signals: Signals
    is_countable: bool


def abridged(prompt: Prompt, read: PromptText) -> Abridged:
    """A prompt without its text, for `restored`: all that is left can be pickled."""
    short = msgspec.structs.replace(prompt, pieces=(b"",) if prompt.pieces and prompt.token_ids else (), countable=None)
    return Abridged(short, read.counts, read.size_bytes, read.signals(), prompt.countable is not None)


def restored(
    told: Abridged, chains: dict[str, tuple[int, ...]], unread: Unread | None, site: ModelSite | None = None
) -> Prompt:
    """The prompt as it is decided upon. `chains`: by salt. `unread`: the body, if it may be counted exactly.

    `site`: where the body names the model, if that was looked for.
    """
    text = PromptText(told.counts, told.size_bytes, lambda salt: chains.get(salt, ()), lambda: told.signals)
    countable = (lambda: countable_of(unread)) if told.is_countable and unread is not None else None
    return msgspec.structs.replace(told.prompt, text=text, countable=countable, site=site)
