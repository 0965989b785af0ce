"""Cells, their JSON, and who is best: in a terminal's table and in the suite's."""

from __future__ import annotations

import json
from typing import Any

import pytest

from extproc.errors import ConfigError
from extproc.sim.report.columns import GOODPUT, TTFT_MEAN, plain, seconds
from extproc.sim.report.figures import figures
from extproc.sim.report.ranking import best, medians, policies, wins
from extproc.sim.report.suite_json import Cell, read_suite, rows, suite_json
from extproc.sim.report.table import cell_table, suite_table
from tests.sim.report.runs import answer, run, samples


def cell(by_policy: dict[str, tuple[float, float]], **changes: Any) -> Cell:
    """A cell in which each policy has some goodput and mean TTFT."""
    known: dict[str, Any] = {
        "trace": "chat", "fleet": "mixed", "load": 0.85, "state_delay_s": 0.2, "replicas": 1, "seeds": (7,),
        "policies": {name: {"goodput": good, "ttft_mean_s": ttft} for name, (good, ttft) in by_policy.items()},
    }  # fmt: skip
    return Cell(**{**known, **changes})


ONE = cell({"oracle": (1.0, 0.1), "random": (0.8, 0.4), "least_request": (0.9, 0.3), "extproc": (0.95, 0.2)})
OTHER = cell({"oracle": (1.0, 0.1), "random": (0.7, 0.4), "least_request": (0.9, 0.2), "extproc": (0.9, 0.25)})


def test_the_suites_json_has_the_agreed_shape_and_comes_back_whole() -> None:
    """Names and nesting are a contract with whoever reads it."""
    found = json.loads(json.dumps(suite_json([ONE], [ONE])))
    assert set(found["cells"][0]) == {"trace", "fleet", "load", "state_delay_s", "replicas", "seed", "policies"}
    assert found["cells"][0]["policies"]["extproc"] == {"goodput": 0.95, "ttft_mean_s": 0.2}
    assert read_suite(found) == [ONE]


@pytest.mark.parametrize("data", [None, [], {}, {"cells": [{}]}, {"cells": 7}, {"cells": ["x"]}])
def test_another_json_is_refused_in_one_line(data: object) -> None:
    """A person may hand in any file."""
    with pytest.raises(ConfigError, match="not the JSON of extproc simulate"):
        read_suite(data)


def test_ours_comes_first_the_oracle_last_and_the_others_from_the_best_on() -> None:
    """By goodput, then by TTFT."""
    assert policies([ONE]) == ["extproc", "least_request", "random", "oracle"]
    made = figures(run([answer(1, 2)]))
    assert list(rows({"oracle": made, "random": made, "extproc": made})) == ["extproc", "random", "oracle"]


def test_the_oracle_is_never_best_and_equals_share_the_place() -> None:
    """What reads the same is equally good; where most tie nobody is best."""
    assert best({"oracle": 1.0, "a": 0.9, "b": 0.5}, GOODPUT) == {"a"}
    assert best({"a": 0.90001, "b": 0.9, "c": 0.8, "d": 0.7}, GOODPUT) == {"a", "b"}
    assert best({"a": 0.9, "b": 0.9, "c": 0.8}, GOODPUT) == set()
    assert best({"a": 0.3, "b": 0.2}, TTFT_MEAN) == {"b"}
    assert best({"oracle": 1.0}, GOODPUT) == set()


def test_wins_are_counted_and_medians_taken_over_cells() -> None:
    """Of two cells ours wins the goodput of one and the TTFT of one."""
    assert wins([ONE, OTHER], TTFT_MEAN) == {"extproc": 1, "least_request": 1}
    assert wins([ONE, OTHER], GOODPUT) == {"extproc": 1}
    assert medians([ONE, OTHER], "ttft_mean_s")["extproc"] == pytest.approx(0.225)


def test_a_cells_table_marks_the_best_and_names_the_conditions() -> None:
    """Ours is pointed at; a figure that no policy has is left out."""
    lines = cell_table(ONE).splitlines()
    assert lines[0] == "chat on mixed, load 85%, state delay 0.2 s, 1 router replica, seed 7"
    assert lines[1].split() == ["policy", "good", "TTFT"]
    assert lines[2].split() == [">", "extproc", "95.0%*", "200ms*"]
    assert lines[-2].split() == ["oracle", "100.0%", "100ms"]


def test_a_figure_that_one_policy_lacks_reads_as_not_known() -> None:
    """A question mark, not a zero."""
    lacking = cell({"extproc": (0.9, 0.2), "random": (0.8, 0.3)})
    lacking = Cell(**{**{n: getattr(lacking, n) for n in Cell.__dataclass_fields__}, "policies": {
        **lacking.policies, "random": {"goodput": 0.8, "ttft_mean_s": None},
    }})  # fmt: skip
    assert cell_table(lacking).splitlines()[3].split() == ["random", "80.0%", "?"]


def test_a_full_table_fits_a_terminal_of_120_columns() -> None:
    """With long names and large figures."""
    made = figures(run([answer(123.4, 1234.5, preemptions=4000)] * 20, samples((1000, 3000), (3000, 1000))))
    full = cell({}, policies=rows(dict.fromkeys(("extproc", "a_rule_with_a_very_long_name", "random"), made)))
    for table in (cell_table(full), suite_table([full])):
        assert max(map(len, table.splitlines())) <= 120


def test_a_suites_table_has_a_part_for_each_fleet_and_load() -> None:
    """With medians, and the wins of each policy."""
    uniform = cell({"extproc": (0.9, 0.2), "random": (0.8, 0.3)}, fleet="uniform", load=None)
    table = suite_table([ONE, OTHER, uniform])
    parts = table.split("\n\n")
    assert [part.splitlines()[0] for part in parts] == [
        "fleet mixed, load 85%: medians of 2 cells",
        "fleet uniform, load as recorded: medians of 1 cell",
    ]
    assert parts[0].splitlines()[2].split() == [">", "extproc", "92.5%*", "225ms*", "1", "1"]
    assert suite_table([]) == "no cells"


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.00843, "8.4ms"), (0.0843, "84ms"), (0.9996, "1.00s"), (1.234, "1.23s"), (12.34, "12.3s"), (123.4, "123s")],
)
def test_times_are_written_in_the_unit_that_reads_best(value: float, text: str) -> None:
    """Two or three digits."""
    assert seconds(value) == text


def test_plain_numbers_have_three_digits() -> None:
    """Up to a thousand."""
    assert [plain(value) for value in (0.4211, 12.34, 15400.0)] == ["0.42", "12.3", "15400"]
