"""What the suite `overload` makes of figures: medians, shares of what is carried alone, floods against calm."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from extproc.core.values.request import RequestClass
from extproc.sim.fleet.builtin import mixed
from extproc.sim.fleet.spec import Conditions
from extproc.sim.overload import Kind, Scenario
from extproc.sim.report.figures import Figures, figures
from extproc.sim.report.overload import Outcome, as_json, markdown, misses, outcomes, text
from extproc.sim.report.run import Served
from extproc.sim.setup import Setup
from tests.sim.report.runs import answer, refused, run


def scenario(kind: Kind, name: str, load: float = 1.0, **conditions: Any) -> Scenario:
    """One of a small suite."""
    setup = Setup(trace=f"chat: {name}", traffic="chat", fleet=mixed(), conditions=Conditions(**conditions))
    return Scenario(kind=kind, workload="chat", load=load, setup=setup)


def good(count: int, **changes: Any) -> list[Served]:
    """So many requests that meet any SLO; a run lasts 100 s."""
    return [answer(0.1, 0.2, **changes) for _ in range(count)]


def of(*served: Served) -> Figures:
    """Figures of such a run."""
    return figures(run(list(served)))


def only(found: list[Outcome], name: str) -> Outcome:
    """The outcome of the scenario of that name."""
    (one,) = [one for one in found if one.scenario.setup.trace == f"chat: {name}"]
    return one


def test_interactive_goodput_is_held_against_the_best_that_the_same_policy_does_alone() -> None:
    """Four and five alone, another policy's nine do not count: 3 of 5."""
    found = outcomes(
        [
            (scenario(Kind.ALONE, "60%", 0.6), "mine", of(*good(4))),
            (scenario(Kind.ALONE, "90%", 0.9), "mine", of(*good(5), refused())),
            (scenario(Kind.ALONE, "90%", 0.9), "theirs", of(*good(9))),
            (scenario(Kind.INTERACTIVE, "200%", 2.0), "mine", of(*good(3), refused())),
        ]
    )
    assert only(found, "200%").values["of_alone"] == pytest.approx(0.6)
    assert only(found, "200%").values["refused"] == 0.25
    assert misses(found, ["mine"]) == ["mine, chat: 200% on mixed: 60.0% of what the fleet carries alone"]
    assert misses(found, ["theirs"]) == []


def test_batch_is_told_apart_and_does_not_count_as_interactive() -> None:
    """Five interactive of the five alone; of four batch requests one was refused."""
    batch = {"request_class": RequestClass.BATCH}
    found = outcomes(
        [
            (scenario(Kind.ALONE, "90%"), "mine", of(*good(5))),
            (scenario(Kind.CLASSES, "both"), "mine", of(*good(5), *good(3, **batch), refused(**batch))),
        ]
    )
    values = only(found, "both").values
    assert (values["of_alone"], values["batch_rps"], values["batch_refused"]) == (1.0, pytest.approx(0.03), 0.25)


def test_a_flood_is_held_against_the_calm_before_the_same_routers() -> None:
    """The others' p99 is 0.3 s beside the flood and 0.2 s without; with four routers there is no calm to compare."""
    calm = [answer(0.2, 0.3, tenant=tenant) for tenant in "ab"]
    wild = [answer(0.3, 0.4, tenant=tenant) for tenant in "ab"] + good(2, tenant="flood")
    found = outcomes(
        [
            (scenario(Kind.FLOOD, "calm", 0.0), "mine", of(*calm)),
            (scenario(Kind.FLOOD, "flood", 5.0), "mine", of(*wild)),
            (scenario(Kind.FLOOD, "four", 5.0, replicas=4), "mine", of(*wild)),
        ]
    )
    values = only(found, "flood").values
    assert values["of_calm"] == pytest.approx(1.5)
    assert values["flood_share"] == pytest.approx(0.5)
    assert only(found, "four").values["of_calm"] is None
    assert misses(found, ["mine"]) == [
        "mine, chat: flood on mixed: the others' p99 TTFT is 1.50 times what it is without the flood"
    ]


def test_seeds_become_medians() -> None:
    """Two, three and seven good ones in 100 s."""
    one = scenario(Kind.ALONE, "90%")
    seeds = [
        (replace(one, setup=replace(one.setup, conditions=Conditions(seed=seed))), "mine", of(*good(count)))
        for seed, count in enumerate((2, 7, 3))
    ]
    (found,) = outcomes(seeds)
    assert found.values["goodput_rps"] == pytest.approx(0.03)


def test_tables_have_a_row_for_each_scenario_and_policy() -> None:
    """In a terminal and in Markdown, priorities by name; JSON says the same in plain values."""
    urgent, usual = good(2, priority=-1), [*good(1), refused()]
    found = outcomes([(scenario(Kind.PRIORITIES, "three", 1.5), "mine", of(*urgent, *usual))])
    shown = text(found)
    assert "good -1" in shown
    assert "three" in shown
    assert shown.splitlines()[-1].split()[3:6] == ["100.0%", "50.0%", "?"]
    assert "| three | mine |" in markdown(found)
    (told,) = as_json(found)
    assert (told["fleet"], told["kind"], told["policy"], told["goodput -1"], told["goodput +0"]) == (
        "mixed",
        "priorities",
        "mine",
        1.0,
        0.5,
    )
