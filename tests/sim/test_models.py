"""Names that stand for models, in the simulator: the choice, what rivals choose, and the figures on it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from extproc.cli import main
from extproc.sim.capacity import capacity_rps
from extproc.sim.fleet.builtin import two_models
from extproc.sim.fleet.replay import replay
from extproc.sim.fleet.spec import Conditions
from extproc.sim.policies.catalog import comparable, load
from extproc.sim.report.models import changes, quality_met, served_model, tokens_money
from extproc.sim.report.run import Fate, Run
from extproc.sim.traffic.arrival import Traffic
from extproc.sim.traffic.needs import needs

_SMALL, _BIG = "llama-3.1-8b", "llama-3.1-70b"


def _run(policy: str, traffic: Traffic) -> Run:
    return replay(traffic, two_models(), Conditions(), policy, load(policy))


def _models(run: Run) -> dict[str, set[float | None]]:
    """For each model what the requests that it served needed."""
    found: dict[str, set[float | None]] = {}
    for one in run.served:
        found.setdefault(served_model(one, run.fleet), set()).add(one.arrival.quality)
    return found


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ("extproc", {_SMALL: {None}, _BIG: {2.0}}),
        ("model_first", {_SMALL: {None}, _BIG: {2.0}}),
        ("always_best", {_BIG: {None, 2.0}}),
        ("always_cheapest", {_SMALL: {None, 2.0}}),
    ],
)
def test_with_room_for_all_each_policy_chooses_as_its_rule_says(
    policy: str, expected: dict[str, set[float | None]]
) -> None:
    """On an idle fleet queues say nothing: price and quality decide."""
    run = _run(policy, needs(requests=60, requests_s=1.0))
    assert {one.fate for one in run.served} == {Fate.SERVED}
    assert _models(run) == expected


def test_ours_gives_way_where_the_better_model_has_no_room_left() -> None:
    """All ask for quality at more than the better model can do: some get the other, and more are served in time."""
    traffic = needs(requests=500, requests_s=90.0, hard=1.0)
    ours, first = _run("extproc", traffic), _run("model_first", traffic)
    assert _models(first).keys() == {_BIG}
    assert _models(ours).keys() == {_SMALL, _BIG}
    assert quality_met(first) == 1.0
    assert 0.3 < (quality_met(ours) or 0.0) < 1.0

    def mean_s(run: Run) -> float:
        return sum(one.duration_s or 0.0 for one in run.served) / len(run.served)

    assert mean_s(ours) < mean_s(first)


def test_figures_are_those_of_the_models_that_served() -> None:
    """By hand: what all tokens cost on the one model or the other, and that nothing changed."""
    traffic = needs(requests=40, requests_s=1.0, hard=0.5)
    run = _run("always_cheapest", traffic)
    prompts, answers = (
        sum(getattr(each, name) for each in traffic.arrivals) for name in ("prompt_tokens", "output_tokens")
    )
    assert tokens_money(run) == pytest.approx((0.1 * prompts + 0.2 * answers) / 1e6)
    assert quality_met(run) == 0.0
    assert changes(run.served, run.fleet) == 0.0
    flipped = [
        replace(one, instance_id="big-1" if number % 2 else "small-1") if one.arrival.session else one
        for number, one in enumerate(run.served)
    ]
    assert (changes(flipped, run.fleet) or 0.0) > 0.0


def test_the_capacity_of_a_name_is_that_of_all_its_models() -> None:
    """More than the small instances alone have."""
    traffic, fleet = needs(requests=300), two_models()
    alone = replace(traffic, arrivals=tuple(replace(each, model=_SMALL) for each in traffic.arrivals))
    assert capacity_rps(traffic, fleet) > 1.2 * capacity_rps(alone, fleet)


def test_policies_of_models_are_in_no_suite() -> None:
    """They are for fleets whose operator lets names stand for models."""
    assert not {"model_first", "always_best", "always_cheapest"} & set(comparable())


def test_the_command_takes_a_config_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What it says of models replaces what the fleet has; a wrong one is a line on stderr and status 2."""
    file = tmp_path / "extproc.yaml"
    file.write_text(
        "models: {llama-3.1-70b: {input_price: 1, output_price: 1}}\n"
        "virtual_models: {auto: {models: [llama-3.1-70b]}}\n"
    )
    command = ["simulate", "--fleet", "two_models", "--traffic", "needs?requests=40", "--rate", "2", "--jobs", "1"]
    assert main([*command, "--policy", "extproc", "--config", str(file)]) == 0
    assert " 100.0%* " in capsys.readouterr().out
    file.write_text("virtual_models: {auto: {}}")
    assert main([*command, "--config", str(file)]) == 2
    assert "needs models, or a split" in capsys.readouterr().err
