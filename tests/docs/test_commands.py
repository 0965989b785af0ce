"""Every command in the documentation: run, or parsed by the command itself, or on a short list that says why not."""

from __future__ import annotations

import io
import json
import re
import shlex
import subprocess
import tomllib
from functools import cache
from pathlib import Path

import pytest
import yaml

from extproc.cli import COMMANDS, build_parser, main
from tests.docs.blocks import PAGES, ROOT, Command, blocks, cases, commands
from tests.docs.rules import NOBODY, SLOW, Way, arguments, bare, way

ALL = commands()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def of(*ways: Way) -> list[object]:
    return cases([command for command in ALL if way(command) in ways])


def test_every_line_of_every_page_has_a_rule() -> None:
    """A line that none knows is neither run nor known to be right: give it a rule in tests/docs/rules.py."""
    assert [f"{one.page}:{one.line}: {one.text}" for one in ALL if way(one) is None] == []


def test_what_is_run_with_patience_stands_in_the_pages() -> None:
    """So that no rule outlives its line."""
    texts = {one.text for one in ALL}
    assert [text for text in SLOW if text not in texts] == []


def test_shell_blocks_are_called_sh() -> None:
    """Another name would not be found."""
    assert [f"{one.page}:{one.line}" for one in blocks("bash", "shell", "console", "zsh")] == []


def test_commands_stand_in_fences() -> None:
    """An indented block would not be found either."""
    indented = re.compile(r"^\n {4,}(?:extproc|pytest|python3?|pip) .*$", re.M)
    outside = {page.name: re.sub(r"^( *)```.*?^\1```$", "", page.read_text(), flags=re.M | re.S) for page in PAGES}
    assert {name: found for name, text in outside.items() if (found := indented.findall(text))} == {}


def test_the_page_of_commands_has_a_row_for_each() -> None:
    """Whoever looks for what there is finds all of it."""
    page = (ROOT / "docs/commands.md").read_text()
    assert [name for name in COMMANDS if f"\n| `extproc {name}` |" not in page] == []


OURS = [one for one in ALL if bare(one).startswith("extproc ")]
RUN = [one for one in ALL if way(one) is Way.RUN]
# The first of each page every time, the others with patience: to build Envoy's configuration takes a fifth of a second.
AT_ONCE = list({one.page: one for one in reversed(RUN)}.values())


@pytest.mark.parametrize("command", cases(OURS))
def test_the_command_line_takes_it(command: Command) -> None:
    """Flags that do not exist, values of another kind and places left out are errors of argparse."""
    given = arguments(command)
    assert given[0] in COMMANDS
    assert build_parser([given[0]]).parse_args(given).run


