"""`extproc simulate` over suites and seeds: medians, results on file, and how extproc stands."""

from __future__ import annotations

import json
import re
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from extproc.cli import main
from extproc.sim import suite
from extproc.sim.policies.catalog import refusing

SMALL = ("simulate", "--traffic", "rag", "--requests", "40", "--jobs", "1", "--policy", "extproc,random")
QUICK = ("simulate", "--quick", "--jobs", "1", "--policy", "extproc,random,preble,oracle")
Out = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A suite of the workloads that are built in, with a few requests."""
    monkeypatch.delenv("EXTPROC_TRACES", raising=False)
    monkeypatch.setattr(suite, "QUICK_REQUESTS", 12)


def simulated(capsys: Out, *arguments: str) -> str:
    """What a run that goes well prints."""
    assert main(arguments) == 0
    return capsys.readouterr().out


def _status(arguments: tuple[str, ...]) -> object:
    """Exit status, argparse's own as well."""
    try:
        return main(arguments)
    except SystemExit as error:
        return error.code


def refused(capsys: Out, *arguments: str) -> str:
    """The one line of an error."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("extproc.sim.jobs.work", None)  # before any work is done
        assert _status(arguments) == 2
    return capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize(
    ("flags", "seeds"),
    [(("--seeds", "3"), [0, 1, 2]), (("--seed", "4", "--seeds", "2"), [4, 5]), (("--seeds", "7,2,7"), [7, 2])],
)
def test_seeds_are_counted_or_named(capsys: Out, flags: tuple[str, ...], seeds: list[int]) -> None:
    """Each in the JSON, and beside them their medians."""
    told = json.loads(simulated(capsys, *SMALL, "--json", *flags))
    assert [cell["seed"] for cell in told["cells"]] == seeds
    (middle,) = told["medians"]
    assert middle["seeds"] == seeds
    for policy, figures in middle["policies"].items():
        each = [cell["policies"][policy]["ttft_mean_s"] for cell in told["cells"]]
        assert figures["ttft_mean_s"] == median(each)
        assert len(set(each)) == len(seeds)


def test_a_table_of_several_seeds_shows_their_medians(capsys: Out) -> None:
    """One table, not one for each."""
    text = simulated(capsys, *SMALL, "--seeds", "3")
    assert text.splitlines()[0].endswith("1 router replica, medians of seeds 0, 1, 2")
    assert text.count("policy ") == 1


@pytest.mark.parametrize("seeds", ["0", "-1", "x", ",", "1,x", "1,-2"])
def test_seeds_that_make_no_sense_are_refused(capsys: Out, seeds: str) -> None:
    """By argparse, with the flag's name."""
    assert "--seeds" in refused(capsys, *SMALL, f"--seeds={seeds}")


def test_named_seeds_need_no_first_one(capsys: Out) -> None:
    """Which of both would count?"""
    assert "leave --seed away" in refused(capsys, *SMALL, "--seed", "3", "--seeds", "1,2")


def test_a_run_goes_on_from_its_file(capsys: Out, tmp_path: Path) -> None:
    """The same to the byte; what was on file is not run again."""
    path = tmp_path / "results.jsonl"
    whole = simulated(capsys, *SMALL, "--json", "--seeds", "3")
    simulated(capsys, *SMALL, "--json", "--resume", str(path))
    assert len(path.read_text().splitlines()) == 2
    assert simulated(capsys, *SMALL, "--json", "--seeds", "3", "--resume", str(path)) == whole
    kept = path.read_bytes()
    assert len(kept.splitlines()) == 6
    assert simulated(capsys, *SMALL, "--json", "--seeds", "3", "--resume", str(path)) == whole
    assert path.read_bytes() == kept


def test_a_page_of_results_on_file_shows_their_figures(capsys: Out, tmp_path: Path) -> None:
    """And no curves, which are not kept."""
    pytest.importorskip("matplotlib")
    page = tmp_path / "page.html"
    simulated(capsys, *SMALL, "--resume", str(tmp_path / "results.jsonl"), "--html", str(page))
    assert "1 set of conditions" in page.read_text()
    assert "Time to the first token" not in page.read_text()


def names(told: dict[str, Any]) -> list[str]:
    """Of the bounds in a JSON."""
    return [bound["name"] for bound in told["standing"]["bounds"]]


