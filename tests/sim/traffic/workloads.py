"""What must hold of every workload, and small ones to try things on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from extproc.sim.traffic.arrival import Arrival, Traffic


def sound(traffic: Traffic) -> Traffic:
    """Check what `Traffic` and `Arrival` promise."""
    arrivals = traffic.arrivals
    parents: dict[int, tuple[int, ...]] = {}
    assert arrivals
    for index, arrival in enumerate(arrivals):
        assert arrival.at_s >= (arrivals[index - 1].at_s if index else 0)
        assert arrival.prompt_tokens >= 1
        assert arrival.output_tokens >= 1
        assert arrival.think_s >= 0
        assert len(arrival.blocks) <= (arrival.prompt_tokens + arrival.output_tokens) // traffic.block_size_tokens
        assert arrival.max_output_tokens is None or arrival.output_tokens <= arrival.max_output_tokens
        if arrival.follows is not None:
            assert 0 <= arrival.follows < index
            assert arrivals[arrival.follows].session == arrival.session
        for place, name in enumerate(arrival.blocks):  # a name stands behind the same names wherever it occurs
            before = (place, *arrival.blocks[place - 1 : place])
            assert parents.setdefault(name, before) == before
    return traffic


def shared_blocks(one: Arrival, other: Arrival) -> int:
    """How many leading blocks two requests have in common."""
    pairs = enumerate(zip(one.blocks, other.blocks, strict=False))
    return next((place for place, (a, b) in pairs if a != b), min(len(one.blocks), len(other.blocks)))


def written(path: Path, *lines: str) -> Path:
    """A file with these lines."""
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def plain(*at_s: float, **fields: Any) -> Traffic:
    """Requests at these times, each with a block of its own behind a common one."""
    arrivals = [
        Arrival(**{"at_s": at, "prompt_tokens": 1100, "output_tokens": 10, "blocks": (0, index + 1), **fields})
        for index, at in enumerate(at_s)
    ]
    return Traffic(name="plain", arrivals=tuple(arrivals), block_size_tokens=512)


@st.composite
def workloads(draw: st.DrawFn, block_sizes: tuple[int, ...] = (64, 512)) -> Traffic:
    """Sound workloads of a few sessions."""
    size = draw(st.sampled_from(block_sizes))
    latest: dict[int, int] = {}
    prompts: dict[int, tuple[int, ...]] = {}
    arrivals: list[Arrival] = []
    at_s, name = 0.0, 0
    for gap_s, session, grows in draw(
        st.lists(st.tuples(st.floats(0, 100), st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=30)
    ):
        at_s += gap_s if arrivals else 0.0
        blocks = prompts.get(session, ()) + tuple(range(name, name + grows))
        name += grows
        arrivals.append(
            Arrival(
                at_s=at_s,
                prompt_tokens=len(blocks) * size + 1,
                output_tokens=1 + grows,
                blocks=blocks,
                session=str(session),
                tenant=f"tenant-{session}",
                follows=latest.get(session),
                think_s=1.0 if session in latest else 0.0,
            )
        )
        prompts[session], latest[session] = blocks, len(arrivals) - 1
    return Traffic(name="drawn", arrivals=tuple(arrivals), block_size_tokens=size)