@pytest.mark.parametrize(
    "command", [*cases(AT_ONCE), *cases([one for one in RUN if one not in AT_ONCE], pytest.mark.docs)]
)
def test_it_runs_and_ends_well(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In a directory that holds what the pages speak of; what it prints is YAML, or JSON where that is promised."""
    monkeypatch.chdir(tmp_path)
    if command.text.startswith("echo "):
        subprocess.run(["sh", "-c", command.text], check=True, timeout=10, env={"EXTPROC_ACTION": "start"})
        return
    given = arguments(command)
    (tmp_path / "extproc.yaml").write_text("own_zone: eu-1a\n")
    monkeypatch.setattr("sys.stdin", io.StringIO("sk-some-key\n"))
    assert main(given) == 0
    printed = capsys.readouterr().out
    assert printed.strip()
    if given[0] == "envoy-config":
        documents = (
            [json.loads(printed)]
            if "--json" in given
            else list(yaml.load_all(printed, getattr(yaml, "CSafeLoader", yaml.SafeLoader)))
        )
        assert all(documents)


@cache
def markers() -> set[str]:
    return {text.partition(":")[0] for text in PROJECT["tool"]["pytest"]["ini_options"]["markers"]}


@pytest.mark.docs
@pytest.mark.parametrize("command", of(Way.SLOW))
def test_it_runs_and_ends_well_with_patience(command: Command, capsys: pytest.CaptureFixture[str]) -> None:
    """What the README shows of its output is what it prints."""
    assert main(arguments(command)) == 0
    printed = capsys.readouterr().out
    assert printed.strip()
    shown = [block.text for block in blocks("") if block.page == command.page and block.line > command.line]
    if command.page == "README.md":
        assert [line.rstrip() for line in shown[0].splitlines()] == [line.rstrip() for line in printed.splitlines()]


@pytest.mark.parametrize("command", of(Way.PYTEST))
def test_what_it_has_pytest_run_is_there(command: Command) -> None:
    """Paths exist, and markers are known."""
    words = shlex.split(bare(command))
    paths = [word for word in words if word.startswith("tests/")]
    asked = [words[place + 1] for place, word in enumerate(words) if word == "-m" and words[place + 1] != "pytest"]
    assert [path for path in paths if not (ROOT / path.partition("::")[0]).exists()] == []
    assert [marker for text in asked for marker in re.findall(r"\w+", text) if marker not in {*markers(), "not"}] == []


@pytest.mark.parametrize("command", of(Way.PIP))
def test_its_extras_are_those_of_the_project(command: Command) -> None:
    """CI itself runs the README's lines, in an environment that it makes."""
    known = set(PROJECT["project"]["optional-dependencies"])
    extras = {name for found in re.findall(r"\[([\w,]+)\]", command.text) for name in found.split(",")}
    assert extras - known == set()
    assert extras or "--no-deps" in command.text


@pytest.mark.parametrize("command", of(Way.EXISTS))
def test_the_script_that_it_names_can_be_run(command: Command) -> None:
    first, *rest = bare(command).split()
    if rest[:1] == ["-m"]:
        assert (ROOT / f"{rest[1].replace('.', '/')}.py").is_file()
        return
    script = ROOT / first
    assert script.is_file()
    assert script.stat().st_mode & 0o111


@pytest.mark.parametrize("command", of(Way.NOBODY))
def test_files_of_ours_that_a_foreign_command_names_are_there(command: Command) -> None:
    """The rest is not ours to check: the list says why."""
    assert next(reason for start, reason in NOBODY.items() if bare(command).startswith(start))
    named = [word for word in shlex.split(bare(command)) if re.match(r"(docs|envoy|redis|tests)/", word)]
    assert [word for word in named if not (ROOT / word).exists()] == []


def inline() -> list[tuple[str, str, list[str]]]:
    """Page, command and flags of each `extproc COMMAND … --flag …` within a sentence."""
    found = []
    for page in PAGES:
        text = re.sub(r"^( *)```.*?^\1```$", "", page.read_text(), flags=re.M | re.S)
        for span in re.findall(r"`extproc ([^`]+)`", text):
            name, _, rest = span.partition(" ")
            found.append((page.name, name, re.findall(r"(?<![\w-])--[a-z][a-z0-9-]*", rest)))
    return found


def test_flags_that_sentences_name_with_their_command_exist() -> None:
    """A sentence outlives a flag more easily than a block does."""
    flags: dict[str, set[str]] = {}
    wrong = []
    for page, name, asked in inline():
        if name not in COMMANDS:
            wrong.append((page, name))
            continue
        known = flags.setdefault(name, flags_of(name))
        wrong += [(page, f"{name} {flag}") for flag in asked if flag not in known]
    assert wrong == []


def flags_of(name: str) -> set[str]:
    """All flags of a command, those of its own subcommands included."""
    [subcommands] = [action for action in build_parser([name])._actions if action.dest == "command"]
    todo, flags = [subcommands.choices[name]], set()
    while todo:
        parser = todo.pop()
        flags |= set(parser._option_string_actions)
        todo += [choice for action in parser._actions for choice in subparsers(action)]
    return flags


def subparsers(action: object) -> list[object]:
    choices = getattr(action, "choices", None)
    return [one for one in choices.values() if hasattr(one, "_actions")] if isinstance(choices, dict) else []
