"""The fixed suites: which workloads, fleets, loads and conditions a policy is judged by."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product
from pathlib import Path

from extproc.sim.fleet.builtin import SUITE
from extproc.sim.fleet.spec import Conditions
from extproc.sim.setup import Setup

LOADS = (0.60, 0.85, 1.05)
STATE_DELAYS_S = (0.2, 2.0)
REPLICAS = (1, 4)
# Of each recorded workload: at the capacity of sixteen H100 these are 85, 50, 30 and 22 s, of the mixed fleet nearly
# twice that. An answer takes about 10 s, but of Azure's code 1 s: fewer requests would fill a fleet and not load it.
REQUESTS = {
    "mooncake-conversation": 2000,
    "mooncake-synthetic": 2000,
    "azure-conversation": 10_000,
    "azure-code": 8000,
}
MADE_UP_REQUESTS = 3000
QUICK_REQUESTS = 400
MADE_UP = ("day", "chat", "agents")
_QUICK = ("mooncake-conversation", *MADE_UP)


def standard(traces: Mapping[str, Path], seed: int) -> Iterator[Setup]:
    """Every workload on both fleets, at each load, state delay and number of replicas.

    Without the public traces, made-up workloads stand in for them.
    """
    for trace, fleet, load in product(_workloads(traces), SUITE, LOADS):
        for delay_s, replicas in product(STATE_DELAYS_S, REPLICAS):
            yield _setup(trace, traces, fleet, load, delay_s, replicas, seed)


def quick(traces: Mapping[str, Path], seed: int) -> Iterator[Setup]:
    """A taste of the same in under a minute: two workloads, the mixed fleet, two loads."""
    known = _workloads(traces)
    for trace, load in product([name for name in _QUICK if name in known][:2], LOADS[1:]):
        yield _setup(trace, traces, "mixed", load, STATE_DELAYS_S[0], REPLICAS[0], seed, QUICK_REQUESTS)


def _workloads(traces: Mapping[str, Path]) -> list[str]:
    recorded = [name for name in REQUESTS if name in traces]
    return [*recorded, MADE_UP[0]] if recorded else list(MADE_UP)


def _setup(
    trace: str,
    traces: Mapping[str, Path],
    fleet: str,
    load: float,
    delay_s: float,
    replicas: int,
    seed: int,
    requests: int | None = None,
) -> Setup:
    return Setup(
        trace=trace,
        traffic=trace if trace in MADE_UP else str(traces[trace]),
        fleet=SUITE[fleet](),
        conditions=Conditions(state_delay_s=delay_s, replicas=replicas, seed=seed),
        load=load,
        requests=requests or REQUESTS.get(trace, MADE_UP_REQUESTS),
    )
