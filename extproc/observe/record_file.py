"""Writes records to a file in a thread of its own, and never more than so many bytes: the older half makes room.

The file is `PATH`; when it has grown to half of what is allowed it becomes `PATH.old` and a new one is begun, in which
the rules and all that its decisions looked at is told anew; so it is where somebody else has emptied or moved the file.
Who writes must never wait: where the disk does not keep up lines are left out.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import stat
import threading
from pathlib import Path
from typing import BinaryIO

from extproc.errors import ConfigError
from extproc.observe.record_lines import DecisionLine, Line, PolicyLine, encoded
from extproc.observe.record_parts import Packer

OLD = ".old"
_MOST_LINES = 1000
_MOST_SEEN = 100_000  # instances in the lines that wait: of a large fleet one line has megabytes
_END_S = 5.0  # what the disk gets for the last lines
_BEGINS = b'{"record":"'  # each line
_CHUNK_BYTES = 65_536

log = logging.getLogger("extproc.records")


class RecordFile:
    """A context in which lines are taken. Raises ConfigError on entry if the file cannot be written."""

    def __init__(self, path: Path, most_bytes: int) -> None:
        self._path = path
        self._half_bytes = most_bytes // 2
        self._lines: queue.SimpleQueue[Line | None] = queue.SimpleQueue()
        self._waiting = self._waiting_seen = 0
        self._lock = threading.Lock()  # of these two
        self._file: BinaryIO | None = None
        self._bytes = 0
        self._policy = ""  # digest of the rules that the file told last
        self._rules: PolicyLine | None = None
        self._packer = Packer()
        self._thread = threading.Thread(target=self._run, name="records", daemon=True)
        self.written = 0  # decisions
        self.failed = 0  # lines that could not be written

    def __enter__(self) -> RecordFile:
        """Begin to write, after what the file already holds."""
        try:
            self._open()
        except OSError as error:
            raise ConfigError(f"--record {self._path}: {error.strerror or error}") from error
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Write what waits, as far as the disk takes it in time."""
        self._lines.put(None)
        self._thread.join(_END_S)

    def write(self, line: Line) -> bool:
        """Take a line; False if too many wait already."""
        seen = len(line.seen.instances) if isinstance(line, DecisionLine) else 0
        with self._lock:
            if self._waiting >= _MOST_LINES or (self._waiting and self._waiting_seen + seen > _MOST_SEEN):
                return False
            self._waiting += 1
            self._waiting_seen += seen
        self._lines.put(line)
        return True

    def _run(self) -> None:
        while (line := self._lines.get()) is not None:
            try:
                self.take(line)
            except OSError as error:
                self.failed += 1
                log.warning("decision records cannot be written to %s: %s", self._path, error.strerror or error)
                self.close()
            except Exception:  # one that has no form in JSON must not end this thread, and with it all records
                self.failed += 1
                log.exception("a decision record was not written")
            with self._lock:
                self._waiting -= 1
                self._waiting_seen -= len(line.seen.instances) if isinstance(line, DecisionLine) else 0
        self.close()

    def take(self, line: Line) -> None:
        """Write a line now; rules are written with the next decision. Raises OSError."""
        if isinstance(line, PolicyLine):
            self._rules = line
            return
        if self._file is None or not self._is_left(self._file):
            self.close()
            self._open()
        data = self._packed(line)
        if self._bytes and self._bytes + len(data) > self._half_bytes:
            self._turn()
            self._open()
            data = self._packed(line)
        assert self._file is not None
        self._file.write(data)
        self._file.flush()
        self._bytes += len(data)
        self.written += 1

    def _packed(self, line: DecisionLine) -> bytes:
        """Lines for one decision: what the file has not told yet, and the decision."""
        parts: list[bytes] = []
        if self._rules is not None and self._policy != self._rules.policy:
            parts.append(encoded(self._rules))
        try:
            parts += [encoded(each) for each in self._packer.packed(line)]
        except Exception:  # what was meant to be written with it is not in the file
            self._packer.begin(self._bytes)
            raise
        if self._rules is not None:
            self._policy = self._rules.policy
        return b"\n".join((*parts, b""))

    def _open(self) -> None:
        # For its owner alone: it names tenants and sessions.
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        self._file = os.fdopen(descriptor, "ab")
        self._bytes = _whole_bytes(descriptor)
        self._policy = ""
        self._packer.begin(self._bytes)

    def _is_left(self, file: BinaryIO) -> bool:
        """Whether the file is where it was, with all that it held: logrotate moves files, or empties them."""
        ours = os.fstat(file.fileno())
        if not stat.S_ISREG(ours.st_mode):
            return True
        try:
            return os.path.samestat(ours, os.stat(self._path)) and ours.st_size >= self._bytes
        except FileNotFoundError:
            return False

    def _turn(self) -> None:
        self.close()
        os.replace(self._path, self._path.with_name(self._path.name + OLD))
        self._bytes = 0

    def close(self) -> None:
        """Let go of the file; the next line opens it again. Of the thread that writes, if it runs."""
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.close()
            self._file = None


def _whole_bytes(descriptor: int) -> int:
    """The length of a file without a record that a crash or a full disk has cut off, which is taken away.

    What follows it in the same line could not be read either, and that would be the rules of all that follows.
    """
    size = end = os.fstat(descriptor).st_size
    found = -1
    while end and found < 0:
        begin = max(0, end - _CHUNK_BYTES)
        found = os.pread(descriptor, end - begin, begin).rfind(b"\n")
        end = begin + found + 1
    if end == size or not _BEGINS.startswith(os.pread(descriptor, len(_BEGINS), end)):
        return size
    os.ftruncate(descriptor, end)
    return end
