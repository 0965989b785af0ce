"""What counts as a load of 1: the capacity of a fleet for a workload, against hand-computed and simulated figures."""

from __future__ import annotations

from dataclasses import replace

import pytest

from extproc.core.values.instance import Role
from extproc.errors import ConfigError
from extproc.sim.capacity import capacity_rps
from extproc.sim.capacity_halves import shared_rps
from extproc.sim.fleet.builtin import BUILTIN
from extproc.sim.fleet.replay import replay
from extproc.sim.fleet.spec import Conditions, FleetSpec, InstanceSpec
from extproc.sim.policies.oracle import Oracle
from extproc.sim.traffic.arrival import Arrival, Traffic
from extproc.sim.traffic.sources import traffic_at

SMALL, LARGE = "llama-3.1-8b", "qwen3-32b"


def fleet(*instances: InstanceSpec) -> FleetSpec:
    return FleetSpec(name="some", instances=instances)


def spec(name: str, *models: str, **more: object) -> InstanceSpec:
    return replace(InstanceSpec(id=name, models=models or (SMALL,)), **more)


def flood(*parts: tuple[int, str], blocks: tuple[int, ...] = ()) -> Traffic:
    """So many requests for each model, all at once, of 2,000 tokens and answers of 200."""
    arrivals = [
        Arrival(at_s=0.0, prompt_tokens=2000, output_tokens=200, model=model, blocks=blocks)
        for count, model in parts
        for _ in range(count)
    ]
    return Traffic(name="flood", arrivals=tuple(arrivals), block_size_tokens=500)


def test_capacity_by_hand() -> None:
    """16 places, each brings 1,600 uncached tokens and 200 steps; step time is the profile's formula."""
    instance = spec("a", max_num_seqs=16, step_overhead_s=0.004)
    # 100 requests share 4 blocks of 500 tokens; the first computes them, and 99 times 2,000 tokens are repeated.
    traffic = flood((100, SMALL), blocks=(1, 2, 3, 4))
    uncached = 2000 / 100
    new = 16 * uncached / 200
    p = instance.profile()
    step_ms = max(p.a_ms, p.d_ms) + p.b_ms * new + p.c_ms * new * (2000 - uncached / 2) + p.e_ms * 16
    step_ms += p.f_ms * 16 * (2000 + 100) + 4
    assert capacity_rps(traffic, fleet(instance)) == pytest.approx(16 / (200 * step_ms * 1e-3))


def test_blocks_that_no_cache_of_the_fleet_could_keep_are_computed_anew() -> None:
    """Two prompts of 4 blocks by turns: two instances have room for both, and one for one of them."""
    once = replace(flood((1, SMALL)).arrivals[0], output_tokens=2)
    pair = [replace(once, blocks=blocks) for blocks in ((1, 2, 3, 4), (5, 6, 7, 8))]
    traffic = Traffic(name="turns", arrivals=tuple(pair * 50), block_size_tokens=500)
    unshared = replace(traffic, arrivals=tuple(replace(a, blocks=()) for a in traffic.arrivals))
    one, two = (fleet(*(spec(name, kv_tokens=2000) for name in names)) for names in ("a", "ab"))
    assert capacity_rps(traffic, one) == pytest.approx(capacity_rps(unshared, one))
    assert capacity_rps(traffic, two) > 1.5 * capacity_rps(unshared, two)
    some = fleet(spec("a", kv_tokens=3000))  # six blocks: of the older prompt its beginning stays
    assert capacity_rps(traffic, some) > 1.2 * capacity_rps(unshared, some)


@pytest.mark.parametrize(
    ("changes", "more"),
    [
        ({"slowness": 2.0}, 0.5),  # twice as long for each step
        ({"at_start": False}, 0.0),  # it comes later
        ({"max_num_seqs": 1000}, 1.0),  # of 222 requests at once by KV room, more places are of no use
    ],
)
def test_what_an_instance_adds(changes: dict[str, object], more: float) -> None:
    """A second instance beside one that is as usual."""
    traffic = flood((10, SMALL))
    alone = capacity_rps(traffic, fleet(spec("a")))
    both = capacity_rps(traffic, fleet(spec("a"), spec("b", **changes)))
    assert both == pytest.approx(alone * (1 + more), rel=1e-3)


