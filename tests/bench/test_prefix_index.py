"""The measurement of the prefix index measures full indexes, and memory stays under what the issue allows."""

from __future__ import annotations

import json

import pytest

from extproc.bench.prefix_index import prefix_costs
from extproc.cli import main


@pytest.mark.long
def test_an_entry_takes_less_than_forty_bytes_in_every_shape() -> None:
    """Resident memory of child processes: 153,600 entries are enough for the spare room of small tables not to show."""
    costs = prefix_costs(instances=16, entries=153_600, rounds=3)
    assert [memory.entries for memory in costs.memory] == [153_600] * 3
    assert all(0 < memory.bytes_per_entry < 40 for memory in costs.memory)
    assert all(0 < step.p50_s <= step.p99_s <= step.max_s for step in costs.steps)


def test_the_command_reports_as_json_and_as_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    """Both forms hold every step."""
    command = ["bench", "prefixes", "--entries", "20000", "--rounds", "2", "--instances", "4"]
    assert main([*command, "--json"]) == 0
    steps = [step["name"] for step in json.loads(capsys.readouterr().out)["steps"]]
    assert main(command) == 0
    table = capsys.readouterr().out
    assert len(steps) == 11
    assert all(step in table for step in steps)
