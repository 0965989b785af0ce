"""`extproc serve` that also says, on a Unix socket, what its process has in use: what was freed does not count.

`python telling_serve.py SOCKET serve …`. Resident memory moves by megabytes with the allocator's pages; objects and
bytes in use do not move at all unless something is kept. Told to `leak`, it keeps a small object of each request from
then on, and as much of malloc's, so that whoever measures can show that it would have been seen.
"""

from __future__ import annotations

import ctypes
import gc
import json
import socket
import sys
import threading
from typing import Any

from extproc.cli import main
from extproc.core.router import Router

LEAKED_BYTES = 100
_EMPTY_BYTES = sys.getsizeof(b"")
_kept: list[bytes] = []


class _MallInfo(ctypes.Structure):
    """What glibc's malloc tells of all its arenas (mallinfo(3))."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost".split()
    ]


_libc = ctypes.CDLL(None)
_libc.mallinfo2.restype = _MallInfo
_libc.malloc.argtypes, _libc.malloc.restype = [ctypes.c_size_t], ctypes.c_void_p


def in_use() -> dict[str, int]:
    """Objects that Python's allocator has handed out, and bytes that malloc has: numpy's, gRPC's, large objects."""
    gc.collect()
    info = _libc.mallinfo2()
    return {"objects": sys.getallocatedblocks(), "malloc_bytes": info.uordblks + info.hblkhd}


def leak() -> dict[str, int]:
    """Keep one small object of Python's, and one of C's, of each request that ends from now on."""
    release = Router.release

    def leaking(router: Router, request_id: str, now: float) -> None:
        _kept.append(bytes(LEAKED_BYTES - _EMPTY_BYTES))
        _libc.malloc(LEAKED_BYTES)
        release(router, request_id, now)

    Router.release = leaking  # type: ignore[method-assign]
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
    sys.exit(main(sys.argv[2:]))