def test_a_fleet_of_two_models_is_full_when_one_of_them_is() -> None:
    """Nine of ten requests are for the one large instance: the nine small ones idle at the capacity."""
    instances = [spec(f"s{number}") for number in range(9)]
    large = spec("l", LARGE, hardware="h100_sxm", tensor_parallel=2)
    traffic = flood((1, SMALL), (9, LARGE))
    alone = capacity_rps(flood((9, LARGE)), fleet(large))
    assert capacity_rps(traffic, fleet(*instances, large)) == pytest.approx(alone / 0.9)


def test_models_of_the_same_instances_share_them() -> None:
    """Two names for one fleet are no second fleet."""
    instance = spec("a", SMALL, "chat")
    assert capacity_rps(flood((5, SMALL), (5, "chat")), fleet(instance)) == pytest.approx(
        capacity_rps(flood((10, SMALL)), fleet(instance))
    )


def test_no_load_without_requests_or_instances() -> None:
    """Each is told in one line."""
    with pytest.raises(ConfigError, match="no requests"):
        capacity_rps(flood(), fleet(spec("a")))
    with pytest.raises(ConfigError, match=LARGE):
        capacity_rps(flood((1, LARGE)), fleet(spec("a")))


@pytest.mark.parametrize("max_num_batched_tokens", [1024, 8192])
def test_a_flood_is_served_at_the_capacity(max_num_batched_tokens: int) -> None:
    """A thousand requests at once on two instances, nothing shared: within 15 %, with begin and end of it."""
    two = fleet(*(spec(name, max_num_batched_tokens=max_num_batched_tokens) for name in "ab"))
    traffic = flood((1000, SMALL))
    result = replay(traffic, two, Conditions(), "oracle", Oracle)
    assert 1000 / result.ended_s == pytest.approx(capacity_rps(traffic, two), rel=0.15)


def test_the_token_budget_of_a_step_limits_how_many_answers_run_at_once() -> None:
    """2,000 uncached tokens for each 200 of an answer are 11 a step and answer: 1,100 tokens are a hundred answers."""
    limited = capacity_rps(flood((100, SMALL)), fleet(spec("a", max_num_batched_tokens=1100)))
    places = capacity_rps(flood((100, SMALL)), fleet(spec("a", max_num_seqs=100)))
    assert limited == pytest.approx(places)
    assert limited < capacity_rps(flood((100, SMALL)), fleet(spec("a")))


def test_instances_that_share_requests_serve_as_many_as_the_scarcer_half() -> None:
    """Rates by hand: prompts 4 a second, answers 6, both 3; who can do either makes up for what is scarce."""
    rates = {Role.PREFILL: 4.0, Role.DECODE: 6.0, Role.BOTH: 3.0}

    def rps(*roles: Role, domain: str = "d") -> float:
        specs = [spec(str(number), role=role, kv_domain=domain) for number, role in enumerate(roles)]
        return shared_rps(specs, lambda _, role: rates[role])

    assert rps(Role.PREFILL, Role.DECODE) == 4.0
    assert rps(Role.PREFILL, Role.PREFILL, Role.DECODE) == 6.0
    assert rps(Role.BOTH, Role.BOTH) == 6.0
    assert rps(Role.PREFILL, Role.BOTH) == pytest.approx(4.0 + (1 - 4 / 6) * 3.0)
    assert rps(Role.DECODE, Role.BOTH) == 4.0
    assert rps(Role.PREFILL, Role.DECODE, Role.BOTH) == pytest.approx(6.0 + (1 - 2 / 4) * 3.0)
    assert rps(Role.PREFILL, Role.BOTH, domain="") == 3.0


def test_a_fleet_that_is_split_serves_less_of_a_workload_that_is_mostly_answers() -> None:
    """Four of its eight only compute prompts; the others answer a little faster than those that compute them, too."""
    traffic = traffic_at("chat?requests=300", 20.0)
    split, whole = (capacity_rps(traffic, BUILTIN[name]()) for name in ("half_disaggregated", "both_ways"))
    assert 0.5 < split / whole < 0.8
