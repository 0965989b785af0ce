"""Figures of docs/compared.md are those of the pages that they are said to be from."""

from __future__ import annotations

import re

import pytest

from tests.docs.blocks import DOCS

PAGE = (DOCS / "compared.md").read_text(encoding="utf-8")
TABLES = re.findall(r"<!-- from (\S+) -->\n((?:\|.*\n)+)", PAGE)


def test_the_page_has_tables_that_name_their_source() -> None:
    """Standard suite, one cell of it, overload, autoscaling."""
    assert len(TABLES) == 4


@pytest.mark.parametrize(("source", "table"), TABLES, ids=[f"{n}-{table[0]}" for n, table in enumerate(TABLES)])
def test_each_row_stands_in_its_source(source: str, table: str) -> None:
    """All its figures, in one line and in this order."""
    lines = [re.findall(r"[\d.,]+", line) for line in (DOCS / source).read_text(encoding="utf-8").splitlines()]
    _, _, *rows = table.splitlines()
    wrong = [row for row in rows if not any(_follow(figures, line) for figures in [_figures(row)] for line in lines)]
    assert rows
    assert wrong == []


def _figures(row: str) -> list[str]:
    """Of all cells but the first, which names the rule."""
    return re.findall(r"[\d.,]+", row.strip("| ").partition("|")[2])


def _follow(figures: list[str], line: list[str]) -> bool:
    """Whether `line` holds all figures in their order, perhaps with others between."""
    rest = iter(line)
    return all(figure in rest for figure in figures)


@pytest.mark.parametrize(
    ("sentence", "source", "from_there"),
    [
        (
            "in 120 of 120 cells, goodput in 99, **p99 TTFT in 52**",
            "results.md",
            "mean E2E in 120 of 120 cells, goodput in 99, p99 TTFT in 52",
        ),
        ("within 3 % of it in 114 of 120 cells;", "results.md", "goodput in 114 of 120 cells, mean E2E in 68"),
        ("the best of all in 40 of 40 and 1.3 times", "results.md", "1.1 times that of the best of all in 40, a p99"),
        ("51 and 48 % good there at 85 and 105 %", "results.md", "has 51 and 48 % good there at 85 and 105 %"),
        ("at most `least_request`'s in 18 of 120 cells", "results.md", "`least_request`'s in 18"),
        ("1,100 to 1,400 requests a second", "simulate.md", "1,100–1,400"),
        ("8,600 to 11,000", "simulate.md", "8,600–11,000"),
        ("in **3 of 12** points", "autoscale-results.md", "the target in 3 of 12 points"),
        ("(0.59 to 0.96 times)", "autoscale-results.md", "it has 0.59 to 0.96 times"),
        ("180 s (1.03 times)", "autoscale-results.md", "| 180 s | 0.22%, 10.9 | 1.03,"),
        ("and 300 s (1.62).", "autoscale-results.md", "| 300 s | 0.39%, 11.3 | 1.62,"),
        ("took 1.96 times the CPU", "where-the-time-goes.md", "1.96 times"),
        ("1.9 ms more at the median and 6.9 ms more", "where-the-time-goes.md", "6.9 ms more"),
        ("1.28 and 1.30 times", "overload-results.md", "**1.28, 1.30**"),
        ("90 % instead of 95 %", "overload-results.md", "**90 %**"),
    ],
)
def test_figures_in_sentences_stand_in_their_source(sentence: str, source: str, from_there: str) -> None:
    """Both sides: whoever runs a suite again finds here what to say anew."""
    page = " ".join(PAGE.split())
    assert sentence in page
    assert from_there in " ".join((DOCS / source).read_text(encoding="utf-8").split())
