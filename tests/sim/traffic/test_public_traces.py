"""The public traces themselves, where `EXTPROC_TRACES` names a directory with them (docs/traffic.md tells whence)."""

from __future__ import annotations

import os
from pathlib import Path
from statistics import fmean

import pytest

from extproc.sim.traffic.sources import known_traces, load_known
from tests.sim.traffic.workloads import sound

# requests, mean prompt tokens, mean answer tokens, as counted once from the files with a few lines of awk
FACTS = {
    "mooncake-conversation": (12_031, 12_035, 343),
    "mooncake-synthetic": (3_993, 15_325, 149),
    "azure-conversation": (19_366, 1_155, 211),
    "azure-code": (8_819, 2_048, 28),
    "agentic-coding": (1_079, 75_364, 420),
}


@pytest.mark.parametrize("name", FACTS)
def test_a_public_trace_loads_whole(name: str) -> None:
    """With as many requests and tokens as it has, and all that holds of a workload."""
    path = known_traces(Path(os.environ.get("EXTPROC_TRACES") or "/nonexistent")).get(name)
    if path is None:
        pytest.skip("EXTPROC_TRACES names no directory with this trace")
    arrivals = sound(load_known(name, path)).arrivals
    prompt, output = fmean(a.prompt_tokens for a in arrivals), fmean(a.output_tokens for a in arrivals)
    assert (len(arrivals), round(prompt), round(output)) == FACTS[name]
