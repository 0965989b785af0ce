"""Reads large bodies off the event loop: in a process of its own, one at a time, within a time budget.

Parsing 8 MiB holds Python's lock for as long as it takes, so a thread would not do. The body goes over in shared
memory, written by a thread without the lock; what comes back is small.
"""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Self

from extproc.adapters.reading_process import hear, tell
from extproc.api.body import BodyError
from extproc.api.reading import Abridged, Unread, restored
from extproc.core.values.request import Prompt

APART_BYTES = 512 * 1024  # longer bodies take a millisecond or more to read: others would wait for that
DEFAULT_BUDGET_S = 0.15  # Envoy waits 0.25 s for a decision if not told otherwise
MAX_PENDING = 16  # bodies that wait or are read at once; more would all miss their budget
MAX_PENDING_BYTES = 128 * 1024 * 1024
_KEPT_BYTES = 8 * 1024 * 1024  # of shared memory, between bodies
_SETTLED_S = 5.0  # from the owner's start to the process's, if no body comes before
_HANGS_S = 10.0  # a process that is silent for so long is ended, and another one begun
# Of a body whose tokens may still be counted exactly: it is read again for that, by a thread, and parsing twice as much
# would keep Python's lock for 9 ms.
COUNTED_BYTES = 2 * 1024 * 1024
_PROGRAM = "extproc.adapters.reading_process"
_ROOT = str(Path(__file__).parents[2])

Salts = Callable[[Prompt], tuple[str, ...]]
"""From what a prompt says to the salts under which its blocks may be asked for."""
Renames = Callable[[Prompt], bool]
"""From what a prompt says to whether it may go on under another model's name."""
_Result = Prompt | BodyError | None


class ReadOutcome(StrEnum):
    """What became of a wish to read a body elsewhere."""

    READ = "read"
    REFUSED = "refused"  # no engine would accept it
    TIMED_OUT = "timed_out"
    BUSY = "busy"  # too many wait already
    FAILED = "failed"  # the process ended, or hung


@dataclass(slots=True)
class _Job:
    unread: Unread
    salts: Salts
    renames: Renames
    abandoned: threading.Event = field(default_factory=threading.Event)


class BodyReader:
    """Reads bodies in a process that starts with the first one, or some seconds after its owner.

    `outcomes` tells what became of them.
    """

    def __init__(
        self,
        budget_s: float = DEFAULT_BUDGET_S,
        max_pending: int = MAX_PENDING,
        max_pending_bytes: int = MAX_PENDING_BYTES,
    ) -> None:
        self.budget_s = budget_s
        self._max_pending = max_pending
        self._room_bytes = max_pending_bytes
        self._pending: set[Future[_Result]] = set()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="body-reader")
        self._other: _Process | None = None  # used by the thread alone, but for `hang_up`
        self._closed = False
        self._start: asyncio.TimerHandle | None = None
        self.outcomes: Counter[ReadOutcome] = Counter()

    @property
    def pending(self) -> int:
        """Bodies that wait or are being read."""
        return len(self._pending)

    @property
    def process_id(self) -> int | None:
        """Of the process that reads, None while there is none."""
        other = self._other
        return None if other is None else other.process_id

    async def __aenter__(self) -> Self:
        """Start the process in the background once the owner has started, for the first body not to wait for that."""
        self._start = asyncio.get_running_loop().call_later(_SETTLED_S, self._thread.submit, self._process)
        return self

    async def __aexit__(self, *_: object) -> None:
        """Read nothing more; the process ends."""
        self.close()

    async def read(self, unread: Unread, salts: Salts, renames: Renames = lambda _: False) -> _Result:
        """The prompt, without its text; BodyError if it has none; None if it could not be read in time.

        `salts` and `renames` are called in another thread. Where the body names its model is looked for if it may be
        renamed.
        """
        size_bytes = unread.size_bytes
        if len(self._pending) >= self._max_pending or size_bytes > self._room_bytes:
            self.outcomes[ReadOutcome.BUSY] += 1
            return None
        job = _Job(unread, salts, renames)
        work = self._thread.submit(self._run, job)
        del unread
        self._pending.add(work)
        self._room_bytes -= size_bytes
        future = asyncio.wrap_future(work)
        future.add_done_callback(lambda _: self._done(work, size_bytes))
        try:
            # wait_for can swallow a cancellation on Python 3.11; wait neither does so nor cancels the future
            await asyncio.wait({future}, timeout=self.budget_s)
        finally:
            job.abandoned.set()
            in_time = future.done()
            if not in_time:
                work.cancel()  # takes it from the queue if it has not begun
        if not in_time or future.cancelled():
            self.outcomes[ReadOutcome.TIMED_OUT] += 1
            return None
        result = future.result()
        outcome = ReadOutcome.READ if isinstance(result, Prompt) else ReadOutcome.REFUSED
        self.outcomes[ReadOutcome.FAILED if result is None else outcome] += 1
        return result

    def close(self) -> None:
        """Read nothing more; the process ends at once, whatever it reads."""
        self._closed = True
        if self._start is not None:
            self._start.cancel()
        for work in tuple(self._pending):
            work.cancel()
        if (other := self._other) is not None:
            other.hang_up()
        self._thread.submit(self._end)
        self._thread.shutdown(wait=False)

    def _done(self, work: Future[_Result], size_bytes: int) -> None:
        self._pending.discard(work)
        self._room_bytes += size_bytes

    def _run(self, job: _Job) -> _Result:
        if job.abandoned.is_set():
            return None
        try:
            return self._process().read(job)
        except Exception:  # it is gone, or too slow, or speaks another language: another one is begun for the next body
            self._end()
            return None

    def _process(self) -> _Process:
        if self._other is None:
            self._other = _Process()
        if self._closed:  # it was begun meanwhile, so that nobody has hung up
            raise EOFError("closed")
        return self._other

    def _end(self) -> None:
        other, self._other = self._other, None
        if other is not None:
            other.end()


