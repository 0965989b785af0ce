"""Links between GPUs and between machines, by the names that operators give them: how fast each is, and its rank.

Bandwidth within a machine: an all-reduce over 4 GPUs of 4,096 tokens of 16 KiB took 603 us over NVLink 3 and 11,369 us
over PCIe 4.0 (nccl-tests; besthub.dev, "Why NVLink Supercharges Llama 3 70B Inference"); a ring moves 2 (N-1)/N of the
message, 100 MB. The same article saw a vLLM prefill of these tokens go from 879 to 2,740 ms without NVLink, which
the formula gives too. Between machines: 400 Gb/s of NDR InfiniBand or RoCE and 100 Gb/s of Ethernet a machine, at 80 %.
Latency of a hop: NCCL's own tuning model, ring, protocol LL (`hwLat` in NCCL's src/graph/tuning.cc): NVLink 0.6 us,
PCIe 1.0 us, network 2.7 us. That is RDMA; TCP's way through two kernels is taken as 20 us more.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Link:
    """What one hop takes, whatever it carries, and what each byte adds."""

    hop_s: float
    bytes_s: float


NVLINK = Link(0.6e-6, 167e9)
PCIE = Link(1.0e-6, 8.85e9)
RDMA = Link(2.7e-6, 40e9)
ETHERNET = Link(22.7e-6, 10e9)

_INSIDE = {
    "nvlink": NVLINK,
    "nvswitch": NVLINK,
    "nvl72": NVLINK,
    "xgmi": NVLINK,
    "infinity_fabric": NVLINK,
    "pcie": PCIE,
}
_BETWEEN = {
    "ib": RDMA,
    "infiniband": RDMA,
    "roce": RDMA,
    "efa": RDMA,
    "nvlink": NVLINK,  # one NVLink domain may span machines
    "nvl72": NVLINK,
    "ethernet": ETHERNET,
    "tcp": ETHERNET,
}


def inside(name: str) -> Link | None:
    """Link between the GPUs of one machine, None if it has no known name."""
    return _INSIDE.get(name.lower())


def between(name: str) -> Link | None:
    """Link between machines, None if it has no known name."""
    return _BETWEEN.get(name.lower())


def as_fast(name: str, asked: str) -> bool:
    """Whether a link inside of a machine is the one that is asked for, or of a class that is known to be faster."""
    if name and name.lower() == asked:
        return True
    has, wants = inside(name), inside(asked)
    return has is not None and wants is not None and has.bytes_s >= wants.bytes_s
