"""Exact token counts, off the event loop and within a time budget; a prompt's known parts are not encoded again."""

from __future__ import annotations

import asyncio
import hashlib
import re
import sys
import threading
from array import array
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from enum import StrEnum
from pathlib import Path
from typing import Self, TypeAlias

from extproc.adapters.chat_template import TemplateError
from extproc.adapters.vocabulary import Vocabulary, load_vocabulary
from extproc.core.tokens.tokens import ExactCount
from extproc.core.values.request import Countable

DEFAULT_BUDGET_S = 0.05
MAX_TEXT_CHARS = 4 * 1024 * 1024
MAX_PENDING = 16  # counts that wait or run at once; more would all miss their budget
CACHE_BYTES = 64 * 1024 * 1024
# A thread that counts keeps Python's lock for so long, if it can, while the event loop waits for it at each of its
# turns: in Python's 5 ms a request would lose tens of milliseconds.
LOCK_S = 0.0005
_SEGMENT_CHARS = 2048
_BATCH_SEGMENTS = 32  # after so many a worker looks whether anybody still waits for it
_ENTRY_BYTES = 250  # what a cache entry costs beside its ids

# Between a line end and a visible character BPE vocabularies never merge; a slash may join the symbols before the line
# end (o200k). `Vocabulary.splits_at_lines` tells for which this has been tried.
_CUT = re.compile(r"\n(?=[^\s/])")


class CountOutcome(StrEnum):
    """What became of a wish to count."""

    COUNTED = "counted"
    TIMED_OUT = "timed_out"
    BUSY = "busy"  # too many wait already
    TOO_LARGE = "too_large"
    TEMPLATE_FAILED = "template_failed"  # it refused the messages, or there is none
    FAILED = "failed"  # the tokenizer gave up


class Tokenizers:
    """Vocabularies by model name. Counts are None whenever they cannot be had in time; `outcomes` tells how often."""

    def __init__(
        self,
        vocabularies: Mapping[str, Vocabulary],
        budget_s: float = DEFAULT_BUDGET_S,
        threads: int = 2,
        cache_bytes: int = CACHE_BYTES,
        max_pending: int = MAX_PENDING,
    ) -> None:
        self._vocabularies = dict(vocabularies)
        self._budget_s = budget_s
        self._max_pending = max_pending
        self._pending: list[Future[ExactCount | CountOutcome]] = []
        self._cache = _SegmentCache(cache_bytes)
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="tokenizer")
        self.outcomes: Counter[CountOutcome] = Counter()

    @classmethod
    def load(cls, directories: Mapping[str, Path], budget_s: float = DEFAULT_BUDGET_S, threads: int = 2) -> Self:
        """Read each model's directory (see `vocabulary`); models may share one. Blocks; raises ConfigError.

        If there are any, threads of this process take turns more often from now on.
        """
        if directories:
            sys.setswitchinterval(LOCK_S)
        loaded = {directory: load_vocabulary(directory) for directory in set(directories.values())}
        return cls({model: loaded[directory] for model, directory in directories.items()}, budget_s, threads)

    @property
    def models(self) -> frozenset[str]:
        """Names of the models that can be counted for."""
        return frozenset(self._vocabularies)

    async def count(
        self, model: str, what: Countable | Callable[[], Countable | None], want_ids: bool = False
    ) -> ExactCount | None:
        """Tokens of a conversation under the model's chat template, or of a plain prompt with those put around it.

        What takes long to make may be given as a function, for another thread. Images and audio in a conversation
        count nothing. None: unknown model, or no count in time.
        """
        vocabulary = self._vocabularies.get(model)
        if vocabulary is None:
            return None
        return await self._count(_Job(vocabulary, what, want_ids, self._cache))

    def close(self) -> None:
        """Start nothing more (counting then raises RuntimeError); what runs ends by itself."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    async def _count(self, job: _Job) -> ExactCount | None:
        self._pending = [work for work in self._pending if not work.done()]
        if len(self._pending) >= self._max_pending:
            self.outcomes[CountOutcome.BUSY] += 1
            return None
        work = self._pool.submit(job.run)
        self._pending.append(work)
        future = asyncio.wrap_future(work)
        try:
            # wait_for can swallow a cancellation on Python 3.11; wait neither does so nor cancels the future
            await asyncio.wait({future}, timeout=self._budget_s)
        finally:
            job.abandoned.set()
            if not future.done():
                future.cancel()  # takes it from the queue if it has not begun
        result = CountOutcome.TIMED_OUT if future.cancelled() else future.result()
        self.outcomes[CountOutcome.COUNTED if isinstance(result, ExactCount) else result] += 1
        return result if isinstance(result, ExactCount) else None


class _Job:
    """One count, run in a worker thread. Never raises: what goes wrong is an outcome."""

    def __init__(
        self,
        vocabulary: Vocabulary,
        what: Countable | Callable[[], Countable | None],
        want_ids: bool,
        cache: _SegmentCache,
    ) -> None:
        self._vocabulary = vocabulary
        self._what = what
        self._want_ids = want_ids
        self._is_plain = False
        self._cache = cache
        self.abandoned = threading.Event()

    def run(self) -> ExactCount | CountOutcome:
        try:
            return self._run()
        except TemplateError:
            return CountOutcome.TEMPLATE_FAILED
        except BaseException as error:  # a panic in a tokenizer's Rust code is no Exception
            if isinstance(error, (KeyboardInterrupt, SystemExit)):
                raise
            return CountOutcome.FAILED

    def _run(self) -> ExactCount | CountOutcome:
        text = self._text()
        if text is None:
            return CountOutcome.TEMPLATE_FAILED
        if len(text) > MAX_TEXT_CHARS:
            return CountOutcome.TOO_LARGE
        segments = split_at_lines(text) if self._vocabulary.splits_at_lines else [text]
        keys = [self._key(segment) for segment in segments]
        known = self._cache.get(keys, self._want_ids)
        missing = [index for index, entry in enumerate(known) if entry is None]
        for start in range(0, len(missing), _BATCH_SEGMENTS):
            if self.abandoned.is_set():
                return CountOutcome.TIMED_OUT
            batch = missing[start : start + _BATCH_SEGMENTS]
            for index, entry in zip(batch, self._encode([segments[i] for i in batch]), strict=True):
                known[index] = entry
                self._cache.put(keys[index], entry)
        entries = [entry for entry in known if entry is not None]
        fresh = sum(_tokens(entries[index]) for index in missing)
        return self._exact(entries, fresh)

    def _text(self) -> str | None:
        """The text that the engine will see; None if nobody here can tell."""
        what = self._what() if callable(self._what) else self._what
        if isinstance(what, tuple):
            self._is_plain = True
            return b"".join(what).decode("utf-8", "replace")
        template = self._vocabulary.template
        return None if what is None or template is None else template.render(what.messages, what.tools, what.arguments)

    def _encode(self, texts: list[str]) -> list[_Entry]:
        if not self._want_ids:
            return list(self._vocabulary.count(texts))
        return [array("I", ids) for ids in self._vocabulary.encode(texts)]

    def _exact(self, entries: list[_Entry], fresh_tokens: int) -> ExactCount:
        tokens = sum(map(_tokens, entries))
        before, after = (self._vocabulary.before, self._vocabulary.after) if self._is_plain else ((), ())
        ids: array[int] | None = None
        if self._want_ids:
            ids = array("I", before)
            for entry in entries:
                if isinstance(entry, array):
                    ids.extend(entry)
            ids.extend(after)
        return ExactCount(tokens + len(before) + len(after), tokens - fresh_tokens, ids)

    def _key(self, segment: str) -> bytes:
        """Digest of a segment under this vocabulary; cryptographic, so that no client can forge another's count."""
        salt = id(self._vocabulary).to_bytes(8, "little")
        return hashlib.blake2b(segment.encode("utf-8", "surrogatepass"), digest_size=16, salt=salt).digest()


