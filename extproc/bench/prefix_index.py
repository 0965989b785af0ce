"""What the prefix index costs: bytes an entry, measured in child processes, and the time of its steps when full.

Times are those of the processor, so that neighbours on the machine do not show.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from random import Random
from resource import getpagesize

from extproc.bench.beside import beside
from extproc.core.prefixes.prefix import PrefixIndex

CHAIN_BLOCKS = 512
TYPICAL_BLOCKS = 32  # 8 KiB of prompt
_SHAPES = {"one block a chain": (1, 1), "32 blocks a chain": (32, 1), "32 blocks at 4 instances": (32, 4)}


@dataclass(frozen=True, slots=True)
class Memory:
    """Resident memory that an index of so many entries adds to a process."""

    shape: str
    entries: int
    bytes_per_entry: float


@dataclass(frozen=True, slots=True)
class Step:
    """Seconds of the processor that one operation on a full index takes."""

    name: str
    p50_s: float
    p99_s: float
    max_s: float


@dataclass(frozen=True, slots=True)
class PrefixCosts:
    """All of the measurement."""

    instances: int
    memory: tuple[Memory, ...]
    steps: tuple[Step, ...]


def prefix_costs(instances: int, entries: int, rounds: int) -> PrefixCosts:
    """Fill indexes of `entries` entries at that many instances; time `rounds` of each step."""
    memory = tuple(_memory(shape, instances, entries) for shape in _SHAPES)
    return PrefixCosts(instances, memory, tuple(_steps(instances, entries, rounds)))


def _memory(shape: str, instances: int, entries: int) -> Memory:
    with beside(_tell_memory, shape, instances, entries) as child:
        memory: Memory = child.recv()
    return memory


def _tell_memory(shape: str, instances: int, entries: int, told: Connection) -> None:
    index, random = PrefixIndex(entries), Random(1)
    index.insert("first", _chain(random), CHAIN_BLOCKS)  # what the first use allocates is not an entry's
    index.forget("first")
    before_bytes = _resident_bytes()
    _fill(index, random, *_SHAPES[shape], instances, entries)
    told.send(Memory(shape, index.entries, (_resident_bytes() - before_bytes) / index.entries))


def _fill(index: PrefixIndex, random: Random, blocks: int, copies: int, instances: int, entries: int) -> None:
    for number in range(entries // (blocks * copies)):
        chain = _chain(random, blocks)
        for copy in range(copies):
            index.insert(_key((number + copy * (1 + number % 7)) % instances), chain, entries)


def _steps(instances: int, entries: int, rounds: int) -> Iterator[Step]:
    index, random = PrefixIndex(entries), Random(1)
    keys = [_key(number) for number in range(instances)]
    whole, ragged, scattered = (_chain(random) for _ in range(3))
    for block in random.sample(scattered, len(scattered)):
        index.insert(keys[0], (block,), entries)  # so that no two neighbours of the chain lie side by side
    for number, key in enumerate(keys):
        index.insert(key, whole, entries)
        index.insert(key, scattered, entries)
        index.insert(key, ragged[: CHAIN_BLOCKS - 3 * number % CHAIN_BLOCKS], entries)
    _fill(index, random, 32, 1, instances, entries - index.entries)
    for name, chain in (("held in order", whole), ("at different depths", ragged), ("scattered in memory", scattered)):
        yield _timed(f"matches, {name}", rounds, lambda chain=chain: index.matches(list(chain)))  # type: ignore[misc]
    # A table that has just been filled splits its segments at a rate that does not last.
    _fill(index, random, 32, 1, instances, entries // 4)
    index.insert(keys[0], whole, entries)
    for name, held in (("all held", CHAIN_BLOCKS), ("the last 32 new", CHAIN_BLOCKS - 32), ("all new", 0)):
        chains = iter([(*whole[:held], *_chain(random, CHAIN_BLOCKS - held)) for _ in range(rounds)])
        capacity_blocks = index.size(keys[0])
        yield _timed(
            f"insert, {name}",
            rounds,
            lambda chains=chains, most=capacity_blocks: index.insert(keys[0], next(chains), most),  # type: ignore[misc]
        )
    yield from _typical_steps(index, random, keys, rounds)
    leaving = iter(keys)
    yield _timed("forget an instance", len(keys), lambda: index.forget(next(leaving)))


def _typical_steps(index: PrefixIndex, random: Random, keys: list[str], rounds: int) -> Iterator[Step]:
    """Prompts of ordinary length that few instances hold, in the order in which a conversation asks for them."""
    prompts = [_chain(random, TYPICAL_BLOCKS) for _ in range(rounds)]
    grown = [(*prompt, *_chain(random, 4)) for prompt in prompts]
    size = f"{TYPICAL_BLOCKS} blocks"
    capacity_blocks = index.size(keys[1])
    for name, chains in ((f"insert, {size}, all new", prompts), (f"insert, {size}, 4 more", grown)):
        each = iter(chains)
        yield _timed(name, rounds, lambda each=each: index.insert(keys[1], next(each), capacity_blocks))  # type: ignore[misc]
    unknown = [_chain(random, TYPICAL_BLOCKS) for _ in prompts]
    for name, chains in ((f"matches, {size}, at one", prompts[-50:] * rounds), (f"matches, {size}, at none", unknown)):
        each = iter(chains)
        yield _timed(name, rounds, lambda each=each: index.matches(list(next(each))))  # type: ignore[misc]


def _timed(name: str, rounds: int, step: Callable[[], object]) -> Step:
    times_s = []
    for _ in range(rounds):
        began_s = time.thread_time()
        step()
        times_s.append(time.thread_time() - began_s)
    times_s.sort()
    return Step(name, times_s[len(times_s) // 2], times_s[len(times_s) * 99 // 100], times_s[-1])


def _chain(random: Random, blocks: int = CHAIN_BLOCKS) -> tuple[int, ...]:
    return tuple(random.getrandbits(64) for _ in range(blocks))


def _key(number: int) -> str:
    return f"i-{number}"


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * getpagesize()
