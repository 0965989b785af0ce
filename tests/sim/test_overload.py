"""The scenarios of the suite `overload`, and the command that runs them."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from extproc import cli
from extproc.sim import overload as suite
from extproc.sim.overload import LATER_S, SETTLED_S, SPAN_S, Kind, overload
from extproc.sim.policies.catalog import CATALOG
from extproc.sim.setup import workload
from tests.sim.traffic.workloads import written

MOONCAKE = '{"timestamp": %d, "input_length": 700, "output_length": 40, "hash_ids": [%d, %d]}'


@pytest.fixture(scope="module")
def scenarios():
    """All of them, without a trace."""
    return list(overload({}, 0))


def test_there_is_one_of_each_kind_on_each_fleet(scenarios):
    """But failures, which are for a mixed fleet; names are never the same."""
    kinds = {(one.setup.fleet.name, one.kind) for one in scenarios}
    assert {("mixed", kind) for kind in Kind} <= kinds
    assert {("uniform", kind) for kind in Kind if kind is not Kind.FAILURES} <= kinds
    names = Counter((one.setup.fleet.name, one.setup.trace) for one in scenarios)
    assert set(names.values()) == {1}


def test_every_run_lasts_as_long_and_is_judged_once_it_has_settled(scenarios):
    """Whatever its rate is; a flood once from its rush on, and once when that is over, each with its calm."""
    for one in scenarios:
        assert one.setup.requests == round(one.setup.rate_rps * SPAN_S)
        later = one.setup.trace.endswith(", later")
        assert one.setup.window_s == (LATER_S if later else SETTLED_S, SPAN_S)
    later = [one.load for one in scenarios if one.setup.trace.endswith(", later")]
    assert later == [0.0, 5.0] * 2


def test_rates_are_shares_of_what_the_fleet_can_serve(scenarios):
    """300 % is three times 100 %, and the same chat stands beside batch jobs and floods."""
    rates = {one.setup.trace: one.setup.rate_rps for one in scenarios if one.setup.fleet.name == "mixed"}
    capacity_rps = rates["chat: alone at 100%"]
    assert rates["chat: 300%"] == pytest.approx(3 * capacity_rps)
    assert rates["chat: 100% and batch 100%"] == pytest.approx(capacity_rps)
    assert rates["chat: a flood of 500% beside 40%"] == pytest.approx(0.4 * capacity_rps)


def test_half_of_the_instances_crash_when_the_fleet_has_settled(scenarios):
    """Eight of the sixteen, of every kind of hardware, and none is back before the end."""
    (one,) = [one for one in scenarios if one.kind is Kind.FAILURES]
    fleet = one.setup.fleet
    crashed = {event.instance for event in fleet.events}
    assert len(crashed) == len(fleet.instances) / 2
    assert {event.at_s for event in fleet.events} == {SETTLED_S}
    assert {spec.hardware for spec in fleet.instances if spec.id in crashed} == {s.hardware for s in fleet.instances}
    assert min(spec.start_s for spec in fleet.instances) > SPAN_S - SETTLED_S


def test_weights_are_for_the_policy_that_has_them(scenarios):
    """Nobody else runs those scenarios."""
    weighted = [one for one in scenarios if "weight" in one.setup.trace]
    assert {one.policies for one in weighted} == {(suite.WEIGHTED,)}
    assert not any(one.policies for one in scenarios if one not in weighted)
    assert suite.WEIGHTED in CATALOG


def test_a_trace_is_replayed_beside_batch_jobs_too(tmp_path):
    """As many of each as the fleet can serve of it."""
    lines = [MOONCAKE % (100 * number, number % 40, number) for number in range(4000)]
    traces = {suite.TRACE: written(tmp_path / "trace.jsonl", *lines)}
    found = [one for one in overload(traces, 0) if one.workload == suite.TRACE and one.setup.fleet.name == "mixed"]
    (both,) = [one for one in found if one.kind is Kind.CLASSES]
    (whole,) = [one for one in found if one.setup.trace.endswith("alone at 100%")]
    counts = Counter(arrival.request_class.value for arrival in workload(both.setup).arrivals)
    share = counts["interactive"] / sum(counts.values())
    assert share == pytest.approx(whole.setup.rate_rps / both.setup.rate_rps, abs=0.02)


def test_the_command_tells_what_misses_its_target(capsys, monkeypatch):
    """A suite of three short runs; without a policy of ours with admission nothing can be missed."""

    def small(traces, seed, *, quick=False):
        wanted = {"chat: alone at 90%", "chat: 200%"}
        return [one for one in overload(traces, seed, quick=True) if one.setup.trace in wanted]

    monkeypatch.setattr(suite, "overload", small)
    monkeypatch.setattr(suite, "SPAN_S", 6.0)
    monkeypatch.setattr(suite, "SETTLED_S", 3.0)
    monkeypatch.delenv("EXTPROC_TRACES", raising=False)
    assert cli.main(["simulate", "--suite", "overload", "--policy", "least_request", "--json", "--jobs", "1"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [one["scenario"] for one in told["outcomes"]] == ["chat: alone at 90%", "chat: 200%"]
    assert told["outcomes"][1]["of_alone"] > 0
    assert told["misses"] == []


def test_the_suite_has_its_own_traffic_and_makes_no_page(tmp_path: Path, capsys):
    """One line each, and exit status 2."""
    assert cli.main(["simulate", "--suite", "overload", "--traffic", "chat"]) == 2
    assert "a suite is fixed" in capsys.readouterr().err
    assert cli.main(["simulate", "--suite", "overload", "--html", str(tmp_path / "page.html")]) == 2
    assert "makes no page" in capsys.readouterr().err
