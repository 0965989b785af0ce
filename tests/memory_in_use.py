"""What this process has in use, by the words of those who hand it out: what was freed does not count."""

from __future__ import annotations

import ctypes
import gc
import sys


class _MallInfo(ctypes.Structure):
    """What glibc's malloc tells of all its arenas (mallinfo(3))."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost".split()
    ]


_libc = ctypes.CDLL(None)
_libc.mallinfo2.restype = _MallInfo
_libc.malloc.argtypes, _libc.malloc.restype = [ctypes.c_size_t], ctypes.c_void_p


def python_objects() -> int:
    """Small ones, which Python's own allocator has handed out; what only a cycle holds is not counted."""
    gc.collect()
    return sys.getallocatedblocks()


def malloc_bytes() -> int:
    """That malloc has handed out: numpy's, gRPC's, and what is too large for Python's own allocator."""
    info = _libc.mallinfo2()
    return int(info.uordblks + info.hblkhd)


def lose_bytes(count: int) -> None:
    """Take so many from malloc, and never give them back."""
    _libc.malloc(count)
