"""`extproc simulate` as a new user meets it: tables, JSON, a page, policies of one's own, errors in one line."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from extproc.cli import main
from extproc.sim import suite
from extproc.sim.policies.catalog import comparable, names

DOCS = Path(__file__).parents[2] / "docs" / "simulate.md"
SMALL = ("simulate", "--traffic", "rag", "--requests", "60", "--jobs", "1")
TWO = (*SMALL, "--policy", "extproc,random")
CELL = {"trace", "fleet", "load", "state_delay_s", "replicas", "seed", "policies"}
FIGURES = {
    *("ttft_mean_s", "ttft_p50_s", "ttft_p99_s", "tpot_p99_s", "e2e_mean_s", "goodput", "cached_token_share"),
    *("oscillation", "preemptions", "cost_per_1k"),
}
Out = pytest.CaptureFixture[str]


def simulated(capsys: Out, *arguments: str) -> str:
    """What a run that goes well prints; it prints nothing to stderr."""
    assert main(arguments) == 0
    out, err = capsys.readouterr()
    assert not err
    return out


def refused(capsys: Out, *arguments: str) -> str:
    """The one line of an error that the person can mend."""
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert not out
    assert err.startswith("extproc simulate: ")
    assert err.count("\n") == 1
    return err


def cells(text: str) -> list[dict[str, Any]]:
    made: list[dict[str, Any]] = json.loads(text)["cells"]
    return made


def test_json_has_the_shape_that_others_rely_on(capsys: Out) -> None:
    """Exactly these keys of a cell, at least these figures of a policy, and only JSON."""
    made = cells(simulated(capsys, *TWO, "--json", "--state-delay", "2", "--replicas", "4", "--seed", "7"))
    assert [set(cell) for cell in made] == [CELL]
    known = {key: value for key, value in made[0].items() if key != "policies"}
    assert known == {
        "trace": "rag",
        "fleet": "mixed",
        "load": 0.85,
        "state_delay_s": 2.0,
        "replicas": 4,
        "seed": 7,
    }
    assert list(made[0]["policies"]) == ["extproc", "random"]
    assert all(set(figures) >= FIGURES for figures in made[0]["policies"].values())


def test_the_table_has_a_line_for_each_policy(capsys: Out) -> None:
    """Ours first, the oracle last, within 120 columns."""
    lines = simulated(capsys, *SMALL, "--policy", "oracle,random", "--policy", "extproc").splitlines()
    assert lines[0].startswith("rag on mixed, load 85%")
    assert [line.split()[line.startswith(">")] for line in lines[2:5]] == ["extproc", "random", "oracle"]
    assert max(map(len, lines)) <= 120


def test_without_flags_there_is_something_to_see(capsys: Out, monkeypatch: pytest.MonkeyPatch) -> None:
    """A made-up day near the fleet's capacity, with the usual rules."""
    made = cells(simulated(capsys, "simulate", "--json", "--jobs", "1", "--requests", "40"))
    assert (made[0]["trace"], made[0]["load"]) == ("day", 0.85)
    assert {"extproc", "oracle", "round_robin"} < set(made[0]["policies"])


@pytest.mark.parametrize(
    ("flags", "load"),
    [
        ((), 0.85),
        (("--load", "0.5"), 0.5),
        (("--rate", "3"), None),
        (("--traffic", "chat?requests_s=3"), None),
        (("--traffic", "60% chat + 40% rag"), None),
    ],
)
def test_a_load_is_assumed_only_where_there_is_no_pace(capsys: Out, flags: tuple[str, ...], load: float | None) -> None:
    """Of made-up workloads that say none."""
    made = cells(simulated(capsys, *SMALL, "--policy", "random", "--json", *flags))
    assert made[0]["load"] == load


def test_the_same_command_prints_the_same(capsys: Out) -> None:
    """To the byte, on one process or two; with another seed something else."""
    several = (*SMALL, "--policy", "extproc,random,prequal", "--json", "--seeds", "2", "--replicas", "2")
    first = simulated(capsys, *several)
    assert first == simulated(capsys, *several)
    # Apart from here, where other tests may have started threads: those do not live on in a process that is forked.
    apart = [sys.executable, "-m", "extproc", *several, "--jobs", "2"]
    assert first == subprocess.run(apart, check=True, capture_output=True, text=True, timeout=300).stdout
    assert [cell["seed"] for cell in cells(first)] == [0, 1]
    assert cells(first)[0]["policies"] != cells(first)[1]["policies"]


