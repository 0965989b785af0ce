"""Azure's LLM inference traces of 2023 and 2024: CSV with arrival, prompt tokens and answer tokens, no prefixes.

Format: header `TIMESTAMP,ContextTokens,GeneratedTokens`; a time is `2023-11-16 18:17:03.9799600`, or
`2024-05-10 00:00:00.009930+00:00` (Azure/AzurePublicDataset, CC-BY-4.0).
"""

from __future__ import annotations

from pathlib import Path

from extproc.sim.traffic.arrival import Arrival, Traffic
from extproc.sim.traffic.lines import bad_line, class_of, epoch_s, lines_of, no_requests

HEADER = b"TIMESTAMP,ContextTokens,GeneratedTokens"
BLOCK_TOKENS = 512  # no request names any


def load(path: Path, requests: int | None = None) -> Traffic:
    """The trace in a file, or its first `requests` requests. Raises ConfigError that names file and line.

    A prompt or answer of 0 tokens counts as 1.
    """
    lines = lines_of(path, None if requests is None else requests + 1)
    number, header = next(lines, (1, b""))
    if header.removeprefix(b"\xef\xbb\xbf").strip() != HEADER:
        raise bad_line(path, number, f"the header must be {HEADER.decode()}")
    rows = sorted([_row(path, number, line) for number, line in lines])
    if not rows:
        raise no_requests(path)
    start_s = rows[0][0]
    return Traffic(
        name=path.stem,
        arrivals=tuple([_arrival(at_s - start_s, prompt, output) for at_s, prompt, output in rows]),
        block_size_tokens=BLOCK_TOKENS,
    )


def _row(path: Path, number: int, line: bytes) -> tuple[float, int, int]:
    try:
        time, prompt, output = line.decode().strip().split(",")
        row = epoch_s(time), int(prompt), int(output)
    except ValueError as error:
        raise bad_line(path, number, f"not a time and two numbers: {error}") from error
    if min(row[1:]) < 0:
        raise bad_line(path, number, "a number of tokens is negative")
    return row


def _arrival(at_s: float, prompt_tokens: int, output_tokens: int) -> Arrival:
    return Arrival(
        at_s=at_s,
        prompt_tokens=prompt_tokens or 1,
        output_tokens=output_tokens or 1,
        request_class=class_of(prompt_tokens),
    )
