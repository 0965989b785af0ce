"""The fixed suites: the cells that the issue of the simulator asks for, no more and no fewer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from itertools import product
from pathlib import Path

import pytest

from extproc.sim import suite
from extproc.sim.setup import Setup
from extproc.sim.suite import quick, standard

TRACES = {
    name: Path(f"{name}.jsonl")
    for name in ("mooncake-conversation", "mooncake-synthetic", "azure-conversation", "azure-code", "agentic-coding")
}
RECORDED = ["mooncake-conversation", "mooncake-synthetic", "azure-conversation", "azure-code"]
Suite = Callable[[Mapping[str, Path], int], Iterator[Setup]]


@pytest.mark.parametrize(("traces", "workloads"), [(TRACES, [*RECORDED, "day"]), ({}, ["day", "chat", "agents"])])
def test_the_standard_suite_has_every_set_of_conditions_once(traces: dict[str, Path], workloads: list[str]) -> None:
    """Workload x fleet x load x state delay x router replicas; without the public traces, what is built in."""
    cells = Counter(
        (c.trace, c.fleet.name, c.load, c.conditions.state_delay_s, c.conditions.replicas) for c in standard(traces, 0)
    )
    wanted = product(workloads, ["uniform", "mixed"], [0.6, 0.85, 1.05], [0.2, 2.0], [1, 4])
    assert cells == Counter(wanted)


def test_fleets_are_what_the_suite_says_of_them() -> None:
    """One kind of GPU in the uniform fleet, three in the mixed one, sixteen instances in each."""
    kinds = {cell.fleet.name: Counter(s.hardware for s in cell.fleet.instances) for cell in standard({}, 0)}
    assert kinds == {"uniform": {"h100_sxm": 16}, "mixed": {"h100_sxm": 6, "a100_sxm": 6, "l40s": 4}}


@pytest.mark.parametrize("traces", [{}, TRACES])
def test_the_quick_suite_is_part_of_the_standard_one(traces: dict[str, Path]) -> None:
    """Fewer cells with fewer requests, of the same workloads and conditions."""
    large = {(c.trace, c.traffic, c.fleet.name, c.load, c.conditions): c.requests for c in standard(traces, 4)}
    small = {(c.trace, c.traffic, c.fleet.name, c.load, c.conditions): c.requests for c in quick(traces, 4)}
    assert len(small) == 4
    assert all((large[key] or 0) > (requests or 0) for key, requests in small.items())


@pytest.mark.parametrize("cells", [standard, quick])
def test_the_seed_goes_into_every_cell(cells: Suite) -> None:
    """And nothing else differs."""
    assert {cell.conditions.seed for cell in cells(TRACES, 5)} == {5}
    assert [cell.traffic for cell in cells(TRACES, 5)] == [cell.traffic for cell in cells(TRACES, 6)]


def test_only_known_traces_are_recorded_ones() -> None:
    """A directory with some of them has these, and the mixed day."""
    some = {name: TRACES[name] for name in ("azure-code", "agentic-coding")}
    assert list(dict.fromkeys(cell.trace for cell in standard(some, 0))) == ["azure-code", "day"]
    assert {cell.requests for cell in standard(some, 0)} == {suite.REQUESTS["azure-code"], suite.MADE_UP_REQUESTS}
