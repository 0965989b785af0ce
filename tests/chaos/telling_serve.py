"""`extproc serve` that also says, on a Unix socket, what its process has in use: what was freed does not count.

`python telling_serve.py SOCKET serve …`. Resident memory moves by megabytes with the allocator's pages; objects and
bytes in use do not move at all unless something is kept. An hour passes in some two minutes, and what is kept for a
time is kept for as much less of it: else the run would end before the first of it goes. Told to `leak`, it keeps a
small object of each request from then on, and as much of malloc's, so that whoever measures can show that it would
have been seen.
"""

from __future__ import annotations

import json
import socket
import sys
import threading
from typing import Any

from extproc.cli import main
from extproc.core.fleet.fleet import RECOVERY_S, RETENTION_S, Fleet
from extproc.core.router import Router
from extproc.observe.dashboard import lately
from tests.memory_in_use import lose_bytes, malloc_bytes, python_objects

LEAKED_BYTES = 100
FASTER = 30
_EMPTY_BYTES = sys.getsizeof(b"")
_kept: list[bytes] = []


def in_use() -> dict[str, int]:
    """Python's objects and malloc's bytes."""
    return {"objects": python_objects(), "malloc_bytes": malloc_bytes()}


def run_faster() -> None:
    """What is known of an incarnation that is gone, and what the dashboard shows, are kept for a shorter time."""
    Fleet.__init__.__defaults__ = (RECOVERY_S, RETENTION_S / FASTER)  # type: ignore[misc]
    lately.KEPT_S //= FASTER


def leak() -> dict[str, int]:
    """Keep one small object of Python's, and one of C's, of each request that ends from now on."""
    release = Router.release

    def leaking(router: Router, request_id: str, now: float) -> None:
        _kept.append(bytes(LEAKED_BYTES - _EMPTY_BYTES))
        lose_bytes(LEAKED_BYTES)
        release(router, request_id, now)

    Router.release = leaking  # type: ignore[method-assign, assignment]
    return {}


def _tell(listener: socket.socket) -> None:
    asked: dict[bytes, Any] = {b"in_use": in_use, b"leak": leak}
    while True:
        connection, _ = listener.accept()
        with connection:
            connection.sendall(json.dumps(asked[connection.recv(64)]()).encode())


if __name__ == "__main__":
    door = socket.socket(socket.AF_UNIX)
    door.bind(sys.argv[1])
    door.listen()
    threading.Thread(target=_tell, args=(door,), daemon=True).start()
    run_faster()
    sys.exit(main(sys.argv[2:]))
