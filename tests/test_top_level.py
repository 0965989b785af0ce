"""The top level of the repository holds what tells the story, and nothing that fell there by accident."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
KNOWN = {
    ".ci", ".gitignore", "CHANGELOG.md", "LICENSE", "README.md", "docker-compose.yml", "docs", "envoy", "extproc",
    "pyproject.toml", "redis", "tests",
}  # fmt: skip


def test_nothing_lies_about_at_the_top() -> None:
    """Of what git keeps; a new part of the project is named here."""
    told = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    if told.returncode:
        pytest.skip(f"not a checkout that git reads: {told.stderr}")
    assert {name.split("/")[0] for name in told.stdout.split("\0") if name} == KNOWN


@pytest.mark.parametrize("folder", ["redis", "envoy"])
def test_no_module_shadows_a_library(folder: str) -> None:
    """These folders have the names of libraries, and stand before them on the path where Python starts here."""
    assert not [path.name for path in (ROOT / folder).rglob("*.py")]
