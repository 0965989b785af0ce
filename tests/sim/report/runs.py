"""Hand-made runs for the tests of the report."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from random import Random
from typing import Any

from extproc.sim.fleet.spec import Conditions, FleetSpec, InstanceSpec
from extproc.sim.report.run import Fate, Run, Sample, Served
from extproc.sim.traffic.arrival import Arrival

TWO = FleetSpec(
    name="two",
    instances=(
        InstanceSpec(id="a", models=("model",), price_per_hour=4.0),
        InstanceSpec(id="b", models=("model",), price_per_hour=2.0, tensor_parallel=2),
    ),
)


def answer(ttft_s: float, duration_s: float, **changes: Any) -> Served:
    """A served request of 100 prompt tokens and 11 answer tokens; changes are of it or of its arrival."""
    own = {name: changes.pop(name) for name in ("cached_tokens", "preemptions", "fate") if name in changes}
    arrival = Arrival(**{"at_s": 0.0, "prompt_tokens": 100, "output_tokens": 11, **changes})
    return Served(
        arrival=arrival,
        arrived_s=arrival.at_s,
        replica=0,
        fate=own.get("fate", Fate.SERVED),
        instance_id="a",
        ttft_s=ttft_s,
        duration_s=duration_s,
        cached_tokens=own.get("cached_tokens", 0),
        preemptions=own.get("preemptions", 0),
        attempts=1,
    )


def refused(**changes: Any) -> Served:
    """A request that no instance took."""
    arrival = Arrival(**{"at_s": 0.0, "prompt_tokens": 100, "output_tokens": 11, **changes})
    return Served(arrival, arrival.at_s, 0, Fate.REFUSED, None, None, None, 0, 0, 0)


def samples(*loads: Sequence[int], waiting: Sequence[Sequence[int]] = (), **changes: Any) -> tuple[Sample, ...]:
    """One sample a second: the running requests of each instance, and the waiting ones."""
    none = tuple(0 for _ in loads[0])
    return tuple(
        Sample(float(i), tuple(load), tuple(waiting[i]) if waiting else none, tuple(0.0 for _ in load), **changes)
        for i, load in enumerate(loads)
    )


def run(served: Sequence[Served], over_time: Sequence[Sample] = (), **changes: Any) -> Run:
    """A run on the fleet of two that lasts 100 s."""
    known = {
        "policy": "extproc",
        "traffic": "made up",
        "fleet": TWO,
        "conditions": Conditions(),
        "served": tuple(served),
        "samples": tuple(over_time),
        "busy_s": {"a": 10.0, "b": 20.0},
        "up_s": {"a": 90.0, "b": 180.0},
        "ended_s": 100.0,
    }
    return Run(**{**known, **changes})


def herded(rule: str, *, instances: int, mean: float, minutes: float, seed: int = 1) -> tuple[Sample, ...]:
    """Loads under a routing rule: Poisson arrivals that hold an instance for about 5 s, state 2 s old for a herd.

    `mean` is the mean number of requests on an instance. Rules: herd, random, round_robin, least_request.
    """
    random, hold_s = Random(seed), 5.0
    counts, seen = [0] * instances, [0] * instances
    ends: list[tuple[float, int]] = []
    found: list[Sample] = []
    now, look_s, sample_s, turn = 0.0, 0.0, 20.0, 0
    while len(found) < minutes * 60:
        now += random.expovariate(mean * instances / hold_s)
        while ends and ends[0][0] <= now:
            counts[heapq.heappop(ends)[1]] -= 1
        if now >= look_s:
            seen, look_s = list(counts), look_s + 2.0
        if now >= sample_s:
            found.append(Sample(sample_s, tuple(counts), (0,) * instances, (0.0,) * instances))
            sample_s += 1.0
        turn += 1
        match rule:
            case "herd":
                chosen = min(range(instances), key=lambda i: (seen[i], random.random()))
            case "least_request":
                chosen = min(range(instances), key=lambda i: (counts[i], random.random()))
            case "round_robin":
                chosen = turn % instances
            case _:
                chosen = random.randrange(instances)
        counts[chosen] += 1
        heapq.heappush(ends, (now + random.expovariate(1 / hold_s), chosen))
    return tuple(found)
