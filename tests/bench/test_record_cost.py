"""The measurement of decision records writes records of a fleet at work."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from extproc.bench import record_cost
from extproc.bench.record_cost import _IN_FLIGHT, _Scene, record_costs
from extproc.cli import main
from extproc.observe.record_reader import find


def test_one_row_a_fleet_and_share_comes_back() -> None:
    """All of them figures of something."""
    costs = list(record_costs(2, (2, 3)))
    assert [(each.instances, each.share) for each in costs] == [(2, 1.0), (2, 0.01), (3, 1.0), (3, 0.01)]
    assert all(min(each.record_bytes, each.seen_bytes, each.look_s, each.write_s) > 0 for each in costs)


def test_the_command_prints_them(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(record_cost.record_costs, "__defaults__", ((2,),))
    assert main(["bench", "records", "--rounds", "2", "--json"]) == 0
    assert [each["share"] for each in json.loads(capsys.readouterr().out)] == [1.0, 0.01]
    assert main(["bench", "records", "--rounds", "2"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 3


def test_what_it_writes_can_be_decided_again_and_as_much_is_under_way_as_is_meant_to_be(tmp_path: Path) -> None:
    scene = _Scene(3)
    scene.cost(tmp_path / "d.jsonl", 20, 1.0)
    found = find(tmp_path / "d.jsonl", "last")
    assert found is not None
    assert found.again().same
    assert sum(len(each.work.sent) for each in found.line.seen.instances) == pytest.approx(_IN_FLIGHT * 3, abs=2)
