"""The sample of docs/explain.md has the form of what `extproc explain` prints today."""

from __future__ import annotations

import re
from pathlib import Path

from extproc.core.reasons.explanation import WEIGHTS
from extproc.core.reasons.explanation_text import COLUMNS
from extproc.core.values.decision import Cost

PAGE = Path(__file__).parents[2] / "docs" / "explain.md"
OF_EACH = {"INSTANCE", "COST", "OTHER", "TTFT", "TPOT", "CACHED"}


def sample() -> list[str]:
    """Lines of the first answer on the page."""
    [found] = re.findall(r"^```\n(request .*? of\n.*?answered .*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    return str(found).splitlines()


def test_every_term_of_the_cost_is_named_once_and_no_other() -> None:
    """As a column, among those that are put together, or among those that are 0 everywhere."""
    lines = sample()
    columns = next(line for line in lines if line.startswith("INSTANCE") and "COST" in line).split()
    named = [name.lower() for name in columns if name not in OF_EACH]
    for head in ("other: ", "0 everywhere: "):
        named += next((line.removeprefix(head).split(", ") for line in lines if line.startswith(head)), [])
    assert sorted(named) == sorted({name.removesuffix("_s") for name in Cost.__struct_fields__} - {"total"} | {WEIGHTS})


def test_no_line_is_wider_than_what_is_printed() -> None:
    assert max(map(len, sample())) <= COLUMNS