@pytest.mark.long
def test_a_suite_tells_how_extproc_stands_and_a_file_of_it_tells_the_same(capsys: Out, tmp_path: Path) -> None:
    """In the JSON, in the terminal, as Markdown."""
    path, quick = tmp_path / "suite.json", (*QUICK, "--seeds", "2", "--resume", str(tmp_path / "results.jsonl"))
    path.write_text(simulated(capsys, *quick, "--json"))
    told = json.loads(path.read_text())
    assert {"goodput", "ttft_p99_s", "oracle_e2e", "mixed_unaware_goodput"} < set(names(told))
    assert json.loads(simulated(capsys, "simulate", "--standing", str(path), "--json")) == told
    text = simulated(capsys, "simulate", "--standing", str(path))
    assert text.startswith("extproc against the best rival of each of 4 cells, medians of seeds 0, 1\n")
    assert simulated(capsys, *quick).endswith("\n\n" + text)
    page = simulated(capsys, "simulate", "--standing", str(path), "--markdown")
    assert page == simulated(capsys, *quick, "--markdown")
    assert page.startswith("## How extproc stands\n")
    assert page.count("## All policies\n") == 1


@pytest.mark.long
def test_with_admission_ours_stands_beside_those_that_refuse_as_well(capsys: Out, tmp_path: Path) -> None:
    """Without it beside the others alone; each in a part of its own."""
    command = ("simulate", "--quick", "--jobs", "1", "--policy", "extproc,random,refusing", "--json")
    told = json.loads(simulated(capsys, *command))
    assert set(told["cells"][0]["policies"]) == {"extproc", "random", *refusing()}
    for key, ours, rivals in (
        ("standing", "extproc", ["random"]),
        ("standing_admission", "extproc_admission", ["random", *refusing()[1:]]),
        ("standing_admission_unrefusing", "extproc_admission", ["random"]),
    ):
        goods = [{name: row["goodput"] for name, row in cell["policies"].items()} for cell in told["cells"]]
        ratios = [good[ours] / max(good[name] for name in rivals) for good in goods]
        assert told[key]["bounds"][0]["median"] == pytest.approx(median(ratios), rel=1e-4)
    path = tmp_path / "suite.json"
    path.write_text(json.dumps(told))
    text = simulated(capsys, "simulate", "--standing", str(path))
    assert [part.split(" of each of ")[0] for part in text.split("\n\n") if "against the best rival" in part] == [
        "extproc against the best rival that refuses nothing",
        "extproc_admission against the best rival",
        "extproc_admission against the best rival that refuses nothing",
    ]
    page = simulated(capsys, "simulate", "--standing", str(path), "--markdown")
    assert re.findall("^## .*", page, re.MULTILINE) == [
        "## How extproc stands beside each rival that refuses nothing",
        "## How extproc_admission stands",
        "## How extproc_admission stands beside each rival that refuses nothing",
        "## All policies",
    ]
    for cell in told["cells"]:
        del cell["policies"]["extproc"]
    path.write_text(json.dumps({"cells": told["cells"]}))
    assert set(json.loads(simulated(capsys, "simulate", "--standing", str(path), "--json"))) == {
        "cells",
        "standing_admission",
        "standing_admission_unrefusing",
    }


def test_one_workload_tells_no_standing(capsys: Out) -> None:
    """It was not made to judge by."""
    assert set(json.loads(simulated(capsys, *SMALL, "--json"))) == {"cells"}


@pytest.mark.parametrize("content", ["", "{}", "[1]", '{"cells": [{"trace": 1}]}', '{"cells": [{}]}'])
def test_a_file_that_holds_no_suite_is_refused(capsys: Out, tmp_path: Path, content: str) -> None:
    """In a line with its name."""
    path = tmp_path / "other.json"
    path.write_text(content)
    assert refused(capsys, "simulate", "--standing", str(path)).startswith(f"extproc simulate: {path}: not the JSON")
    assert "cannot read" in refused(capsys, "simulate", "--standing", str(tmp_path / "nowhere"))


def test_there_must_be_somebody_to_stand_against(capsys: Out, tmp_path: Path) -> None:
    """And a suite to stand in."""
    path = tmp_path / "alone.json"
    path.write_text(simulated(capsys, *SMALL[:-1], "extproc", "--json"))
    assert "nothing to hold extproc against" in refused(capsys, "simulate", "--standing", str(path))
    assert "--suite" in refused(capsys, *SMALL, "--markdown")
