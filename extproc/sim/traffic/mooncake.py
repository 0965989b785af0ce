"""Mooncake's traces: JSON lines with arrival, lengths, and ids of 512-token blocks of the prompt.

Format: `timestamp` (ms), `input_length`, `output_length`, `hash_ids` (the last may be of a partial block), as
kvcache-ai/Mooncake describes it in its FAST25-release/README (Apache-2.0).

The recording tells time in ticks of three seconds: some ten requests have the same timestamp, and then none comes for
a while. No client does that, and it would measure how several routers collide rather than how they route. So requests
of one tick are spread evenly until the next one, in the order in which they stand.
"""

from __future__ import annotations

from itertools import groupby
from pathlib import Path
from typing import Annotated

from msgspec import Meta, Struct

from extproc.sim.traffic.arrival import Arrival, Traffic
from extproc.sim.traffic.lines import bad_line, class_of, no_requests, records

BLOCK_TOKENS = 512


class _Line(Struct):
    timestamp: Annotated[float, Meta(ge=0)]
    input_length: Annotated[int, Meta(ge=1)]
    output_length: Annotated[int, Meta(ge=0)]
    hash_ids: tuple[int, ...]


def load(path: Path, requests: int | None = None, *, spread: bool = True) -> Traffic:
    """The trace in a file, or its first `requests` lines. Raises ConfigError that names file and line.

    Nothing is known of sessions, nor of the blocks of answers. An answer of 0 tokens counts as 1. Without `spread` all
    requests of a tick come at once, as they are recorded.
    """
    lines = []
    for number, line in records(path, _Line, requests):
        full = line.input_length // BLOCK_TOKENS
        if len(line.hash_ids) < full:
            raise bad_line(path, number, f"{len(line.hash_ids)} hash_ids for the {full} full blocks of the prompt")
        lines.append(line)
    if not lines:
        raise no_requests(path)
    lines.sort(key=lambda line: line.timestamp)
    times_ms = [line.timestamp for line in lines]
    moments_ms = _spread(times_ms) if spread else times_ms
    return Traffic(
        name=path.stem,
        arrivals=tuple([_arrival(line, at - times_ms[0]) for line, at in zip(lines, moments_ms, strict=True)]),
        block_size_tokens=BLOCK_TOKENS,
    )


def _spread(times_ms: list[float]) -> list[float]:
    """Ascending times, those that are equal moved evenly apart until the next; the last ones stay together."""
    moments: list[float] = []
    for at, members in groupby(times_ms):
        count = len(list(members))
        place = len(moments) + count
        until = times_ms[place] if place < len(times_ms) else at
        moments += [at + (until - at) * number / count for number in range(count)]
    return moments


def _arrival(line: _Line, after_ms: float) -> Arrival:
    return Arrival(
        at_s=after_ms / 1000,
        prompt_tokens=line.input_length,
        output_tokens=line.output_length or 1,
        blocks=line.hash_ids[: line.input_length // BLOCK_TOKENS],
        request_class=class_of(line.input_length),
    )