def test_every_policy_by_one_word(capsys: Out) -> None:
    """`all` is the whole catalog, and nothing runs twice."""
    made = cells(simulated(capsys, *SMALL[:-3], "8", "--jobs", "1", "--policy", "random,all", "--json"))
    assert sorted(made[0]["policies"]) == sorted(comparable())


def test_the_list_tells_all_policies(capsys: Out) -> None:
    """In lines or as JSON."""
    lines = simulated(capsys, "simulate", "--list").splitlines()
    assert [line.split()[0] for line in lines] == list(names())
    assert list(json.loads(simulated(capsys, "simulate", "--list", "--json"))) == list(names())


class Links(HTMLParser):
    """Whatever a page would load from elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found += [f"{tag} {name}={value}" for name, value in attrs if name in ("src", "href") and value]


def test_a_page_is_written_that_needs_nothing_else(capsys: Out, tmp_path: Path) -> None:
    """Beside the table; what it refers to lies in it."""
    file = tmp_path / "page.html"
    assert "extproc" in simulated(capsys, *TWO, "--html", str(file))
    page = file.read_text()
    links = Links()
    links.feed(page)
    assert not [link for link in links.found if "=#" not in link and "=data:" not in link]
    assert not re.search(r"@import|url\((?!['\"]?(?:data:|#))", page)
    assert "<svg" in page or "data:image" in page


def test_timing_goes_to_stderr(capsys: Out) -> None:
    """So that stdout stays JSON."""
    assert main([*TWO, "--json", "--timing"]) == 0
    out, err = capsys.readouterr()
    assert cells(out)
    assert re.fullmatch(r"extproc +\d+ requests/s \(60 in [\d.]+ s of one core\)\nrandom .*\n", err)


def test_progress_is_shown_to_people_only(capsys: Out, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a terminal one line, which ends when all is done."""

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    simulated(capsys, *TWO)
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    assert main([*TWO, "--json"]) == 0
    assert terminal.getvalue() == "\r1 of 2 runs\r2 of 2 runs\n"


@pytest.mark.long
def test_suites_run_as_one_set_of_cells(capsys: Out, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the public traces the built-in workloads; medians in the terminal where there are many cells."""
    monkeypatch.delenv("EXTPROC_TRACES", raising=False)
    monkeypatch.setattr(suite, "QUICK_REQUESTS", 10)
    monkeypatch.setattr(suite, "MADE_UP_REQUESTS", 10)
    monkeypatch.setattr(suite, "LOADS", (0.6, 0.85))
    quick = cells(simulated(capsys, "simulate", "--quick", "--json", "--policy", "random", "--jobs", "1"))
    assert len(quick) == 2
    text = simulated(capsys, "simulate", "--suite", "standard", "--policy", "random,round_robin", "--jobs", "1")
    assert text.count("medians of 12 cells") == 4


def test_a_public_trace_goes_by_its_name(capsys: Out, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where its directory is known, by flag or environment; options stand behind it as behind a path."""
    line = '{"timestamp": %d, "input_length": 600, "output_length": 9, "hash_ids": [1, 2]}\n'
    (tmp_path / "mooncake-synthetic.jsonl").write_text("".join(line % (1000 * n) for n in range(9)))
    monkeypatch.setenv("EXTPROC_TRACES", str(tmp_path))
    text = ("simulate", "--traffic", "mooncake-synthetic?requests=4", "--policy", "random", "--json", "--jobs", "1")
    made = cells(simulated(capsys, *text))
    assert (made[0]["trace"], made[0]["policies"]["random"]["requests"]) == ("mooncake-synthetic?requests=4", 4)
    monkeypatch.delenv("EXTPROC_TRACES")
    assert made == cells(simulated(capsys, *text, "--traces", str(tmp_path)))
    assert "--traces" in refused(capsys, *text)


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (("--traffic", "nonsense"), "chat"),
        (("--traffic", "rag?people=3"), "people"),
        (("--traffic", "log:/does/not/exist"), "/does/not/exist"),
        (("--fleet", "nonsense"), "uniform, mixed"),
        (("--policy", "nonsense"), "llm_d_default"),
        (("--policy", "extproc,"), "unknown policy"),
        (("--policy", "tests.sim.nowhere:make"), "cannot be loaded"),
        (("--policy", "tests.sim.strangers:raises"), "ZeroDivisionError"),
        (("--load", "0.5", "--rate", "3"), "--rate"),
        (("--fleet", "mixed", "--like", "llama-3.1-8b"), "--like is for a live fleet"),
        (("--slo", "interactive"), "interactive=2,0.05"),
        (("--html", "/does/not/exist/page.html"), "/does/not/exist/page.html"),
        (("--html", "."), "cannot write"),
    ],
)
def test_an_error_is_one_line_that_says_what_to_do(capsys: Out, flags: tuple[str, ...], told: str) -> None:
    """With exit status 2, before any work is done."""
    assert told in refused(capsys, *TWO, *flags)


