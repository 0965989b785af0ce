"""A process that a measurement runs beside itself: it ends with it, and Ctrl-C ends it without a word."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import get_context, resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

_INTERRUPT = {signal.SIGINT}


@contextmanager
def beside(target: Callable[..., None], *arguments: Any) -> Iterator[Connection]:
    """Run `target(*arguments, its end of a pipe)` in a process of its own until the context ends; our end of the pipe.

    `recv` raises EOFError once that process has ended, however it did.
    """
    context = get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_run, args=(target, arguments, theirs), daemon=True)
    with ours:
        with theirs:
            _start(process)
        try:
            yield ours
        finally:
            process.kill()
            process.join()


def _start(process: BaseProcess) -> None:
    """Start it with Ctrl-C held back, which comes to all of a terminal: a traceback would come while it imports."""
    resource_tracker.ensure_running()  # who starts that lets Ctrl-C through again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _INTERRUPT)
    try:
        process.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _run(target: Callable[..., None], arguments: tuple[Any, ...], theirs: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # its owner ends it; else that one may hear of its end first
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _INTERRUPT)
    target(*arguments, theirs)
