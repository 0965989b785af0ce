"""Admission in the simulator: who is held goes later, who is shed, and what that is worth to the others."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from statistics import quantiles

import pytest

from extproc.core.admission.admission import Admission
from extproc.core.models.virtual import ModelPolicy, VirtualModel
from extproc.core.pricing.classes import ClassPolicy
from extproc.core.snapshot import Policy as Rules
from extproc.core.values.request import RequestClass
from extproc.sim.fleet.replay import replay
from extproc.sim.fleet.spec import Conditions, FleetSpec, InstanceSpec
from extproc.sim.policies.ours import Ours
from extproc.sim.policies.ours_admitting import OursAdmitting
from extproc.sim.policies.policy import HELD, Ask, Choice, Holding
from extproc.sim.report.run import Fate, Run, Served
from extproc.sim.report.slo import DEFAULT_SLOS
from extproc.sim.traffic.arrival import Arrival, Traffic
from tests.sim.policies.counter import setting
from tests.sim.test_replay import MODEL, Fixed

FLEET = FleetSpec(
    name="two",
    instances=tuple(
        InstanceSpec(id=name, models=(MODEL,), hardware="l40s", kv_tokens=200_000, max_num_batched_tokens=2048)
        for name in "ab"
    ),
)


class Patient(Fixed):
    """Holds every request until the second `until_s`, and sheds those of odd number."""

    until_s = 2.0

    def __init__(self, setting: object) -> None:
        super().__init__(setting)  # type: ignore[arg-type]
        self.held: list[Ask] = []
        self.asked_s: list[float] = []

    @property
    def wake_at_s(self) -> float:
        return self.until_s if self.held else float("inf")

    def choose(self, ask: Ask, now: float) -> Holding:  # type: ignore[override]
        self.held.append(ask)
        return HELD

    def let_go(self, now: float) -> Sequence[tuple[Ask, Choice | None]]:
        self.asked_s.append(now)
        if now < self.until_s:
            return ()
        held, self.held = self.held, []
        return [(ask, None if int(ask.id) % 2 else "a") for ask in held]


def some(rps: float, seconds: float, seed: int = 0, **fields: object) -> list[Arrival]:
    """Requests at random moments, each with a prompt of its own."""
    chance = random.Random(seed)
    arrivals, at_s = [], 0.0
    while (at_s := at_s + chance.expovariate(rps)) < seconds:
        arrivals.append(
            Arrival(
                at_s=at_s,
                prompt_tokens=chance.randint(200, 800),
                output_tokens=chance.randint(50, 150),
                model=MODEL,
                **fields,  # type: ignore[arg-type]
            )
        )
    return arrivals


def run(*parts: list[Arrival], admits: bool = True, replicas: int = 1, rules: Admission | None = None) -> Run:
    arrivals = tuple(sorted((each for part in parts for each in part), key=lambda each: each.at_s))
    traffic = Traffic(name="made", arrivals=arrivals, block_size_tokens=16)
    conditions = Conditions(replicas=replicas)
    if not admits:
        return replay(traffic, FLEET, conditions, "ours", Ours)
    policy = Rules(admission=rules or Admission())
    return replay(traffic, FLEET, conditions, "admitting", lambda setting: OursAdmitting(setting, policy))


def good(served: Sequence[Served]) -> int:
    """How many interactive requests kept their objective."""
    slo = DEFAULT_SLOS[RequestClass.INTERACTIVE]
    return sum(
        one.fate is Fate.SERVED
        and one.ttft_s is not None
        and one.duration_s is not None
        and slo.met(one.ttft_s, one.tpot_s, one.duration_s, 0.0)
        for one in served
    )


def of(made: Run, **fields: object) -> list[Served]:
    return [one for one in made.served if all(getattr(one.arrival, name) == fields[name] for name in fields)]


def p99_s(served: Sequence[Served]) -> float:
    return quantiles([one.ttft_s for one in served if one.ttft_s is not None], n=100)[98]


def test_a_held_request_goes_when_its_policy_says_and_its_wait_counts() -> None:
    """TTFT begins with the arrival; whom the policy sheds is refused."""
    arrivals = tuple(
        Arrival(at_s=float(number) / 2, prompt_tokens=10, output_tokens=2, model=MODEL) for number in range(3)
    )
    made: list[Patient] = []

    def factory(setting: object) -> Patient:
        made.append(Patient(setting))
        return made[-1]

    fleet = FleetSpec(name="one", instances=(InstanceSpec(id="a", models=(MODEL,)),))
    result = replay(Traffic(name="t", arrivals=arrivals, block_size_tokens=16), fleet, Conditions(), "patient", factory)
    assert [one.fate for one in result.served] == [Fate.SERVED, Fate.REFUSED, Fate.SERVED]
    assert result.served[0].ttft_s == pytest.approx(2.0, abs=0.1)
    assert result.served[2].ttft_s == pytest.approx(1.0, abs=0.1)
    assert result.served[1].instance_id is None
    assert 2.0 in made[0].asked_s
    # What no engine is to blame for is told apart, as Envoy's access log does.
    assert [ending.held_s for _, ending, _ in made[0].endings] == [2.0, 1.0]


@cache
def carried_well() -> int:
    """Of as many requests as the fleet can carry."""
    return good(run(some(27.0, 15.0), admits=False).served)


@pytest.mark.parametrize("replicas", [1, 4])
def test_under_overload_more_requests_are_served_well(replicas: int) -> None:
    """Twice as many as the fleet can carry: without admission hardly any is, with it nearly as many as it carries."""
    flood = some(60.0, 15.0)
    without, held = run(flood, admits=False, replicas=replicas), run(flood, replicas=replicas)
    carried = carried_well()
    assert all(one.fate is Fate.SERVED for one in without.served)
    assert any(one.fate is Fate.REFUSED for one in held.served)
    assert good(held.served) > 2 * good(without.served)
    assert good(held.served) > 0.85 * carried
    assert all(one.ttft_s is not None and one.ttft_s < 2.5 for one in held.served if one.fate is Fate.SERVED)


def test_what_can_be_served_well_is_not_refused() -> None:
    """Half of what the fleet can carry goes through as without admission."""
    light = some(12.0, 12.0)
    made = run(light)
    assert all(one.fate is Fate.SERVED for one in made.served)
    assert good(made.served) >= good(run(light, admits=False).served)


def test_batch_yields_to_interactive_requests() -> None:
    """Both want the whole fleet: interactive ones are served as if they were alone, nearly; batch gets the rest."""
    people = some(20.0, 12.0, 1)
    jobs = some(25.0, 12.0, 2, request_class=RequestClass.BATCH)
    alone, made = run(people), run(people, jobs)
    interactive = of(made, request_class=RequestClass.INTERACTIVE)
    batch = of(made, request_class=RequestClass.BATCH)
    assert good(interactive) > 0.9 * good(alone.served)
    assert sum(one.fate is Fate.SERVED for one in batch) > 50
    refused = [sum(one.fate is Fate.REFUSED for one in each) / len(each) for each in (interactive, batch)]
    assert refused[0] < 0.1


def test_lower_priority_yields_first() -> None:
    """Of two halves of an overload the less urgent one is refused."""
    urgent, patient = some(20.0, 12.0, 1, priority=-1), some(40.0, 12.0, 2, priority=1)
    made = run(urgent, patient)
    served = [
        sum(one.fate is Fate.SERVED for one in each) / len(each)
        for each in (of(made, priority=-1), of(made, priority=1))
    ]
    assert served[0] > 0.95
    assert served[1] < 0.7


QUIET = some(8.0, 20.0, 1, tenant="quiet")
FLOOD = some(60.0, 20.0, 2, tenant="flood")


@cache
def unfair_p99_s() -> float:
    """Of the quiet tenant, without admission."""
    return p99_s(of(run(QUIET, FLOOD, admits=False), tenant="quiet"))


@pytest.mark.parametrize("replicas", [1, 4])
def test_a_flood_of_one_tenant_does_not_delay_another(replicas: int) -> None:
    """The quiet one's p99 TTFT stays within a fifth, or a step of prompts, of what it is without the flood."""
    alone, made = run(QUIET, replicas=replicas), run(QUIET, FLOOD, replicas=replicas)
    others = of(made, tenant="quiet")
    assert all(one.fate is Fate.SERVED for one in others)
    assert p99_s(others) < 1.2 * p99_s(alone.served) + 0.15
    assert unfair_p99_s() > 5 * p99_s(others)


def test_a_tenant_alone_has_the_whole_fleet() -> None:
    """Whatever it sends, it gets as much as if it had no name."""
    flood = some(60.0, 8.0)
    named = [Arrival(**{**_fields(each), "tenant": "flood"}) for each in flood]
    assert good(run(named).served) == good(run(flood).served)


def _fields(arrival: Arrival) -> dict[str, object]:
    return {name: getattr(arrival, name) for name in Arrival.__dataclass_fields__}


def test_what_the_operator_says_of_models_and_classes_counts_with_admission_too() -> None:
    """Else a name that stands for models would be that of none, and all requests for it refused."""
    models = ModelPolicy(virtual={"auto": VirtualModel(name="auto", models=(MODEL,))})
    told = replace(setting(), models=models, classes=ClassPolicy(priority_step=2.0))
    rules = OursAdmitting(told).router.policy
    assert (rules.models, rules.classes) == (told.models, told.classes)
    assert rules.admission == Admission()
