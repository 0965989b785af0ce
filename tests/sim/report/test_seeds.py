"""Several seeds become one cell of medians."""

from __future__ import annotations

from typing import Any

from extproc.sim.report.seeds import over_seeds
from extproc.sim.report.suite_json import Cell, read_suite, suite_json


def seeded(seed: int, figures: dict[str, Any], load: float = 0.85) -> Cell:
    """A cell of one seed in which ours has some figures."""
    return Cell(
        trace="chat",
        fleet="mixed",
        load=load,
        state_delay_s=0.2,
        replicas=1,
        seeds=(seed,),
        policies={"extproc": figures},
    )


def test_every_figure_is_the_median_over_the_seeds() -> None:
    """Of the classes, too; each set of conditions stays its own."""
    cells = [
        seeded(seed, {"goodput": good, "preemptions": 2 * seed, "by_class": {"batch": {"goodput": good / 2}}})
        for seed, good in enumerate((0.4, 0.9, 0.8))
    ]
    middle, other = over_seeds([*cells, seeded(0, {"goodput": 0.1}, load=1.05)])
    assert middle.seeds == (0, 1, 2)
    assert middle.policies == {"extproc": {"goodput": 0.8, "preemptions": 2, "by_class": {"batch": {"goodput": 0.4}}}}
    assert (other.seeds, other.load) == ((0,), 1.05)


def test_what_one_seed_does_not_know_is_not_known() -> None:
    """Where nothing was served there is no time, and the median of the others would flatter."""
    (middle,) = over_seeds(
        [seeded(0, {"ttft_p99_s": 1.0}), seeded(1, {"ttft_p99_s": None}), seeded(2, {"ttft_p99_s": 3.0})]
    )
    assert middle.value("extproc", "ttft_p99_s") is None


def test_a_class_that_only_some_seeds_have_is_judged_by_those() -> None:
    """Chance decides which classes come."""
    (middle,) = over_seeds([seeded(0, {"by_class": {}}), seeded(1, {"by_class": {"batch": {"goodput": 0.5}}})])
    assert middle.policies["extproc"]["by_class"] == {"batch": {"goodput": 0.5}}


def test_the_json_keeps_each_seed_and_tells_medians_beside() -> None:
    """So that the spread can be seen; with one seed there is nothing to add."""
    cells = [seeded(0, {"goodput": 0.4}), seeded(1, {"goodput": 0.6})]
    told = suite_json(cells, over_seeds(cells))
    assert [cell["seed"] for cell in told["cells"]] == [0, 1]
    assert [(cell["seeds"], cell["policies"]["extproc"]["goodput"]) for cell in told["medians"]] == [([0, 1], 0.5)]
    assert read_suite(told) == cells
    assert set(suite_json(cells[:1], over_seeds(cells[:1]))) == {"cells"}
