"""What is kept in envoy/: each file is what the command in its header prints, and a page tells of it."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
import yaml

from extproc.cli import main
from tests.envoy_process import validation_error

ROOT = Path(__file__).parents[2]
KEPT = {path.name: path for path in sorted((ROOT / "envoy").glob("*.yaml"))}
WHOLE = ["dynamic.yaml", "static.yaml"]  # bootstraps


def header(path: Path) -> list[str]:
    return [line for line in path.read_text().splitlines(keepends=True) if line.startswith("#")]


@pytest.mark.parametrize("name", KEPT)
def test_a_kept_file_is_what_the_command_in_its_header_prints(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    lines = header(KEPT[name])
    command = next(line.strip("# \n") for line in lines if line.startswith("#   extproc envoy-config"))
    assert main(shlex.split(command)[1:]) == 0
    assert capsys.readouterr().out == KEPT[name].read_text()[len("".join(lines)) :]


@pytest.mark.parametrize("name", WHOLE)
def test_envoy_accepts_a_kept_bootstrap(name: str, tmp_path: Path) -> None:
    assert not validation_error(yaml.safe_load(KEPT[name].read_text()), tmp_path)


@pytest.mark.parametrize("name", [name for name in KEPT if name != "compose.yaml"])
def test_a_kept_file_names_a_page_of_the_documentation(name: str) -> None:
    words = "".join(header(KEPT[name])).split()
    pages = [word.rstrip(".,") for word in words if word.startswith("docs/")]
    assert pages
    assert all((ROOT / page).is_file() for page in pages)
