"""The page stands alone, tells what was run, and draws what was measured."""

from __future__ import annotations

import re
import sys
from html.parser import HTMLParser
from random import Random

import pytest

from extproc.errors import ConfigError
from extproc.sim.report.columns import GOODPUT
from extproc.sim.report.curves import CDF_POINTS, LOAD_SAMPLES, curves
from extproc.sim.report.figures import figures
from extproc.sim.report.heat import heat_table, shade
from extproc.sim.report.page import Detail, Report, page
from extproc.sim.report.plots import styles
from extproc.sim.report.run import Run
from extproc.sim.report.suite_json import Cell, rows
from tests.sim.report.runs import answer, herded, refused, run, samples

POLICIES = ("extproc", "random", "round_robin", "least_request", "<b>mine</b>", "oracle")


def made_up(policy: str, load: float = 0.85) -> Run:
    """A run whose TTFT grows with the load."""
    random = Random(policy)
    served = [answer(ttft := random.expovariate(1 / load) + 0.05, ttft + 0.4) for _ in range(300)]
    return run([*served, refused()], herded("random", instances=2, mean=6, minutes=2), policy=policy)


def one_cell(load: float = 0.85, fleet: str = "two") -> tuple[Cell, list[Run]]:
    """All policies under one load."""
    runs = [made_up(policy, load) for policy in POLICIES]
    by_policy = rows({one.policy: figures(one) for one in runs})
    return Cell(
        trace="chat", fleet=fleet, load=load, state_delay_s=0.2, replicas=1, seeds=(7,), policies=by_policy
    ), runs


@pytest.fixture(scope="module")
def suite_page() -> str:
    """A page of four cells, one of them in detail."""
    cells = [one_cell(load, fleet)[0] for load in (0.6, 1.05) for fleet in ("two", "other")]
    cell, runs = one_cell()
    detail = Detail(cell=cell, curves=[curves(one) for one in runs])
    return page(Report(title="A <suite>", command="extproc simulate --suite 'x & y'", cells=cells, details=[detail]))


class _Reader(HTMLParser):
    """Collects ids, references and open elements."""

    def __init__(self) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.references: list[str] = []
        self.open: list[str] = []
        self.tags: list[str] = []
        self.wrong: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag not in ("meta", "br", "use", "path", "image"):
            self.open.append(tag)
        for name, value in attrs:
            if name == "id":
                self.ids.append(str(value))
            if name in ("src", "href", "xlink:href"):
                self.references.append(str(value))

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if self.open and self.open[-1] == tag:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        if tag in ("use", "path", "image"):
            return
        if not self.open or self.open.pop() != tag:
            self.wrong.append(tag)


def read(html: str) -> _Reader:
    """What a browser would find."""
    reader = _Reader()
    reader.feed(html)
    return reader


def test_a_page_fetches_nothing_and_names_no_address(suite_page: str) -> None:
    """It can be mailed and opened offline: all references are to itself or hold their own data."""
    assert not re.search(r"https?:|=.?//|\(//|<script|<link|@import", suite_page)
    assert all(one.startswith(("#", "data:image/png;base64,")) for one in read(suite_page).references)


def test_a_page_is_sound_html_with_every_id_once(suite_page: str) -> None:
    """Every element is closed, and every reference in a plot finds its own plot's part."""
    found = read(suite_page)
    assert found.wrong == []
    assert found.open == []
    assert len(found.ids) == len(set(found.ids))
    assert {one[1:] for one in found.references if one.startswith("#")} <= set(found.ids)
    assert set(re.findall(r"url\(#([^)]+)\)", suite_page)) <= set(found.ids)
    assert found.tags.count("svg") == 3


def test_a_page_tells_its_title_command_and_seed_as_they_are(suite_page: str) -> None:
    """What a person wrote is text, never markup."""
    assert "<h1>A &lt;suite&gt;</h1>" in suite_page
    assert "extproc simulate --suite &#x27;x &amp; y&#x27;" in suite_page
    assert "with seed 7" in suite_page
    assert "<b>mine</b>" not in suite_page
    assert "&lt;b&gt;mine&lt;/b&gt;" in suite_page


def test_the_same_report_is_the_same_page() -> None:
    """Byte for byte, so that it can be kept under version control."""
    cell, runs = one_cell()
    report = Report(title="t", command="c", cells=[cell], details=[Detail(cell=cell, curves=[curves(r) for r in runs])])
    assert page(report) == page(report)


