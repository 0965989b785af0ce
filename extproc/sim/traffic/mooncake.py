"""Mooncake's traces: JSON lines with arrival, lengths, and ids of 512-token blocks of the prompt.

Format: `timestamp` (ms), `input_length`, `output_length`, `hash_ids` (the last may be of a partial block), as
kvcache-ai/Mooncake describes it in its FAST25-release/README (Apache-2.0).
"""

from __future__ import annotations

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


def load(path: Path, requests: int | None = None) -> Traffic:
    """The trace in a file, or its first `requests` lines. Raises ConfigError that names file and line.

    Nothing is known of sessions, nor of the blocks of answers. An answer of 0 tokens counts as 1.
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
    start = lines[0].timestamp
    return Traffic(
        name=path.stem,
        arrivals=tuple([_arrival(line, start) for line in lines]),
        block_size_tokens=BLOCK_TOKENS,
    )


def _arrival(line: _Line, start: float) -> Arrival:
    return Arrival(
        at_s=(line.timestamp - start) / 1000,
        prompt_tokens=line.input_length,
        output_tokens=line.output_length or 1,
        blocks=line.hash_ids[: line.input_length // BLOCK_TOKENS],
        request_class=class_of(line.input_length),
    )
