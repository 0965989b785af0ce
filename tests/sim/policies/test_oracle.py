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


def test_what_a_request_costs_those_that_run_counts() -> None:
    """A long prompt goes to the slower instance that is idle: on the faster one thirty answers would stand still."""
    running = [Arrival(at_s=0.0, prompt_tokens=64, output_tokens=2000, model="crowd") for _ in range(30)]
    long = Arrival(at_s=5.0, prompt_tokens=16_000, output_tokens=10, model="m")
    instances = (
        InstanceSpec(id="fast", models=("llama-3.1-8b", "crowd", "m")),
        InstanceSpec(id="idle", models=("llama-3.1-8b", "m"), slowness=1.5),
    )
    traffic = Traffic(name="few", arrivals=(*running, long), block_size_tokens=64)
    result = replay(traffic, FleetSpec(name="two", instances=instances), Conditions(), "oracle", Oracle)
    assert result.served[-1].instance_id == "idle"
