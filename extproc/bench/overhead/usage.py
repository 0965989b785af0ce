"""What processes have used: processor time, and memory that is theirs."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

_TICK_S = 1.0 / os.sysconf("SC_CLK_TCK")


def family(root: int) -> list[int]:
    """A process and all that descend from it."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (fields := _stat(int(entry.name))):
            parents.setdefault(int(fields[1]), []).append(int(entry.name))
    found = [root]
    for pid in found:
        found += parents.get(pid, ())
    return found


def cpu_s(pids: Iterable[int]) -> dict[int, float]:
    """Processor seconds, user and system, of all threads that each process has or had; 0 of one that is gone."""
    return {pid: _cpu_s(pid) for pid in pids}


def used_s(before: Mapping[int, float], after: Mapping[int, float]) -> float:
    """Processor seconds between two looks; one that has begun since counts from its start, one `lost` not at all."""
    return sum(max(0.0, now_s - before.get(pid, 0.0)) for pid, now_s in after.items())


def lost(before: Mapping[int, float], after: Mapping[int, float]) -> bool:
    """Whether a process has gone between two looks: what it used meanwhile cannot be known any more."""
    return any(after.get(pid, -1.0) < then_s for pid, then_s in before.items())


def memory_bytes(pids: Iterable[int]) -> int:
    """Proportional set size: pages that several share are split among them."""
    total = 0
    for pid in pids:
        try:
            text = Path(f"/proc/{pid}/smaps_rollup").read_text()
        except OSError:
            continue
        total += sum(int(line.split()[1]) for line in text.splitlines() if line.startswith("Pss:")) * 1024
    return total


def _cpu_s(pid: int) -> float:
    """By the kernel's clock of the process, which is exact; /proc tells the same in hundredths of a second."""
    try:
        return time.clock_gettime(~pid << 3 | 2)  # as clock_getcpuclockid(3) makes it
    except OSError:
        fields = _stat(pid)
        return (int(fields[11]) + int(fields[12])) * _TICK_S if fields else 0.0


def _stat(pid: int) -> list[str]:
    """Fields after the program's name, which may hold blanks: state, parent …; [] if it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []
