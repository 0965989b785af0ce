"""A timer of a finer grain than those of event loops, from Linux's timerfd."""

from __future__ import annotations

import asyncio
import ctypes
import os
import time
from collections.abc import Callable


class Timer:
    """Calls at a point in time to within tens of microseconds; timers of event loops have milliseconds."""

    def __init__(self, loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._file = self._libc.timerfd_create(time.CLOCK_MONOTONIC, os.O_NONBLOCK)
        if self._file < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create")
        self._loop, self._callback = loop, callback
        loop.add_reader(self._file, self._fire)

    def at(self, when_s: float) -> None:
        """Call at `when_s` of time.monotonic, at once if that is over."""
        whole, part = divmod(max(1, round(when_s * 1e9)), 1_000_000_000)
        self._libc.timerfd_settime(self._file, 1, (ctypes.c_long * 4)(0, 0, whole, part), None)  # 1: absolute

    def close(self) -> None:
        """Never call again."""
        self._loop.remove_reader(self._file)
        os.close(self._file)

    def _fire(self) -> None:
        try:
            os.read(self._file, 8)
        except BlockingIOError:
            return
        self._callback()
