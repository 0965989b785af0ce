"""What `extproc bench` does with flags that a part does not use, and what the documentation tells of its parts."""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

import pytest

from extproc.bench.overhead import run
from extproc.bench.overhead.figures import Found, Spent
from extproc.bench.overhead.plan import Cell
from extproc.cli import command_parser, main
from extproc.commands import bench_overhead
from extproc.commands.bench import _REPORTS
from extproc.commands.bench_flags import OVERHEAD, USED
from extproc.commands.config_reference import reference

COMMANDS_PAGE = Path(__file__).parents[2] / "docs/commands.md"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ("decide --instances 7", "bench decide does not use --instances"),
        ("decide --quick --workers 1", "bench decide does not use --quick, --workers"),
        ("big-body --instances 7", "bench big-body does not use --instances"),
        ("push --redis-url redis://127.0.0.1:1/0 --body-bytes 5", "bench push does not use --body-bytes"),
        ("--quick --entries 5", "bench overhead does not use --entries"),
        ("request --streams 5 --instances 8", "bench request does not use --streams"),
    ],
)
def test_a_flag_that_the_part_does_not_use_is_an_error(
    arguments: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """In one line, and nothing is measured."""
    assert main(["bench", *arguments.split()]) == 2
    assert capsys.readouterr().err.splitlines() == [f"extproc bench: {told}"]


def test_what_the_environment_says_to_all_parts_is_no_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It was not said of this part."""
    monkeypatch.setenv("EXTPROC_BENCH_WORKERS", "2")
    assert main(["bench", "request", "--rounds", "1", "--instances", "2"]) == 0
    assert "4 KiB" in capsys.readouterr().out


@pytest.mark.parametrize(("cores", "workers"), [({0}, {1}), ({0, 3}, {1, 2})])
def test_more_workers_are_measured_on_as_many_cores_as_may_be_used(
    cores: set[int], workers: set[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not on as many as the machine has."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: cores)
    made = bench_overhead._plan(command_parser("bench").parse_args([]))
    assert {cell.workers for cell in made.cells} == workers


@pytest.mark.parametrize("errors", [99, 100])
def test_a_bench_that_nobody_answered_has_failed(
    errors: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its figures are printed as well; one good answer of a hundred is something."""
    spent = Spent(100, 1.0, [0.01] * (100 - errors), {"503": errors}, [0.0], 0.1, 0.02, 1.0)
    found = Found(Cell(64, 1, 4096, 500.0), {name: [spent] for name in ("envoy_alone", "floor", "extproc")})

    async def overhead(*_: object, **__: object) -> dict[str, Any]:
        return {"cells": [found.as_json()], "streams": []}

    monkeypatch.setattr(run, "overhead", overhead)
    assert main(["bench", "--quick", "--json"]) == (errors == 100)
    told = capsys.readouterr()
    assert json.loads(told.out)["cells"][0]["extproc"]["errors"] == errors
    assert ("no request was answered well" in told.err) == (errors == 100)


def test_fewer_streams_than_none_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    """In one line, as for every other flag."""
    with pytest.raises(SystemExit) as ended:
        main(["bench", "--streams", "-1"])
    assert ended.value.code == 2
    assert capsys.readouterr().err == "extproc bench: argument --streams: must be 0 or more; see extproc bench --help\n"


def test_every_part_has_its_flags_and_every_flag_has_a_part() -> None:
    """So that a new one is not forgotten."""
    assert USED.keys() == {OVERHEAD, *_REPORTS}
    known = {
        action.dest
        for action in command_parser("bench")._actions
        if action.option_strings and not isinstance(action, argparse._HelpAction)
    }
    assert frozenset[str]().union(*USED.values()) == known - {"json", "config"}


def test_the_page_of_commands_names_every_part() -> None:
    """Whoever looks for one finds it."""
    (row,) = (line for line in COMMANDS_PAGE.read_text().splitlines() if line.startswith("| `extproc bench`"))
    assert [part for part in _REPORTS if f"`{part}`" not in row] == []


def test_no_default_in_the_reference_is_cut_out_of_a_sentence() -> None:
    """Brackets that open are closed, in every row."""
    rows = [line for line in reference().splitlines() if line.startswith("| `bench.")]
    assert rows
    assert [row for row in rows for cell in row.split("|") if cell.count("(") != cell.count(")")] == []
