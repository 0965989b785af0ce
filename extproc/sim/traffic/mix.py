"""Several workloads at once, as one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from random import Random

from extproc.errors import ConfigError
from extproc.sim.traffic.arrival import Arrival, Traffic
from extproc.sim.traffic.recut import recut
from extproc.sim.traffic.scale import at_rate, rate, take

LATER_S = 20.0  # by how much an additional person may come later than who was recorded


def mix(name: str, parts: Sequence[tuple[Traffic, float]], requests: int | None = None) -> Traffic:
    """Workloads, each with its share of the requests; shares need not sum up to 1.

    The first part keeps its pace, and the others are stretched until the shares hold at every time. Without `requests`
    the mix ends where its first part ends to have requests left. Raises ConfigError if there is no part, if a share
    is not above 0, or if the parts have too few requests.
    """
    total = sum(share for _, share in parts)
    if not parts or not all(share > 0 for _, share in parts):
        raise ConfigError("a mix needs at least one workload, and shares above 0")
    shares = [share / total for _, share in parts]
    most = min(int(len(traffic.arrivals) / share + 1e-9) for (traffic, _), share in zip(parts, shares, strict=True))
    requests = most if requests is None else requests
    if requests > most:
        raise ConfigError(f"a mix of {requests} requests was asked for, and its parts have enough for {most}")
    ends = [round(requests * end) for end in accumulate(shares)]
    counts = [end - begin for begin, end in zip([0, *ends], ends, strict=False)]
    whole_s = rate(parts[0][0]) / shares[0]
    stretched = [
        take(at_rate(traffic, whole_s * share), count)
        for (traffic, _), share, count in zip(parts, shares, counts, strict=True)
        if count
    ]
    return overlay(name, stretched)


def overlay(name: str, parts: Sequence[Traffic]) -> Traffic:
    """Workloads as they are, side by side. Blocks and sessions of two parts are never the same.

    Blocks are of the largest size that divides those of all parts.
    """
    block_size = math.gcd(*(part.block_size_tokens for part in parts if any(a.blocks for a in part.arrivals)))
    block_size = block_size or parts[0].block_size_tokens
    arrivals, first_name = [], 0
    for number, part in enumerate(parts):
        named = [_own_session(arrival, number) for arrival in part.arrivals]
        if any(arrival.blocks for arrival in named):
            cut = recut(part, block_size).arrivals
            named = [
                replace(arrival, blocks=tuple([first_name + block for block in like.blocks]))
                for arrival, like in zip(named, cut, strict=True)
            ]
            first_name = 1 + max(max(arrival.blocks, default=0) for arrival in named)
        arrivals.append(named)
    return Traffic(name=name, arrivals=_by_time(arrivals), block_size_tokens=block_size)


def thicker(traffic: Traffic, times: int, seed: int = 0) -> Traffic:
    """As if so many times as many people had come: each of the others asks what one of the first asked, a little later.

    Load rises and falls as it did before, from a minute on; nobody shares a prefix with who came before `times`.
    """
    random = Random(f"thicker {seed}")
    others = [
        replace(traffic, arrivals=tuple(sorted((_later(arrival, random) for arrival in traffic.arrivals), key=_at_s)))
        for _ in range(1, times)
    ]
    return overlay(traffic.name, [traffic, *others])


def _later(arrival: Arrival, random: Random) -> Arrival:
    """It stands alone: whom it followed may come later now."""
    return replace(arrival, at_s=arrival.at_s + random.random() * LATER_S, follows=None, think_s=0.0)


def _at_s(arrival: Arrival) -> float:
    return arrival.at_s


def _own_session(arrival: Arrival, number: int) -> Arrival:
    return replace(arrival, session=f"{number}:{arrival.session}") if arrival.session else arrival


def _by_time(parts: Sequence[Sequence[Arrival]]) -> tuple[Arrival, ...]:
    order = sorted((arrival.at_s, p, index) for p, part in enumerate(parts) for index, arrival in enumerate(part))
    places = {(p, index): place for place, (_, p, index) in enumerate(order)}
    return tuple(
        [
            replace(arrival, follows=None if arrival.follows is None else places[p, arrival.follows])
            for _, p, index in order
            for arrival in [parts[p][index]]
        ]
    )
