"""What rounds come to: percentiles, medians, differences pair by pair, and the shape of the JSON."""

from __future__ import annotations

import json

import pytest

from extproc.bench.overhead.figures import FLOOR, OURS, WAYS, Found, Spent, middle, percentile
from extproc.bench.overhead.plan import Cell
from extproc.bench.overhead.usage import used_s

MEASURED = {"cpu_us_per_request", "envoy_cpu_us_per_request", "p50_s", "p99_s", "rps", "errors"}


def spent(service_s: float = 0.1, latencies_s: tuple[float, ...] = (0.1,) * 100, **errors: int) -> Spent:
    """A round of one second."""
    return Spent(len(latencies_s) + sum(errors.values()), 1.0, latencies_s, errors, (0.001,), service_s, 0.02, 1.0)


def found(floor: list[Spent], ours: list[Spent]) -> Found:
    """A cell with these rounds."""
    return Found(Cell(64, 1, 4096, 500.0), {"envoy_alone": [spent(0.0)], FLOOR: floor, OURS: ours})


@pytest.mark.parametrize(
    ("share", "expected"), [(0.0, 1.0), (0.5, 50.0), (0.99, 99.0), (0.999, 100.0), (0.001, 1.0), (1.0, 100.0)]
)
def test_a_percentile_is_one_of_the_values(share: float, expected: float) -> None:
    """By nearest rank, as no value between two was ever measured."""
    assert percentile([float(number) for number in range(1, 101)], share) == expected


def test_nothing_has_no_percentile_and_no_middle() -> None:
    """Unknown is not zero."""
    assert percentile([], 0.5) is None
    assert middle([None, None]) is None


@pytest.mark.parametrize(("values", "expected"), [([3.0, None, 1.0, 2.0], 2.0), ([4.0, 1.0], 2.5), ([7.0], 7.0)])
def test_the_middle_is_that_of_the_known_values(values: list[float | None], expected: float) -> None:
    """Rounds that told nothing are left out."""
    assert middle(values) == expected


def test_a_cell_has_the_shape_that_others_read() -> None:
    """Every key of the contract is there, each way has all of its figures, and JSON can hold it."""
    cell = json.loads(json.dumps(found([spent()], [spent(0.3, late=2)]).as_json()))
    assert {key: cell[key] for key in ("body_bytes", "instances", "workers", "rate_rps")} == {
        "body_bytes": 4096,
        "instances": 64,
        "workers": 1,
        "rate_rps": 500.0,
    }
    assert all(cell[name].keys() >= MEASURED for name in WAYS)
    assert cell["envoy_alone"]["cpu_us_per_request"] == 0.0
    assert cell[FLOOR]["cpu_us_per_request"] == pytest.approx(1000.0)
    assert (cell[OURS]["errors"], cell[OURS]["errors_by_kind"]) == (2, {"late": 2})


def test_ratios_are_taken_pair_by_pair_so_that_a_busy_moment_hits_both() -> None:
    """A neighbour made the second pair ten times as slow: the ratio stays, the ratio of sums would be another."""
    report = found([spent(0.1), spent(1.0), spent(0.1)], [spent(0.2), spent(2.0), spent(0.3)]).as_json()
    assert report["over_floor"]["cpu_ratio"] == pytest.approx(2.0)
    assert report["over_floor"]["cpu_us_per_request"] == pytest.approx(2000.0)


def test_latencies_and_envoys_own_time_are_told_beyond_the_floor_and_beyond_envoy_alone() -> None:
    """In pairs; p99.9 of all rounds together, since a round has too few requests for it."""
    floor, ours = [spent(0.1, (0.2,) * 600)] * 2, [spent(0.3, (0.5,) * 599 + (0.9,))] * 2
    cell = found(floor, ours)
    cell.rounds["envoy_alone"] = [spent(0.0, (0.1,) * 600)] * 2
    report = cell.as_json()
    over_floor, over_alone = report["over_floor"], report["over_envoy_alone"]
    assert over_floor["p999_s"] == pytest.approx(0.7)
    assert over_floor["envoy_cpu_us_per_request"] == pytest.approx(0.0)
    assert [over_alone[key] for key in ("p50_s", "p99_s", "p999_s")] == pytest.approx([0.4, 0.4, 0.8])
    assert over_alone["cpu_us_per_request"] == pytest.approx(500.0)  # Envoy alone has no service
    assert over_alone.keys() < over_floor.keys()


