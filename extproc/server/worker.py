"""One worker of `extproc serve --workers`: serves by what its parent writes to its stdin, and ends with it.

To the parent it says through its stdout that it serves, and where, or why it cannot; its log goes to stderr.
"""

from __future__ import annotations

import logging
import os
import pickle
import signal
import sys
import threading
import time
from contextlib import suppress

import uvloop

from extproc.addresses import UnixSocket
from extproc.config import ServeSettings
from extproc.errors import ExtprocError
from extproc.server.run import serve
from extproc.server.worker_words import CANNOT, SERVES

_ORPHAN_S = 3.0  # for a farewell; whoever starts the service anew wants its ports

log = logging.getLogger("extproc.serve")


def main() -> int:
    """Read settings, which only the parent can have written, and serve until SIGTERM or the parent's end."""
    parent = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # nothing else that is printed may be taken for word to the parent
    settings: ServeSettings = pickle.load(sys.stdin.buffer)
    assert settings.worker is not None
    form = f"%(asctime)s %(levelname)s %(name)s worker {settings.worker.number}: %(message)s"
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format=form)
    orphaned = threading.Event()
    threading.Thread(target=_end_with_parent, args=(orphaned, settings), daemon=True).start()
    try:
        uvloop.run(serve(settings, lambda port: print(SERVES, port, file=parent)))
    except ExtprocError as error:
        print(CANNOT, error, file=parent)
        return 2
    if orphaned.is_set():
        _tidy(settings)
    return 0


def _end_with_parent(orphaned: threading.Event, settings: ServeSettings) -> None:
    """Wait for the parent's end, however it comes: the system closes its end of our stdin."""
    os.read(0, 1)  # past the buffer of `sys.stdin`, which the end of Python locks
    log.warning("the parent of this worker has ended")
    orphaned.set()
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(_ORPHAN_S)
    _tidy(settings)
    os._exit(1)


def _tidy(settings: ServeSettings) -> None:
    """The last of the orphans takes away the directory of their pages, which was the parent's to do."""
    assert isinstance(settings.pages, UnixSocket)
    with suppress(OSError):
        settings.pages.path.unlink(missing_ok=True)
        settings.pages.path.parent.rmdir()
