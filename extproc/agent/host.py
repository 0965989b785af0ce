"""How pressed this machine is, from Linux's /proc: parsing, and one reader.

Pressure stall information: https://docs.kernel.org/accounting/psi.html. Where the kernel does not offer it, the load
average and the free memory stand in for it.
"""

from __future__ import annotations

import math
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

from extproc.core.values.instance import Host

if TYPE_CHECKING:
    from collections.abc import Callable

_UNREAL = ("lo", "veth", "docker", "br-", "cni", "cali", "flannel", "virbr", "tun", "tap", "dummy", "kube-")
_KEPT_S = 0.4  # a reading serves all backends of this machine for so long
_SCARCE = 0.1  # share of memory that is still available when pressure begins


def pressure(page: str) -> float | None:
    """Share of the last 10 s in which some task waited, from a /proc/pressure file; None if it does not tell."""
    for line in page.splitlines():
        kind, *fields = line.split() or [""]
        for field in fields if kind == "some" else ():
            name, _, value = field.partition("=")
            if name == "avg10" and (percent := _number(value)) is not None:
                return min(1.0, max(0.0, round(percent / 100, 4)))
    return None


def load_pressure(loadavg: str, cpus: int) -> float | None:
    """Share of runnable tasks that wait for a CPU, from /proc/loadavg."""
    load = _number(next(iter(loadavg.split()), ""))
    if load is None or cpus <= 0:
        return None
    return max(0.0, (load - cpus) / load) if load > 0 else 0.0


def scarcity(meminfo: str) -> float | None:
    """How far available memory is below a tenth of all, 0 to 1, from /proc/meminfo."""
    kib: dict[str, float | None] = {}
    for line in meminfo.splitlines():
        name, _, rest = line.partition(":")
        kib[name] = _number(next(iter(rest.split()), ""))
    total, available = kib.get("MemTotal"), kib.get("MemAvailable")
    if not total or available is None:
        return None
    return min(1.0, max(0.0, 1.0 - available / (total * _SCARCE)))


def network_bytes(net_dev: str) -> int | None:
    """Bytes received and sent since boot on all interfaces that lead out of the machine, from /proc/net/dev."""
    counts = []
    for line in net_dev.splitlines():
        name, colon, rest = line.partition(":")
        fields = rest.split()
        if colon and len(fields) >= 9 and not name.strip().startswith(_UNREAL):
            if not (fields[0].isdigit() and fields[8].isdigit()):
                return None
            counts.append(int(fields[0]) + int(fields[8]))
    return sum(counts) if counts else None


class HostReader:
    """Reads this machine's pressure. `proc` is where /proc is mounted."""

    def __init__(self, proc: Path = Path("/proc"), clock: Callable[[], float] = time.monotonic) -> None:
        self._proc = proc
        self._clock = clock
        self._counted: tuple[float, int] | None = None  # when, and how many bytes
        self._last: tuple[float, Host] | None = None

    def read(self) -> Host:
        """Pressure now, or of some moment ago; what this machine does not tell is None.

        The network's rate is that since the reading before, so the first one has none.
        """
        now_s = self._clock()
        if self._last is None or now_s - self._last[0] >= _KEPT_S:
            self._last = (now_s, self._read(now_s))
        return self._last[1]

    def _read(self, now_s: float) -> Host:
        cpu = pressure(self._page("pressure/cpu"))
        memory = pressure(self._page("pressure/memory"))
        return Host(
            cpu_pressure=load_pressure(self._page("loadavg"), os.cpu_count() or 0) if cpu is None else cpu,
            memory_pressure=scarcity(self._page("meminfo")) if memory is None else memory,
            io_pressure=pressure(self._page("pressure/io")),
            network_bytes_s=self._rate(network_bytes(self._page("net/dev")), now_s),
        )

    def _rate(self, count: int | None, now_s: float) -> float | None:
        before, self._counted = self._counted, None if count is None else (now_s, count)
        if count is None or before is None or now_s <= before[0] or count < before[1]:
            return None
        return round((count - before[1]) / (now_s - before[0]), 1)

    def _page(self, name: str) -> str:
        try:
            return (self._proc / name).read_text(encoding="utf-8", errors="replace")  # names of interfaces are bytes
        except OSError:  # not Linux, no PSI in this kernel, or hidden from this container
            return ""


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None