def test_envoys_own_time_is_compared_pair_by_pair() -> None:
    """Envoy takes 200 µs alone, three times as much with the service, in whichever moment."""
    alone = [Spent(100, 1.0, (0.1,) * 100, {}, (), 0.0, envoy_s, 1.0) for envoy_s in (0.02, 0.2, 0.02)]
    ours = [Spent(100, 1.0, (0.1,) * 100, {}, (), 0.1, envoy_s, 1.0) for envoy_s in (0.06, 0.24, 0.07)]
    over = Found(Cell(64, 1, 4096, 500.0), {"envoy_alone": alone, FLOOR: alone, OURS: ours}).as_json()
    for name in ("over_floor", "over_envoy_alone"):
        assert over[name]["envoy_cpu_us_per_request"] == pytest.approx(400.0)


def test_percentiles_of_too_few_answers_are_unknown() -> None:
    """p99 of 99 requests is the slowest of them. Where the contract has a number there is one, and of how many."""
    few = found([spent(latencies_s=(0.1,) * 99)] * 3, [spent(latencies_s=(0.2,) * 99)] * 3).as_json()
    assert few["over_floor"]["p50_s"] == pytest.approx(0.1)
    assert few["over_floor"]["p99_s"] is few["over_floor"]["p999_s"] is few[OURS]["p999_s"] is None
    assert (few[OURS]["p99_s"], few[OURS]["answers_per_round"]) == (0.2, 99)
    enough = found([spent(latencies_s=(0.1,) * 500)] * 2, [spent(latencies_s=(0.2,) * 500)] * 2).as_json()
    assert enough["over_floor"]["p99_s"] == enough["over_floor"]["p999_s"] == pytest.approx(0.1)
    assert enough[OURS]["p999_s"] == 0.2


def test_what_is_used_while_nobody_asks_can_be_told_apart() -> None:
    """A service that uses a tenth of a core anyway, and whose other work is twice the floor's."""
    cell = found([spent(0.1)], [spent(0.3)])
    cell.idle[OURS] = [(2.0, 0.3), (2.0, 0.1)]
    report = cell.as_json()
    assert report[OURS]["background_cpu_us_per_s"] == pytest.approx(100_000.0)
    assert report["over_floor"]["cpu_ratio"] == pytest.approx(3.0)
    assert report["over_floor"]["own_cpu_ratio"] == pytest.approx(2.0)


def test_rounds_without_an_answer_are_unknown_and_their_errors_count() -> None:
    """A service that is down costs nothing a request; that must not look like a good figure."""
    report = found([spent()], [spent(0.0, (), undecided=50)]).as_json()
    assert report[OURS]["cpu_us_per_request"] is None
    assert report["over_floor"]["cpu_ratio"] is None
    assert (report[OURS]["rps"], report[OURS]["errors"]) == (0.0, 50)


def test_ways_that_could_not_be_measured_at_all_are_there_and_empty() -> None:
    """Whoever reads the JSON finds every key."""
    cell = Found(Cell(8, 2, 1024, None), {}, failed=["round 1 of extproc: it ended"]).as_json()
    assert all(cell[name]["p50_s"] is None and cell[name]["requests"] == 0 for name in WAYS)
    assert cell["failed_rounds"] == ["round 1 of extproc: it ended"]


def test_processor_time_of_workers_that_come_and_go_is_never_negative() -> None:
    """One that was started anew counts from its start, one that is gone is left out."""
    assert used_s({1: 5.0, 2: 7.0}, {1: 5.5, 3: 0.25}) == pytest.approx(0.75)
    assert used_s({1: 5.0}, {1: 0.0}) == 0.0