def test_a_page_of_one_cell_compares_ours_with_the_best_other() -> None:
    """The oracle is no rival."""
    by_policy = {
        "extproc": {"goodput": 0.9, "ttft_mean_s": 0.2},
        "random": {"goodput": 0.8, "ttft_mean_s": 0.1},
        "oracle": {"goodput": 1.0, "ttft_mean_s": 0.01},
    }
    cell = Cell(trace="t", fleet="f", load=None, state_delay_s=0.2, replicas=1, seeds=(1,), policies=by_policy)
    text = page(Report(title="t", command="c", cells=[cell], details=[Detail(cell=cell, curves=[])]))
    assert "Goodput: 90.0%, the best other 80.0% (random). Mean TTFT: 200ms, the best other 100ms (random)." in text


def test_a_run_with_nothing_served_and_no_samples_can_be_shown() -> None:
    """Where all was refused there is no curve, and still a page."""
    nothing = run([refused()], policy="extproc")
    cell = Cell(
        trace="t", fleet="two", load=1.0, state_delay_s=0.2, replicas=1, seeds=(1,),
        policies=rows({"extproc": figures(nothing)}),
    )  # fmt: skip
    detail = Detail(cell=cell, curves=[curves(nothing)])
    assert "0.0%" in page(Report(title="t", command="c", cells=[cell], details=[detail]))
    assert "0 sets of conditions" in page(Report(title="t", command="c", cells=[]))


def test_without_matplotlib_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """A person who asks for a page learns what to install."""
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    cell, runs = one_cell()
    with pytest.raises(ConfigError, match=r"pip install 'extproc\[plots\]'"):
        page(Report(title="t", command="c", cells=[cell], details=[Detail(cell=cell, curves=[curves(runs[0])])]))


def test_curves_are_thinned_and_keep_their_ends() -> None:
    """A run of many requests and hours becomes some hundred points."""
    long = run([*(answer(k / 1000, 10.0) for k in range(5000)), refused()], samples(*[(3, 4)] * 3000))
    found = curves(long)
    assert len(found.ttft_s) == CDF_POINTS
    assert (found.ttft_s[0], found.ttft_s[-1]) == (0.0, 4.999)
    assert found.answered == pytest.approx(5000 / 5001)
    assert len(found.at_s) <= LOAD_SAMPLES
    assert set(found.loads[1]) == {4.0}


def test_the_load_of_an_instance_that_is_not_ready_is_unknown() -> None:
    """Not drawn as idle."""
    found = curves(run([answer(1, 2)], samples((3, 0), ready=(True, False))))
    assert found.loads == ((3.0,), (None,))


def test_ours_and_round_robin_are_always_named_in_plots() -> None:
    """However low they rank."""
    look = styles([*(f"rule{i}" for i in range(9)), "round_robin", "extproc", "oracle"])
    assert [policy for policy, style in look.items() if style.named][-3:] == ["round_robin", "extproc", "oracle"]
    assert len({(style.colour, str(style.dash)) for style in look.values() if style.named}) == 7
    assert not look["rule8"].named


def test_shades_grow_with_the_distance_from_the_best() -> None:
    """By points of goodput and by times of a time."""
    assert [shade(value, 1.0, "goodput") for value in (1.0, 0.88, 0.5)] == [0, 4, 7]
    assert [shade(value, 0.1, "ttft_mean_s") for value in (0.05, 0.1, 0.22, 1.0)] == [0, 0, 4, 7]
    assert [shade(value, 0.0, "oscillation") for value in (0.0, 1.0)] == [0, 7]


def test_the_heat_table_has_a_row_for_each_cell_and_bolds_its_best() -> None:
    """The oracle sets no mark."""
    by_policy = {"extproc": {"goodput": 0.9}, "random": {"goodput": 0.6}, "oracle": {"goodput": 1.0}, "new": {}}
    cell = Cell(trace="t", fleet="f", load=0.6, state_delay_s=2.0, replicas=4, seeds=(1,), policies=by_policy)
    table = heat_table([cell, cell], GOODPUT, list(by_policy))
    assert table.count("<tr>") == 3
    assert '<td class="h0 ours"><b>90.0%</b></td><td class="h7">60.0%</td><td class="h0">100.0%</td><td>–</td>' in table
