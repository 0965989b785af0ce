"""The fixed suites: which workloads, fleets, loads and conditions a policy is judged by."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product
from pathlib import Path

from extproc.sim.fleet.builtin import BUILTIN
from extproc.sim.fleet.spec import Conditions
from extproc.sim.setup import Setup

LOADS = (0.60, 0.85, 1.05)
STATE_DELAYS_S = (0.2, 2.0)
REPLICAS = (1, 4)
REQUESTS = 2000
QUICK_REQUESTS = 400
TRACES = ("mooncake-conversation", "mooncake-synthetic", "azure-conversation", "azure-code")
BUILT_IN = {"day": "day", "chat": "chat", "agents": "agents"}


def standard(traces: Mapping[str, Path], seed: int, *, requests: int = REQUESTS) -> Iterator[Setup]:
    """Every workload on both fleets, at each load, state delay and number of replicas.

    Without the public traces, made-up workloads stand in for them.
    """
    for (trace, text), fleet, load in product(_workloads(traces, requests, seed).items(), BUILTIN, LOADS):
        for delay_s, replicas in product(STATE_DELAYS_S, REPLICAS):
            yield _setup(trace, text, fleet, load, delay_s, replicas, seed, requests)


def quick(traces: Mapping[str, Path], seed: int) -> Iterator[Setup]:
    """A taste of the same in under a minute: one recorded and one made-up workload, the mixed fleet, two loads."""
    workloads = _workloads(traces, QUICK_REQUESTS, seed)
    chosen = {name: workloads[name] for name in ("mooncake-conversation", "day", "chat") if name in workloads}
    for (trace, text), load in product(list(chosen.items())[:2], LOADS[1:]):
        yield _setup(trace, text, "mixed", load, STATE_DELAYS_S[0], REPLICAS[0], seed, QUICK_REQUESTS)


def _workloads(traces: Mapping[str, Path], requests: int, seed: int) -> dict[str, str]:
    """Names to show and texts for `traffic_of`."""
    recorded = {name: str(traces[name]) for name in TRACES if name in traces}
    made_up = {name: f"{text}?requests={requests}&seed={seed}" for name, text in BUILT_IN.items()}
    return {**recorded, "day": made_up["day"]} if recorded else made_up


def _setup(
    trace: str, text: str, fleet: str, load: float, delay_s: float, replicas: int, seed: int, requests: int
) -> Setup:
    is_recorded = "?" not in text
    return Setup(
        trace=trace,
        traffic=text,
        fleet=BUILTIN[fleet](),
        conditions=Conditions(state_delay_s=delay_s, replicas=replicas, seed=seed),
        load=load,
        requests=requests if is_recorded else None,
        varies=is_recorded,
    )
