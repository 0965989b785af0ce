"""Every file that the documentation shows is one that its reader takes: settings, fleets, backends, engines."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
import yaml

from extproc.agent import engine_file
from extproc.agent.sources import BackendsFile
from extproc.cli import main
from extproc.config_file.load import File
from extproc.sim.fleet import file as fleet_file
from tests.docs.blocks import PAGES, Block, blocks, cases


def settings(path: Path) -> object:
    return main(["config", "check", str(path)]) == 0


def backends(path: Path) -> object:
    return BackendsFile(path, {})


_SECTIONS = {section.name for section in msgspec.structs.fields(File)} | {"serve", "xds", "agent", "autoscale", "redis"}
# By a key that none of the others has, or by being a list.
READERS: dict[str, Callable[[Path], object]] = {
    "instances": fleet_file.read,
    "url": backends,
    "fields": engine_file.read,
    "extensionApis": lambda path: path,  # of Envoy Gateway's own configuration
    "rule_files": lambda path: path,  # of Prometheus'
    "tracing": lambda path: path,  # of Envoy's own bootstrap
}


def reader(text: str) -> Callable[[Path], object] | None:
    content = yaml.safe_load(text)
    keys = set(content) if isinstance(content, dict) else set(content[0])
    if keys & _SECTIONS:
        return settings
    return next((read for key, read in READERS.items() if key in keys), None)


@pytest.mark.parametrize("block", cases(blocks("yaml")))
def test_its_reader_takes_it(block: Block, tmp_path: Path) -> None:
    """As it stands there; a kind that is new needs its reader above."""
    path = tmp_path / "shown.yaml"
    path.write_text(block.text)
    read = reader(block.text)
    assert read is not None
    assert read(path)


@pytest.mark.parametrize("block", cases(blocks("json")))
def test_json_is_json(block: Block) -> None:
    """A document, or one a line."""
    try:
        json.loads(block.text)
    except ValueError:
        assert [json.loads(line) for line in block.text.splitlines()]


@pytest.mark.parametrize("block", cases(blocks("python")))
def test_python_is_python(block: Block) -> None:
    """What it does is asked by the tests of its subject."""
    assert ast.parse(block.text).body


def test_fences_name_a_language_that_a_test_knows() -> None:
    """Or none: then nothing is claimed of it."""
    fences = {name for page in PAGES for name in re.findall(r"^ *```(\w+)$", page.read_text(encoding="utf-8"), re.M)}
    assert fences <= {"sh", "yaml", "json", "python", "redis"}
