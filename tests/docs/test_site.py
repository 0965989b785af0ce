"""The site builds, leads nowhere that is not there, and fetches nothing."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.blocks import DOCS

CONFIGURATION = DOCS / "site/mkdocs.yml"
_ELSEWHERE = r"[\"']?(?:https?:)?//[^\s\"'>)]+"
FETCHED = re.compile(
    rf"<(?:script|img|iframe|source)\b[^>]*\ssrc={_ELSEWHERE}|<link(?![^>]*canonical)[^>]*\shref={_ELSEWHERE}|url\({_ELSEWHERE}"
)


def build(configuration: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "-f", str(configuration), "-d", str(folder)],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        check=False,
    )


def test_every_page_has_its_place_in_the_navigation() -> None:
    """One that was forgotten is named here: put it into docs/site/mkdocs.yml."""
    text = CONFIGURATION.read_text(encoding="utf-8")
    named = re.findall(r"[\w/-]+\.md", text[text.index("\nnav:") :])
    pages = {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")}
    assert sorted(pages - set(named)) == []
    assert sorted(set(named) - pages) == []
    assert len(named) == len(set(named))


def test_the_site_builds_and_no_page_fetches_anything(tmp_path: Path) -> None:
    """Scripts, styles, fonts and pictures are the site's own; only what a reader clicks on leads away."""
    done = build(CONFIGURATION, tmp_path)
    assert done.returncode == 0, done.stderr
    pages = {page: page.read_text() for page in tmp_path.rglob("*") if page.suffix in {".html", ".css"}}
    assert len(pages) > 40
    assert {page.name: found for page, text in pages.items() if (found := FETCHED.findall(text))} == {}
    # The theme's script fetches a library for diagrams, but only where a page has one.
    assert [page.name for page, text in pages.items() if 'class="mermaid"' in text] == []


@pytest.mark.docs
@pytest.mark.parametrize(
    ("page", "told"),
    [
        ("[x](two.md#nowhere)", "does not contain an anchor '#nowhere'"),
        ("[x](three.md)", "target is not found"),
        ("[x](../README.md)", "target is not found"),
        ("[x](/two.md)", "absolute link"),
    ],
)
def test_a_link_that_leads_nowhere_ends_the_build(page: str, told: str, tmp_path: Path) -> None:
    """By the site's own settings, over two pages."""
    pages = tmp_path / "pages"
    (pages / "site").mkdir(parents=True)
    text = CONFIGURATION.read_text(encoding="utf-8")
    (pages / "site/mkdocs.yml").write_text(text[: text.index("\nnav:")] + "\nnav: [index.md, two.md]\n")
    (pages / "index.md").write_text(f"# One\n\n{page}\n")
    (pages / "two.md").write_text("# Two\n")
    done = build(pages / "site/mkdocs.yml", tmp_path / "out")
    assert done.returncode == 1
    assert told in done.stderr
