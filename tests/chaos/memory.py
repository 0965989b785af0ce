"""What a process holds: memory, descriptors, threads; and how fast that grows."""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median


@dataclass(frozen=True, slots=True)
class Held:
    """Of one process at one moment."""

    requests: int  # that it had served by then
    bytes: int  # resident and its own: what would be paid for it
    descriptors: int
    threads: int


def held(pid: int, requests: int) -> Held:
    """Look at a process."""
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    kib = sum(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Private_"))
    return Held(requests, kib * 1024, len(os.listdir(f"/proc/{pid}/fd")), len(os.listdir(f"/proc/{pid}/task")))


def growth_bytes(seen: Sequence[Held]) -> float:
    """Bytes a request: the median slope between any two looks (Theil and Sen), which an odd look does not bend."""
    pairs = itertools.combinations(seen, 2)
    return median((late.bytes - early.bytes) / (late.requests - early.requests) for early, late in pairs)