class _Process:
    """The process, with the socket and the memory that it shares. Blocks; raises OSError, and EOFError if it ended."""

    def __init__(self) -> None:
        self._line, theirs = socket.socketpair()
        self._line.settimeout(_HANGS_S)
        with theirs, ExitStack() as failed:  # for want of memory or descriptors; each body that comes tries anew
            failed.callback(self._line.close)
            self._memory = os.memfd_create("extproc-bodies", os.MFD_CLOEXEC)
            failed.callback(os.close, self._memory)
            self._child = self._begun(theirs)
            failed.pop_all()

    def _begun(self, theirs: socket.socket) -> subprocess.Popen[bytes]:
        inherited = (theirs.fileno(), self._memory)
        command = (sys.executable, "-m", _PROGRAM, *map(str, inherited))
        paths = os.pathsep.join(filter(None, (_ROOT, os.environ.get("PYTHONPATH"))))
        return subprocess.Popen(
            command,
            pass_fds=inherited,
            stdin=subprocess.DEVNULL,
            start_new_session=True,  # a Ctrl-C is not for it: it ends with us
            env={**os.environ, "PYTHONPATH": paths},
        )

    def read(self, job: _Job) -> _Result:
        size_bytes = self._write(job.unread)
        tell(self._line, (job.unread.path, job.unread.content_type, size_bytes))
        told = hear(self._line)
        if not isinstance(told, Abridged):
            return BodyError(*told)
        wanted = not job.abandoned.is_set()
        salts = job.salts(told.prompt) if wanted else ()
        tell(self._line, (salts, wanted and job.renames(told.prompt)))
        found, site = hear(self._line)
        if isinstance(site, tuple):
            return BodyError(*site)
        chains = dict(zip(salts, map(tuple, found), strict=True))
        return restored(told, chains, job.unread if size_bytes <= COUNTED_BYTES else None, site)

    def _write(self, unread: Unread) -> int:
        """Write a body to the shared memory, without Python's lock; returns its length."""
        at = 0
        for chunk in unread.chunks:
            view = memoryview(chunk)
            while view:
                count = os.pwrite(self._memory, view, at)
                at, view = at + count, view[count:]
        if os.fstat(self._memory).st_size > max(at, _KEPT_BYTES):
            os.ftruncate(self._memory, max(at, _KEPT_BYTES))
        return at

    @property
    def process_id(self) -> int:
        return self._child.pid

    def hang_up(self) -> None:
        """End a `read` in another thread, which may wait for a process that hangs. Does not block."""
        with suppress(OSError):  # ended already
            self._line.shutdown(socket.SHUT_RDWR)

    def end(self) -> None:
        self._line.close()
        os.close(self._memory)
        self._child.kill()
        self._child.wait()
