"""What a process holds: memory in use and resident, descriptors, threads; and how fast that grows."""

from __future__ import annotations

import itertools
import json
import os
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any


@dataclass(frozen=True, slots=True)
class Held:
    """Of one process at one moment at which nothing is under way."""

    requests: int  # that it had served by then
    objects: int  # small ones of Python's, that are in use
    malloc_bytes: int  # in use: numpy's, gRPC's, and what is too large for Python's own allocator
    resident_bytes: int  # of no file, whether in use or not
    descriptors: int
    threads: int


def held(pid: int, door: Path, requests: int) -> Held:
    """Look at a `telling_serve`.

    Resident is what belongs to no file: pages of libraries are counted as somebody's own or not as other processes come
    and go.
    """
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    kib = next(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Anonymous:"))
    told = ask(door, b"in_use")
    descriptors, threads = (len(os.listdir(f"/proc/{pid}/{name}")) for name in ("fd", "task"))
    return Held(requests, told["objects"], told["malloc_bytes"], kib * 1024, descriptors, threads)


def ask(door: Path, command: bytes) -> Any:
    """Have a `telling_serve` do something, and return what it says."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(60.0)
        connection.connect(str(door))
        connection.sendall(command)
        return json.loads(b"".join(iter(lambda: connection.recv(4096), b"")))


def growth(seen: Sequence[Held], of: Callable[[Held], int]) -> float:
    """How much a request adds: the median slope between any two looks (Theil and Sen), which an odd look bends not."""
    pairs = itertools.combinations(seen, 2)
    return median((of(late) - of(early)) / (late.requests - early.requests) for early, late in pairs)
