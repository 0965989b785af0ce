"""Speeds learned in the loop, where they decide where requests go and so what is learned next."""

from __future__ import annotations

import statistics
from dataclasses import replace

import pytest

from extproc.core.flight.load_meter import MetLoad
from extproc.core.speeds.profile import profile_for
from extproc.core.speeds.speed import Speed
from extproc.core.values.decision import Decision
from extproc.core.values.instance import Instance
from extproc.core.values.outcome import Outcome
from extproc.sim.fleet.builtin import STEP_OVERHEAD_S, mixed
from extproc.sim.fleet.spec import Conditions, Event, FleetSpec, Happening
from extproc.sim.policies.ours import Ours
from extproc.sim.policies.policy import Ask, Setting
from extproc.sim.report.run import Run
from extproc.sim.setup import Setup, run

MADE: list[Ours] = []


def learning(setting: Setting) -> Ours:
    MADE.append(Ours(setting))
    return MADE[-1]


def informed(setting: Setting) -> Ours:
    """Knows the truth from the start, and learns nothing."""
    made = learning(setting)
    speeds = made.router.beliefs.speeds

    def learn(outcome: Outcome, instance: Instance, met: MetLoad | None, now: float) -> None:
        """Nothing."""

    def speed(model: str, instance: Instance) -> Speed:
        prior = profile_for(model, instance.hardware, instance.tensor_parallel)
        return Speed(prior, prefill_overhead_s=STEP_OVERHEAD_S, decode_overhead_s=STEP_OVERHEAD_S)

    speeds.learn = learn  # type: ignore[method-assign]
    speeds.speed = speed  # type: ignore[method-assign]
    return made


class Watched(Ours):
    """Notes over and over how long a prompt is believed to take, as a share of the truth."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        MADE.append(self)
        self.engines = setting.engines
        self.ratios: list[float] = []
        self.decisions = 0

    def decide(self, ask: Ask, now: float) -> Decision:
        self.decisions += 1
        due = self.decisions % 20 == 0 and now > 10.0
        for spec in [engine.spec for engine in self.engines.values()] if due else ():
            member = self.router.fleet.get(spec.id)
            assert member is not None
            believed_s = self.router.beliefs.speed(ask.arrival.model, member.instance).prefill_s(2000, 0)
            self.ratios.append(believed_s / (spec.profile().prefill_s(2000, 0) + STEP_OVERHEAD_S))
        return super().decide(ask, now)


def simulated(policy: str, traffic: str, load: float, fleet: FleetSpec, seed: int = 0) -> tuple[Run, Ours]:
    MADE.clear()
    setup = Setup(trace="t", traffic=traffic, fleet=fleet, conditions=Conditions(seed=seed), load=load)
    return run(setup, f"tests.sim.test_learned_speeds:{policy}"), MADE[0]


def mean_duration_s(made: Run) -> float:
    return statistics.fmean(served.duration_s for served in made.served if served.duration_s is not None)


@pytest.mark.long
@pytest.mark.parametrize("load", [0.85, 1.2])
def test_what_is_learned_is_as_good_as_the_truth_also_under_overload(load: float) -> None:
    """On a fleet whose engines add to each step what the table does not know of; the start counts."""
    ratios = []
    for seed in range(4):  # single runs differ by 5 %
        runs = [
            simulated(policy, "day?requests=400&seed=0", load, mixed(), seed)[0] for policy in ("learning", "informed")
        ]
        ratios.append(mean_duration_s(runs[0]) / mean_duration_s(runs[1]))
    assert statistics.fmean(ratios) < 1.03


@pytest.mark.parametrize("load", [0.85, 1.2])
def test_the_engines_overhead_is_told_from_slowness(load: float) -> None:
    """Kinds that did some work are predicted well: the truth is the table and 4 ms a step."""
    _, ours = simulated("learning", "chat?requests=1200", load, mixed())
    checked = 0
    for kind in ours.router.beliefs.speeds.kinds().values():
        prefill, decode = kind.steps
        if decode.samples < 100:
            continue
        checked += 1
        for batch in ((8, 8e3), (24, 40e3)):
            table_s = kind.profile.decode_step_s(*batch)
            assert decode.expected_s(table_s) == pytest.approx(table_s + STEP_OVERHEAD_S, rel=0.1)
        table_s = kind.profile.prefill_s(1500, 0)
        assert prefill.expected_s(table_s) == pytest.approx(table_s + STEP_OVERHEAD_S, rel=0.15)
    assert checked >= 2


def test_prompts_computed_beside_others_pass_for_no_slowness() -> None:
    """Long prompts and answers of all lengths: many outcomes come before those of prompts that had been in the way.

    What is believed is looked at all the while, not at the end only: slowness that is believed in keeps requests away.
    """
    MADE.clear()
    setup = Setup(trace="t", traffic="rag?requests=1500", fleet=mixed(), conditions=Conditions(seed=0), load=0.85)
    run(setup, f"{__name__}:Watched")
    (watched,) = [made for made in MADE if isinstance(made, Watched)]
    assert len(watched.ratios) > 200
    assert statistics.median(watched.ratios) == pytest.approx(1.0, abs=0.06)
    assert statistics.quantiles(watched.ratios, n=50)[-1] < 1.15
    assert min(watched.ratios) > 0.85


def test_a_node_that_becomes_slow_is_used_less_and_its_kind_is_not() -> None:
    fleet = mixed()
    slow = Event(at_s=20.0, what=Happening.SLOW, instance="h100-1", value=3.0)
    made, ours = simulated("learning", "chat?requests=2000", 0.85, replace(fleet, events=(slow,)))
    (kind,) = [kind for name, kind in ours.router.beliefs.speeds.kinds().items() if "h100" in name]
    factors = {key.partition("@")[0]: factors.log(1) for key, factors in kind.factors.items()}
    assert factors["h100-1"] > 0.7  # e**0.7 is 2
    assert all(abs(log) < 0.1 for name, log in factors.items() if name != "h100-1")
    late = [served for served in made.served if served.arrived_s > 35.0]
    shares = {name: sum(served.instance_id == name for served in late) for name in factors}
    assert shares["h100-1"] < 0.6 * statistics.median(shares.values())


def test_replicas_that_share_the_traffic_share_what_they_learn_from_it() -> None:
    """Each believes about the same of an instance, and is about right, whichever of its requests went through it."""
    MADE.clear()
    fleet = mixed()
    conditions = Conditions(seed=0, replicas=4)
    run(
        Setup(trace="t", traffic="chat?requests=1500", fleet=fleet, conditions=conditions, load=0.85),
        f"{__name__}:learning",
    )
    errors = []
    for spec in fleet.instances:
        truth_s = spec.profile().decode_step_s(8, 8e3) + STEP_OVERHEAD_S
        believed_s = []
        for ours in MADE:
            member = ours.router.fleet.get(spec.id)
            assert member is not None
            (model,) = {name.partition("/")[0] for name in ours.router.beliefs.speeds.kinds()}
            believed_s.append(ours.router.beliefs.speed(model, member.instance).decode_step_s(8, 8e3))
        assert max(believed_s) < 1.08 * min(believed_s)
        errors += [abs(each_s / truth_s - 1.0) for each_s in believed_s]
    assert len(errors) == 4 * len(fleet.instances)
    assert statistics.median(errors) < 0.06
