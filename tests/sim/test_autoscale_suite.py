"""The scenarios of the suite `autoscale`, and the command that runs them."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from extproc import cli
from extproc.core.snapshot import Policy
from extproc.core.values.instance import Role
from extproc.sim import autoscale_suite as suite
from extproc.sim.autoscale_suite import OURS, Kind, autoscale
from extproc.sim.fleet.checks import _instance_fault
from extproc.sim.scaling.catalog import CATALOG
from extproc.sim.setup import workload


@pytest.fixture(scope="module")
def scenarios():
    """All of them, without a trace."""
    return list(autoscale({}, 0))


def test_all_but_the_autoscaler_is_the_same_for_all(scenarios):
    """Requests, fleet, grace and what is judged; only least and period are the operator's for a workload."""
    for place in {(one.setup.trace, one.start_s) for one in scenarios}:
        members = [one.setup for one in scenarios if (one.setup.trace, one.start_s) == place]
        assert len({each.traffic for each in members}) == 1
        assert len({repr(each.fleet) for each in members}) == 1
        assert len({(each.autoscaling.least, each.autoscaling.drain_s, each.window_s) for each in members}) == 1
        assert Counter(each.autoscaling.scaler for each in members).most_common(1)[0][1] == 1


def test_every_rival_is_run_with_several_targets_on_every_trace(scenarios):
    """And ours with several settings: each has a line of its own. On large days those that come near."""
    rivals = set(CATALOG) - {"extproc", "fixed", "clairvoyant"}
    near = {"keda_requests", "aibrix_apa", "aibrix_kpa"}
    for place in {(one.setup.trace, one.start_s) for one in scenarios if one.kind is Kind.TRACE}:
        names = [one.scaler for one in scenarios if (one.setup.trace, one.start_s) == place]
        told = Counter(name.partition("?")[0] for name in names)
        assert set(told) == (near if place[0] == "large days" else rivals) | {"extproc"}
        assert all(3 <= count <= 5 for count in told.values())


def test_starts_take_from_one_to_five_minutes(scenarios):
    """Of each instance, those that are there at the start included."""
    for one in scenarios:
        assert {spec.start_s for spec in one.setup.fleet.instances} == {one.start_s}
    assert {one.start_s for one in scenarios if one.kind is Kind.TRACE} == {60.0, 180.0, 300.0}


def test_every_fleet_can_be_simulated_and_has_prices(scenarios):
    """Whatever its hardware."""
    fleets = {one.setup.fleet.name: one.setup.fleet for one in scenarios}
    assert set(fleets) == {"l40s", "h100_sxm", "l40s-h100_sxm"}
    for fleet in fleets.values():
        assert not any(map(_instance_fault, fleet.instances))
        assert all(spec.price_per_hour for spec in fleet.instances)


def test_a_router_that_knows_hears_of_each_instance_before_it_takes_it_for_silent(tmp_path: Path):
    """Else it asks those alone that were read a moment ago."""
    found = list(autoscale({"mooncake-conversation": tmp_path / "there"}, 0))
    knowing = [one for one in found if one.router == "extproc"]
    assert {one.kind for one in knowing} == {Kind.KINDS, Kind.HALVES}
    assert all(one.setup.conditions.state_period_s <= Policy().stale_after_s / 2 for one in knowing)


def test_recordings_are_run_if_they_are_there(tmp_path: Path):
    """At their own pace, and without a period to learn from."""
    names = {"azure-conversation", "mooncake-conversation"}
    found = list(autoscale({name: tmp_path / name for name in names}, 0))
    halves = {spec.role for one in found if one.kind is Kind.HALVES for spec in one.setup.fleet.instances}
    assert halves == {Role.PREFILL, Role.DECODE}
    recorded = [one for one in found if one.setup.trace in names]
    assert {one.setup.trace for one in recorded} == names
    assert {one.setup.rate_rps for one in recorded} == {None}
    assert {one.setup.autoscaling.period_s for one in recorded} == {86_400.0}