@pytest.mark.parametrize("flag", ["--traffic=rag", "--requests=5", "--fleet=uniform", "--load=1", "--replicas=2"])
def test_a_suite_is_fixed(capsys: Out, flag: str) -> None:
    """What it has of its own is not silently left out."""
    assert flag.partition("=")[0] in refused(capsys, "simulate", "--quick", flag)


def test_a_suite_without_traces_in_its_directory_is_an_error(capsys: Out, tmp_path: Path) -> None:
    """Whoever names a directory wants its traces."""
    assert str(tmp_path) in refused(capsys, "simulate", "--quick", "--traces", str(tmp_path))


@pytest.mark.parametrize("flag", ["--load=0", "--requests=none", "--state-loss=2", "--replicas=0", "--suite=other"])
def test_a_value_that_makes_no_sense_names_its_flag(capsys: Out, flag: str) -> None:
    """As argparse tells it."""
    with pytest.raises(SystemExit) as caught:
        main([*SMALL, flag])
    assert caught.value.code == 2
    assert f"argument {flag.partition('=')[0]}: " in capsys.readouterr().err


def test_the_help_tells_the_default_policies(capsys: Out) -> None:
    """As they are."""
    from extproc.sim.policies.catalog import DEFAULTS

    with pytest.raises(SystemExit):
        main(["simulate", "--help"])
    assert ", ".join(DEFAULTS) in " ".join(capsys.readouterr().out.split())


def test_a_refusing_policy_is_no_failure_of_the_command(capsys: Out) -> None:
    """Its figures say it all; what is not known is null."""
    made = cells(simulated(capsys, *SMALL, "--policy", "tests.sim.strangers:refuses", "--json"))
    figures = made[0]["policies"]["tests.sim.strangers:refuses"]
    assert (figures["served"], figures["refused"], figures["goodput"], figures["ttft_mean_s"]) == (0, 60, 0.0, None)


def documented(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", DOCS.read_text(), re.DOTALL)


def test_the_policy_of_the_documentation_runs_from_the_current_directory(tmp_path: Path) -> None:
    """As somebody would try it: the file beside them, the command installed; and it beats chance."""
    (code,) = [block for block in documented("python") if "def make(" in block]
    (tmp_path / "mine.py").write_text(code)
    command = "import sys; sys.path.pop(0); from extproc.cli import main; sys.exit(main())"
    arguments = ["simulate", "--traffic", "rag", "--requests", "300", "--policy", "mine:make,random", "--json"]
    done = subprocess.run(
        [sys.executable, "-c", command, *arguments],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    figures = cells(done.stdout)[0]["policies"]
    assert figures["mine:make"]["ttft_mean_s"] < figures["random"]["ttft_mean_s"]


def test_the_log_and_the_fleet_of_the_documentation_are_taken(capsys: Out, tmp_path: Path) -> None:
    """One's own requests on one's own fleet."""
    (log,), (fleet,) = documented("json"), documented("yaml")
    (tmp_path / "log.jsonl").write_text(log)
    (tmp_path / "fleet.yaml").write_text(fleet)
    paths = ("--traffic", f"log:{tmp_path / 'log.jsonl'}", "--fleet", str(tmp_path / "fleet.yaml"))
    made = cells(simulated(capsys, "simulate", *paths, "--policy", "extproc", "--json", "--jobs", "1"))
    assert made[0]["policies"]["extproc"]["served"] == len(log.splitlines())
