"""What is measured: cells of body size, instances, workers and rate, and how long each of them takes. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

KIB = 1024
BODY_BYTES = (KIB, 4 * KIB, 32 * KIB, 128 * KIB, KIB * KIB)
INSTANCES = (8, 64, 1000)
WORKERS = (1,)
MORE_WORKERS = 2  # if there are cores for them, and where targets speak of one: everywhere would double the time
MORE_WORKERS_INSTANCES, MORE_WORKERS_BODY_BYTES = (64,), (4 * KIB, 128 * KIB)
STREAMS = 1000  # held at once, for their memory
_STREAMS_BYTES = 256 * KIB * KIB  # of all their bodies, where their number is left to us: two Envoys hold each of them
_STREAMS_BODY_BYTES = 4 * KIB
_RATE_RPS = 500.0
_BYTES_PER_S = 8 * KIB * KIB  # of all bodies, where the rate is left to us: beyond it Envoy is what is measured
_WARM_UP_S = 0.5
_QUICK_WARM_UP_S = 0.3
_QUICK_S = 34.0  # for the cells; starting takes ten seconds on a busy machine


@dataclass(frozen=True, slots=True, order=True)
class Cell:
    """One combination. `rate_rps` None: closed loop, as fast as it goes."""

    instances: int
    workers: int
    body_bytes: int
    rate_rps: float | None


@dataclass(frozen=True, slots=True)
class Streams:
    """So many requests with such bodies that are open at once, in each stand."""

    count: int
    body_bytes: int


@dataclass(frozen=True, slots=True)
class Plan:
    """Cells in the order in which they are measured, and how. Each round is one of each way, one after another."""

    cells: tuple[Cell, ...]
    seconds: float  # of a round of one way
    rounds: int
    warm_up_s: float = _WARM_UP_S
    within_s: float | None = None  # for all cells of a stand; each has one round at least
    clients: int = 16  # of a closed loop, for each worker
    streams: tuple[Streams, ...] = ()  # to hold for their memory, the smallest bodies first

    def stands(self) -> Iterator[tuple[int, int, list[Cell]]]:
        """Instances, workers, and the cells that can be measured without starting anything anew."""
        for (instances, workers), cells in groupby(self.cells, lambda cell: (cell.instances, cell.workers)):
            yield instances, workers, list(cells)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """What a person asks for; what is left empty is as usual."""

    body_bytes: Sequence[int] = ()
    instances: Sequence[int] = ()
    workers: Sequence[int] = ()
    rates_rps: Sequence[float | None] = ()
    seconds: float | None = None
    rounds: int | None = None
    clients: int = 16
    streams: int | None = None  # 0: none
    cores: int = 1  # that there are


def plan(wishes: Wishes) -> Plan:
    """All combinations. The usual rates: a fixed one, less for large bodies, and as fast as it goes.

    The usual workers: one, and in a part of the combinations two.
    """
    cells = (
        Cell(instances, workers, size, rate)
        for instances in wishes.instances or INSTANCES
        for workers in wishes.workers or _usual_workers(instances, wishes.cores)
        for size in _sizes(workers, wishes)
        for rate in wishes.rates_rps or (usual_rate_rps(size), None)
    )
    seconds, rounds = wishes.seconds or 2.0, wishes.rounds or 5
    return Plan(_once(cells), seconds, rounds, clients=wishes.clients, streams=_streams(wishes, STREAMS))


def quick_plan(wishes: Wishes) -> Plan:
    """Less than a minute, if nothing is asked for beyond it: one fleet, three sizes, one of them without a rate too."""
    instances, workers = wishes.instances or (64,), wishes.workers or (1,)
    sizes = wishes.body_bytes or (4 * KIB, 128 * KIB, KIB * KIB)
    shapes = [(fleet, processes) for fleet in instances for processes in workers]
    cells = [
        Cell(fleet, processes, size, rate)
        for fleet, processes in shapes
        for size in sizes
        for rate in wishes.rates_rps or ((usual_rate_rps(size), None) if size == sizes[0] else (usual_rate_rps(size),))
    ]
    return Plan(
        _once(cells),
        wishes.seconds or 0.8,
        wishes.rounds or 3,
        _QUICK_WARM_UP_S,
        _QUICK_S / len(shapes),
        wishes.clients,
        _streams(wishes, 0),
    )


def usual_rate_rps(body_bytes: int) -> float:
    """Requests a second that a small machine can carry."""
    return min(_RATE_RPS, max(10.0, _BYTES_PER_S / body_bytes))


def _usual_workers(instances: int, cores: int) -> tuple[int, ...]:
    more = cores >= MORE_WORKERS and instances in MORE_WORKERS_INSTANCES
    return (*WORKERS, MORE_WORKERS) if more else WORKERS


def _sizes(workers: int, wishes: Wishes) -> Sequence[int]:
    """Those that are wished; of these, the ones for more workers if nobody has asked for so many."""
    sizes = wishes.body_bytes or BODY_BYTES
    every = wishes.workers or workers in WORKERS
    return sizes if every else [size for size in sizes if size in MORE_WORKERS_BODY_BYTES]


def _streams(wishes: Wishes, usual: int) -> tuple[Streams, ...]:
    """Of each size that is wished, or of a small one; fewer of large ones, unless their number is wished."""
    sizes = sorted(set(wishes.body_bytes)) or [_STREAMS_BODY_BYTES]
    if wishes.streams is not None:
        counts = [wishes.streams for _ in sizes]
    else:
        counts = [min(usual, max(1, _STREAMS_BYTES // size)) for size in sizes]
    return tuple(Streams(count, size) for count, size in zip(counts, sizes, strict=True) if count)


def _once(cells: Iterable[Cell]) -> tuple[Cell, ...]:
    return tuple(dict.fromkeys(cells))
