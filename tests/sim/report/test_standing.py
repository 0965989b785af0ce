"""How ours stands: each bound against figures small enough to work out by hand."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import pytest

from extproc.sim.report.standing import Bound, Standing, standing
from extproc.sim.report.standing_shown import standing_json, standing_markdown, standing_text
from extproc.sim.report.suite_json import Cell

Four = tuple[float | None, float | None, float | None, float | None]
KNOW = ("extproc", "preble")
ORACLE: Four = (1.0, 8.0, 0.5, 0.0)


def cell(policies: dict[str, Four], **changes: Any) -> Cell:
    """A cell in which each policy has goodput, mean E2E, p99 TTFT and oscillation."""
    names = ("goodput", "e2e_mean_s", "ttft_p99_s", "oscillation")
    known: dict[str, Any] = {
        "trace": "chat", "fleet": "mixed", "load": 0.85, "state_delay_s": 0.2, "replicas": 1, "seeds": (0,),
        "policies": {name: dict(zip(names, figures, strict=True)) for name, figures in policies.items()},
    }  # fmt: skip
    return Cell(**known | changes)


BEST = cell(
    {
        "extproc": (0.9, 9.0, 0.7, 0.1),
        "preble": (0.8, 12.0, 1.0, 0.1),
        "least_request": (0.6, 10.0, 2.0, 0.2),
        "oracle": ORACLE,
    }
)
LATE = cell(
    {
        "extproc": (0.765, 10.0, 1.6, 0.3),
        "preble": (0.9, 12.0, 1.0, 0.1),
        "least_request": (0.3, 10.0, 2.0, 0.2),
        "oracle": ORACLE,
    },
    state_delay_s=2.0,
)
SPLIT = cell(
    {
        "extproc": (0.8, 8.8, 1.0, 0.2),
        "preble": (0.7, 12.0, 1.0, 0.1),
        "least_request": (0.8, 8.8, 1.1, 0.2),
        "oracle": ORACLE,
    },
    replicas=4,
)


def made(*cells: Cell) -> Standing:
    """Where ours stands in these cells."""
    found = standing(cells, KNOW)
    assert found
    return found


def bound(name: str, *cells: Cell) -> Bound:
    """One of its bounds."""
    return {bound.name: bound for bound in made(*cells).bounds}[name]


@pytest.mark.parametrize(
    ("name", "kept", "cells", "median", "worst"),
    [
        ("goodput", 2, 3, 1.0, 0.85),  # .9/.8, .765/.9, .8/.8
        ("e2e_mean_s", 3, 3, 1.0, 1.0),  # 9/10, 10/10, 8.8/8.8
        ("ttft_p99_s", 2, 3, 1.0, 1.6),  # .7/1, 1.6/1, 1/1
        ("all", 2, 3, None, None),
        ("oracle_e2e", 2, 3, 1.125, 1.25),  # 9/8, 10/8, 8.8/8
        ("mixed_unaware_goodput", 2, 3, 1.5, 1.0),  # .9/.6, .765/.3, .8/.8: preble knows the hardware
        ("mixed_goodput", 1, 3, 1.0, 0.85),
        ("mixed_ttft_p99", 1, 3, 1.0, 1.6),
        ("stale", 0, 1, 0.15, 0.15),  # .9 -> .765
        ("replicas", 0, 1, 1 / 9, 1 / 9),  # .9 -> .8
        ("oscillation", 2, 3, 0.0, 0.1),  # -.1, .1, 0
    ],
)
def test_each_bound_by_hand(name: str, kept: int, cells: int, median: float | None, worst: float | None) -> None:
    """Against the best rival of each cell and figure, whoever that is; the oracle is none."""
    found = bound(name, BEST, LATE, SPLIT)
    assert (found.kept, found.cells) == (kept, cells)
    assert found.median == pytest.approx(median)
    assert found.worst == pytest.approx(worst)


def test_three_per_cent_is_no_worse() -> None:
    """And a little more is."""
    rivals = {"least_request": (0.5, 10.0, 1.0, 0.0)}
    at = cell({"extproc": (0.4851, 10.29, 1.029, 0.0), **rivals})
    beyond = cell({"extproc": (0.484, 10.31, 1.031, 0.0), **rivals})
    assert [(bound(name, at).kept, bound(name, beyond).kept) for name in ("goodput", "e2e_mean_s", "ttft_p99_s")] == [
        (1, 0)
    ] * 3


@pytest.mark.parametrize("changes", [{"fleet": "uniform"}, {"load": 0.6}, {"load": None}])
def test_the_mixed_fleets_bounds_are_of_its_busy_cells(changes: dict[str, Any]) -> None:
    """Bounds that concern no cell are left out."""
    other = cell(dict.fromkeys(("extproc", "random"), (0.5, 1.0, 1.0, 0.0)), **changes)
    assert not [bound.name for bound in made(other).bounds if bound.name.startswith("mixed")]


def test_the_cells_that_miss_are_named_with_the_best_rival_the_worst_first() -> None:
    """By figure."""
    worse = cell({"extproc": (0.4, 9.0, 0.7, 0.0), "least_request": (0.8, 10.0, 1.0, 0.0)}, trace="code")
    found = [(m.figure, m.cell.trace, m.rival, m.ours, m.best, m.ratio) for m in made(BEST, LATE, SPLIT, worse).misses]
    assert found == [
        ("goodput", "code", "least_request", 0.4, 0.8, 0.5),
        ("goodput", "chat", "preble", 0.765, 0.9, pytest.approx(0.85)),
        ("ttft_p99_s", "chat", "preble", 1.6, 1.0, 1.6),
    ]


def test_a_figure_that_ours_lacks_is_a_miss() -> None:
    """It served nothing: no time is no good time."""
    lacking = cell({"extproc": (0.0, None, None, None), "random": (0.5, 1.0, 1.0, 0.1)})
    assert [(miss.figure, miss.ratio) for miss in made(lacking).misses] == [
        ("goodput", 0.0), ("e2e_mean_s", None), ("ttft_p99_s", None),
    ]  # fmt: skip
    assert "?" in standing_text(made(lacking), [lacking])


def test_where_the_rivals_have_nothing_ours_is_no_worse() -> None:
    """Of nothing, nothing is enough; and JSON has no infinity."""
    none = cell({"extproc": (0.0, 1.0, 1.0, 0.0), "random": (0.0, 1.0, 1.0, 0.0)})
    some = cell({"extproc": (0.1, 1.0, 1.0, 0.0), "random": (0.0, 1.0, 1.0, 0.0)})
    assert (bound("goodput", none).kept, bound("goodput", some).kept) == (1, 1)
    told = json.loads(json.dumps(standing_json(made(some)), allow_nan=False))
    assert told["bounds"][0]["median"] is None


def refusing(refused: int, **changes: Any) -> Cell:
    """A cell with ours twice, as it is and with admission, and two rivals of which one refuses as well."""
    four = {"extproc": (0.5, 9.0, 3.0, 0.0), "extproc_admission": (0.8, 5.0, 0.7, 0.0)}
    made = cell(four | {"least_request": (0.4, 10.0, 2.0, 0.0), "llm_d_flow": (0.6, 6.0, 1.0, 0.0)}, **changes)
    admitting = {**made.policies["extproc_admission"], "requests": 200, "refused": refused}
    return replace(made, policies={**made.policies, "extproc_admission": admitting})


@pytest.mark.parametrize(
    ("ours", "apart", "goodput", "ttft_p99", "refused"),
    [
        ("extproc", ["llm_d_flow"], 0.5 / 0.4, 3.0 / 2.0, (0.0, 0.0)),
        ("extproc", [], 0.5 / 0.6, 3.0 / 1.0, (0.0, 0.0)),
        ("extproc_admission", [], 0.8 / 0.6, 0.7 / 1.0, (0.045, 0.08)),
    ],
)
def test_ours_with_admission_stands_for_itself(
    ours: str, apart: list[str], goodput: float, ttft_p99: float, refused: tuple[float, float]
) -> None:
    """None of ours is a rival of another, and whoever refuses is one of those that do alone."""
    found = standing([refusing(2), refusing(16, trace="code")], KNOW, ours, apart)
    assert found
    ratios = {bound.name: bound.median for bound in found.bounds}
    assert ratios["goodput"] == pytest.approx(goodput)
    assert ratios["ttft_p99_s"] == pytest.approx(ttft_p99)
    assert found.refused == pytest.approx(refused)
    told = [standing_text(found, [refusing(2)], ours), standing_markdown(found, [refusing(2)], ours)]
    assert all(
        (f"{ours} " in text) and ("refused 4.5% in the median cell, 8.0% at most" in text) == (ours != "extproc")
        for text in told
    )


def test_each_part_tells_what_was_refused_in_it() -> None:
    """Where nothing was, no column says so."""
    cells = [refusing(2), refusing(16, trace="code"), refusing(4, load=0.6)]
    found = standing(cells, KNOW, "extproc_admission")
    assert found
    parts = {str(name): part.refused for name, part in (*found.by_group.items(), *found.by_trace.items())}
    assert parts == {
        "fleet mixed, load 60%": (0.02, 0.02),
        "fleet mixed, load 85%": (0.045, 0.08),
        "chat": (0.015, 0.02),
        "code": (0.08, 0.08),
    }
    page = standing_markdown(found, cells, "extproc_admission")
    assert "| goodput / unaware | refused |" in page
    assert re.search(r"^\| chat \|.*\| 1\.5%, 2\.0% \|$", page, re.MULTILINE)
    whole = standing(cells, KNOW)
    assert whole
    assert "refused" not in standing_markdown(whole, cells)


def test_a_policy_from_outside_is_a_rival_however_it_is_called() -> None:
    """Its package may begin as ours do."""
    found = standing([cell({"extproc": (0.5, 9.0, 3.0, 0.0), "extproc_mine.rules:make": (0.4, 9.0, 3.0, 0.0)})], KNOW)
    assert found
    assert found.bounds[0].median == pytest.approx(1.25)


def test_without_ours_or_without_rivals_there_is_nothing_to_tell() -> None:
    """The oracle alone is no rival."""
    assert standing([], KNOW) is None
    assert standing([cell({"random": ORACLE})], KNOW) is None
    assert standing([cell({"extproc": ORACLE, "oracle": ORACLE})], KNOW) is None


def test_the_json_has_bounds_parts_and_misses() -> None:
    """As docs/simulate-report.md says."""
    told = json.loads(json.dumps(standing_json(made(BEST, LATE, SPLIT))))
    assert set(told) == {"bounds", "by_group", "by_trace", "misses", "refused"}
    assert told["refused"] == {"median": 0.0, "most": 0.0}
    assert set(told["bounds"][0]) == {"name", "meaning", "limit", "at_least", "kept", "cells", "median", "worst"}
    assert [(part["fleet"], part["load"], part["bounds"][0]["kept"]) for part in told["by_group"]] == [
        ("mixed", 0.85, 2)
    ]
    assert [(part["trace"], part["refused"]) for part in told["by_trace"]] == [("chat", {"median": 0.0, "most": 0.0})]
    assert told["misses"][0] == {
        "trace": "chat", "fleet": "mixed", "load": 0.85, "state_delay_s": 2.0, "replicas": 1,
        "figure": "goodput", "ours": 0.765, "best": 0.9, "rival": "preble", "ratio": 0.85,
    }  # fmt: skip


def test_text_and_markdown_tell_the_same() -> None:
    """Every number of the one stands in the other."""
    cells = (BEST, LATE, SPLIT)
    text, page = standing_text(made(*cells), cells), standing_markdown(made(*cells), cells)
    assert "3 cells, seed 0" in text
    line = next(line for line in text.splitlines() if line.startswith("goodput / best rival's"))
    assert line.split()[-6:] == ["0.97", "2", "of", "3", "1.00", "0.85"]
    assert "| goodput / best rival's | ≥ 0.97 | 2 of 3 | 1.00 | 0.85 |" in page
    assert "| chat | mixed | 85% | 2 s | 1 | 76.5% | 90.0% | preble | 0.85 |" in page
    rows = [line for line in page.splitlines() if line.startswith("|")]
    assert all(row.count("|") >= 6 for row in rows)
