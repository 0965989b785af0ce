"""From a plain description to a workload at its pace on its fleet, and what seeds change of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from extproc.errors import ConfigError
from extproc.sim.capacity import capacity_rps
from extproc.sim.fleet.builtin import mixed, uniform
from extproc.sim.fleet.spec import Conditions, FleetSpec, InstanceSpec
from extproc.sim.setup import Setup, run, workload
from extproc.sim.traffic.scale import rate

RECORDED = '{"timestamp": %d, "input_length": 600, "output_length": %d, "hash_ids": [%d, %d]}\n'


@pytest.fixture
def recording(tmp_path: Path) -> str:
    """100 requests in Mooncake's form, one a second; ten families of prompts."""
    path = tmp_path / "trace.jsonl"
    path.write_text("".join(RECORDED % (1000 * n, 10 + n, n % 10, 100 + n) for n in range(100)))
    return str(path)


def setup(traffic: str, fleet: FleetSpec | None = None, seed: int = 0, **more: object) -> Setup:
    plain = Setup(trace="t", traffic=traffic, fleet=fleet or mixed(), conditions=Conditions(seed=seed))
    return replace(plain, **more)


@pytest.mark.parametrize("load", [0.5, 1.05])
def test_a_recording_is_stretched_to_its_load(recording: str, load: float) -> None:
    """Its rate is that share of the fleet's capacity for it."""
    made = workload(setup(recording, load=load))
    assert len(made.arrivals) == 100
    assert rate(made) == pytest.approx(load * capacity_rps(made, mixed()))


@pytest.mark.parametrize("name", ["chat", "day", "rag"])
def test_a_made_up_workload_is_made_for_its_load(name: str) -> None:
    """More people rather than quicker ones: the rate fits what can be cached of the workload that is run."""
    made = workload(setup(name, uniform(), requests=1500, load=0.7))
    assert len(made.arrivals) == 1500
    assert rate(made) == pytest.approx(0.7 * capacity_rps(made, uniform()), rel=0.15)


def test_a_pace_in_requests_a_second(recording: str) -> None:
    """For both kinds; without one, a recording has its own."""
    assert rate(workload(setup(recording, rate_rps=7.0))) == pytest.approx(7.0)
    assert rate(workload(setup("chat", requests=1000, rate_rps=20.0))) == pytest.approx(20.0, rel=0.1)
    assert rate(workload(setup(recording))) == pytest.approx(1.0)


def test_seeds_vary_a_workload_and_repeat_it(recording: str) -> None:
    """Of a recording 0 is itself; a seed written in a made-up workload's text stays what it is."""
    assert workload(setup(recording)).arrivals[3].at_s == 3.0
    for text in (recording, "chat?requests=50"):
        first, second = workload(setup(text, seed=1)), workload(setup(text, seed=2))
        assert first.arrivals != second.arrivals
        assert first == workload(setup(text, seed=1))
    fixed = [workload(setup("chat?requests=50&seed=3", seed=seed)).arrivals for seed in (0, 1)]
    assert fixed[0] == fixed[1] == workload(setup("chat?requests=50", seed=3)).arrivals


def test_a_number_of_requests(recording: str) -> None:
    """The first ones of a recording; a made-up workload's own text goes first."""
    assert [a.output_tokens for a in workload(setup(recording, requests=3)).arrivals] == [10, 11, 12]
    assert len(workload(setup("chat", requests=30)).arrivals) == 30
    assert len(workload(setup("chat?requests=40", requests=30)).arrivals) == 40


def test_requests_for_no_model_in_particular_go_to_the_one_that_all_serve(recording: str) -> None:
    """Recordings name none that a fleet would know."""
    a = InstanceSpec(id="a", models=("llama-3.1-8b", "chat"))
    b = InstanceSpec(id="b", models=("qwen3-8b", "chat"), hardware="l40s")
    fleet = FleetSpec(name="two", instances=(a, b))
    assert {arrival.model for arrival in workload(setup(recording, fleet)).arrivals} == {"chat"}
    apart = FleetSpec(name="two", instances=(a, replace(b, models=("qwen3-8b",))))
    with pytest.raises(ConfigError, match=r"'model'.*llama-3\.1-8b, qwen3-8b"):
        workload(setup(recording, apart))


def test_two_fleets_of_one_name_are_two_fleets(recording: str) -> None:
    """Their capacities differ, and so does the pace."""
    whole = uniform()
    half = replace(whole, instances=whole.instances[:8])
    ratio = rate(workload(setup(recording, whole, load=0.5))) / rate(workload(setup(recording, half, load=0.5)))
    assert ratio == pytest.approx(2.0)


@pytest.mark.parametrize("policy", ["extproc", "prequal", "oracle"])
def test_a_run_is_the_same_for_the_same_seed_and_another_for_another(policy: str) -> None:
    """With chance in the workload, in the policy and in the readings."""
    first, again, other = [
        run(setup("rag?seed=1&requests=150", seed=seed, load=0.9), policy).served for seed in (1, 1, 2)
    ]
    assert first == again
    assert first != other


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (
            "raises",
            r"policy 'tests\.sim\.strangers:raises' failed with ZeroDivisionError: .*strangers\.py, line \d+\)$",
        ),
        ("lost", r"policy 'tests\.sim\.strangers:lost': it chose instance 'nowhere', and mixed has none of that id$"),
        ("nothing", r"policy 'tests\.sim\.strangers:nothing' failed with AttributeError: .*hears_caches"),
    ],
)
def test_a_faulty_policy_from_outside_is_told_in_a_line(made: str, message: str) -> None:
    """What went wrong, and where in its file."""
    with pytest.raises(ConfigError, match=message):
        run(setup("rag?requests=10"), f"tests.sim.strangers:{made}")