_Entry: TypeAlias = "int | array[int]"  # tokens of a segment, or their ids


class _SegmentCache:
    """Least recently used segments with what they encode to, bounded in bytes; shared by the worker threads.

    A segment's tokens do not depend on what stands before it, so its own digest is all of its key: the earlier turns
    of a session are found, and so is a document that two sessions share.
    """

    def __init__(self, capacity_bytes: int) -> None:
        self._capacity_bytes = capacity_bytes
        self._used_bytes = 0
        self._entries: OrderedDict[bytes, _Entry] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, keys: Sequence[bytes], want_ids: bool) -> list[_Entry | None]:
        """Entries of segments; None for those that are unknown, or known without the ids that are wanted."""
        with self._lock:
            found = [self._entries.get(key) for key in keys]
            for key, entry in zip(keys, found, strict=True):
                if entry is not None:
                    self._entries.move_to_end(key)
        return [None if want_ids and isinstance(entry, int) else entry for entry in found]

    def put(self, key: bytes, entry: _Entry) -> None:
        """Keep an entry and let go of the oldest beyond the capacity."""
        with self._lock:
            old = self._entries.pop(key, None)
            self._used_bytes += _entry_bytes(entry) - (0 if old is None else _entry_bytes(old))
            self._entries[key] = entry
            while self._used_bytes > self._capacity_bytes and self._entries:
                _, oldest = self._entries.popitem(last=False)
                self._used_bytes -= _entry_bytes(oldest)


def split_at_lines(text: str) -> list[str]:
    """Segments of at least 2048 characters that end at a line end. A longer text has the segments of its beginning."""
    segments: list[str] = []
    start = 0
    while (cut := _CUT.search(text, start + _SEGMENT_CHARS - 1)) is not None:
        segments.append(text[start : cut.end()])
        start = cut.end()
    segments.append(text[start:])
    return segments


def _tokens(entry: _Entry) -> int:
    return entry if isinstance(entry, int) else len(entry)


def _entry_bytes(entry: _Entry) -> int:
    return _ENTRY_BYTES + (0 if isinstance(entry, int) else entry.itemsize * len(entry))
