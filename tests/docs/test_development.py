"""Whoever follows the ways in docs/development.md finds each place on them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import extproc
from tests.docs.blocks import DOCS

ROOT = Path(extproc.__file__).parent
TEXT = (DOCS / "development.md").read_text(encoding="utf-8")
WAYS = TEXT.partition("## Where to begin to read\n")[2].partition("\n## ")[0]
PLACES = sorted(set(re.findall(r"`([a-z_/]+)`", WAYS)) - {"extproc"})
LAYOUT = set(re.findall(r"`extproc/([a-z_]+)`", TEXT))


@pytest.mark.parametrize("place", PLACES)
def test_a_place_on_the_way_is_there(place: str) -> None:
    """A file, or a package."""
    assert (ROOT / f"{place}.py").is_file() or (ROOT / place / "__init__.py").is_file()


def test_every_package_stands_in_the_layout() -> None:
    """With what it is for."""
    assert {each.parent.name for each in ROOT.glob("*/__init__.py")} == LAYOUT
