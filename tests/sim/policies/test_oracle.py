"""The yardstick that knows the truth."""

from __future__ import annotations

from collections import Counter

from extproc.sim.fleet.replay import replay
from extproc.sim.fleet.spec import Conditions, FleetSpec, InstanceSpec
from extproc.sim.policies.oracle import Oracle
from extproc.sim.traffic.arrival import Arrival, Traffic


def test_equals_are_drawn_evenly() -> None:
    """On an idle fleet of equals each instance is taken as often as another, wherever it stands in the list."""
    arrivals = tuple(Arrival(at_s=float(at_s), prompt_tokens=64, output_tokens=2, model="m") for at_s in range(2000))
    instances = tuple(InstanceSpec(id=name, models=("llama-3.1-8b", "m")) for name in "abcd")
    traffic = Traffic(name="few", arrivals=arrivals, block_size_tokens=64)
    result = replay(traffic, FleetSpec(name="four", instances=instances), Conditions(), "oracle", Oracle)
    taken = Counter(served.instance_id for served in result.served)
    assert all(400 < taken[name] < 600 for name in "abcd")
