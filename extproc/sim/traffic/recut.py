"""The same workload with its prompts cut into smaller blocks."""

from __future__ import annotations

from dataclasses import replace

from extproc.errors import ConfigError
from extproc.sim.traffic.arrival import Arrival, Traffic


def recut(traffic: Traffic, block_size_tokens: int) -> Traffic:
    """Each block as several of `block_size_tokens`, named by numbers from 0 on.

    What two prompts share stays what it is; the rest of a prompt behind its last full block gains no names. Raises
    ConfigError for a size that does not divide the present one.
    """
    pieces, rest = divmod(traffic.block_size_tokens, block_size_tokens)
    if rest or not pieces:
        raise ConfigError(
            f"blocks of {traffic.block_size_tokens} tokens cannot be cut into blocks of {block_size_tokens}"
        )
    numbers: dict[int, int] = {}

    def cut(arrival: Arrival) -> Arrival:
        blocks: list[int] = []
        for name in arrival.blocks:
            first = numbers.setdefault(name, len(numbers)) * pieces
            blocks.extend(range(first, first + pieces))
        return replace(arrival, blocks=tuple(blocks))

    return replace(traffic, arrivals=tuple(map(cut, traffic.arrivals)), block_size_tokens=block_size_tokens)
