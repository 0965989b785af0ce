"""What a worker and its parent say to each other.

The worker through its stdout: a line that begins with one of the words below. The parent through the worker's stdin:
settings, the first ones and those that follow, each as their length and a pickle of them.
"""

from __future__ import annotations

import os
import pickle
import struct

from extproc.config import ServeSettings

SERVES = "serves"  # then its port, 0 of a socket
CANNOT = "cannot"  # then the reason

_LENGTH = struct.Struct(">Q")


def told(settings: ServeSettings) -> bytes:
    """Settings as the parent writes them."""
    data = pickle.dumps(settings)
    return _LENGTH.pack(len(data)) + data


def read_told(descriptor: int) -> ServeSettings | None:
    """The next settings that the parent, and nobody else, has written; None at its end. Blocks until then.

    Past Python's own buffers, which the interpreter's end would lock.
    """
    head = _read(descriptor, _LENGTH.size)
    data = _read(descriptor, _LENGTH.unpack(head)[0]) if head else b""
    if not data:
        return None
    settings: ServeSettings = pickle.loads(data)
    return settings


def _read(descriptor: int, length: int) -> bytes:
    """So many bytes; fewer than that, of a parent that died while it wrote, are none."""
    data = bytearray()
    while len(data) < length:
        part = os.read(descriptor, length - len(data))
        if not part:
            return b""
        data += part
    return bytes(data)