def test_nights_begin_with_nobody_and_may_have_nobody(scenarios):
    """Half of each day."""
    nights = [one.setup for one in scenarios if one.kind is Kind.NIGHTS]
    assert {each.autoscaling.least for each in nights} == {0}
    arrivals = workload(nights[0]).arrivals
    hours = {int(arrival.at_s // 1800) % 4 for arrival in arrivals}
    assert hours == {1, 2}


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """The quick suite with a day of a few minutes."""
    monkeypatch.delenv("EXTPROC_TRACES", raising=False)
    monkeypatch.setattr(suite, "JUDGED_FROM_S", 60.0)
    monkeypatch.setattr(suite, "DAY_REQUESTS", 120)
    day = f"diurnal?requests={suite.DAYS * 120}&requests_s=0.4&days={suite.DAYS}"
    monkeypatch.setattr(suite, "_DAY", day)


QUICK = ("simulate", "--suite", "autoscale", "--quick", "--jobs", "1")


def test_the_command_tells_what_each_autoscaler_cost_and_let_happen(capsys, tiny):
    """One line each, in JSON as well; ours first."""
    assert cli.main([*QUICK, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    scalers = [one["scaler"] for one in told["outcomes"]]
    assert scalers[0] == OURS[0]
    assert len(scalers) == len(CATALOG) - 2  # all but `fixed` and `clairvoyant`
    for one in told["outcomes"]:
        assert 0.0 < one["gpu_hours"] < 16 * 0.2
        assert 0.0 <= one["good"] <= 1.0
        assert one["instances_peak"] <= 16
    assert [each["scaler"] for each in told["standings"]] == [OURS[0]]


def test_results_are_kept_in_a_file_and_drawn(capsys, tiny, tmp_path: Path, monkeypatch):
    """A second run makes nothing anew, and shows the same."""
    pytest.importorskip("matplotlib")
    kept, drawn = tmp_path / "kept.jsonl", tmp_path / "plot.svg"
    assert cli.main([*QUICK, "--resume", str(kept), "--markdown", "--plots", str(drawn)]) == 0
    first = capsys.readouterr().out
    assert "| hpa_gpu?target=" in first
    assert drawn.read_text().count("<svg") == 1
    monkeypatch.setattr("extproc.sim.jobs.work", None)
    assert cli.main([*QUICK, "--resume", str(kept), "--markdown"]) == 0
    assert capsys.readouterr().out == first


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        (("--html", "x.html"), "makes no page"),
        (("--policy", "extproc,random"), "one router"),
        (("--plots", "/nowhere/x.svg"), "cannot write"),
        (("--fleet", "uniform"), "leave --fleet away"),
        (("--workloads", "days,weeks"), "no workload here is named 'weeks': days"),
        (("--autoscalers", "extproc,hpa"), "no autoscaler is named 'hpa'"),
        (("--autoscalers", "fixed?counts=3"), "counts"),
    ],
)
def test_what_makes_no_sense_is_refused(capsys, tiny, flags: tuple[str, ...], why: str):
    """Before any work is done."""
    assert cli.main([*QUICK, *flags]) == 2
    assert why in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "why"),
    [(("--plots", "x.svg"), "--html"), (("--starts", "60"), "--suite autoscale"), (("--workloads", "days"), "--suite")],
)
def test_some_flags_are_of_this_suite_alone(capsys, flags: tuple[str, ...], why: str):
    """Others have pages, and are run as a whole."""
    assert cli.main(["simulate", "--quick", *flags]) == 2
    assert why in capsys.readouterr().err


def test_a_part_of_the_suite_can_be_named(capsys, tiny):
    """Workloads, times to start and autoscalers: the product of all that is named, and nothing else."""
    part = ("--workloads", "days", "--starts", "30,90", "--autoscalers", "fixed?count=2,extproc?spare=1")
    assert cli.main([*QUICK, *part, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)["outcomes"]
    assert [(one["trace"], one["start_s"], one["scaler"]) for one in told] == [
        ("days", start_s, scaler) for start_s in (30.0, 90.0) for scaler in ("fixed?count=2", "extproc?spare=1")
    ]
    assert all(one["instances_mean"] == 2.0 for one in told if one["scaler"] == "fixed?count=2")


def test_two_kinds_of_hardware_may_each_be_empty_and_share_requests_by_what_they_can(scenarios):
    """Two pools that must each have an instance could never stand in for each other."""
    kinds = [one for one in scenarios if one.kind is Kind.KINDS]
    assert {one.setup.autoscaling.least for one in kinds} == {0}
    assert {one.router for one in kinds} == {"extproc"}
    assert {one.router for one in scenarios if one.kind is not Kind.KINDS} == {"least_request"}
