"""The table for people: figures, targets, and cautions."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from extproc.bench.overhead.figures import FLOOR, OURS, Found, Spent
from extproc.bench.overhead.plan import Cell
from extproc.bench.overhead.table import report_lines, unanswered


def spent(service_s: float, latency_s: float = 0.01, late_s: float = 0.0, **errors: int) -> Spent:
    """A round of a second and a hundred good answers."""
    return Spent(100 + sum(errors.values()), 1.0, [latency_s] * 100, errors, [late_s], service_s, 0.02, 1.0)


def report(floor: Spent, ours: Spent, cell: Cell | None = None) -> dict[str, Any]:
    """One cell, of the targets if it is not said which."""
    found = Found(cell or Cell(64, 1, 4096, 500.0), {"envoy_alone": [spent(0.0)], FLOOR: [floor], OURS: [ours]})
    return {"cells": [found.as_json()], "streams": []}


def shown(lines: Sequence[str]) -> dict[str, str]:
    """The first row, by its heads."""
    heads, row = (re.split(r"\s{2,}", line.strip()) for line in lines[:2])
    return dict(zip(heads, row, strict=True))


def test_ratios_stand_beside_their_targets() -> None:
    """A ratio of 1.4 is within 1.5; a p50 of 2 ms more is beyond 1.5 ms."""
    text = "\n".join(report_lines(report(spent(0.1), spent(0.14, 0.012))))
    assert "1,400 µs" in text
    assert "CPU, 4 KiB (500/s): 1.40 times the floor, target 1.5: met" in text
    assert "p50, 4 KiB at 500/s: 2.00 ms more, target 1.5: missed" in text


def test_what_extproc_adds_to_envoy_alone_is_shown() -> None:
    """Latencies, and Envoy's own processor time: 2,000 µs where it takes 200 alone."""
    ours = Spent(100, 1.0, [0.017] * 100, {}, [0.0], 0.14, 0.2, 1.0)
    row = shown(list(report_lines(report(spent(0.1), ours))))
    assert (row["over alone"], row["p50 over alone"]) == ("1,800 µs", "7.00 ms")


def test_percentiles_of_too_few_answers_are_dashes() -> None:
    """99 answers a round: no p99, whether more or at all, and no p99.9; and no target is held against it."""
    few = Spent(99, 1.0, [0.017] * 99, {}, [0.0], 0.14, 0.2, 1.0)
    lines = list(report_lines(report(few, few)))
    row = shown(lines)
    for head in ("p99 more", "p99.9 more", "p99 over alone", "p99", "p99.9"):
        assert row[head] == "-"
    assert row["extproc p50"] == "17.00 ms"
    assert not [line for line in lines if line.startswith("p99")]


def test_a_way_whose_requests_all_failed_is_told() -> None:
    """Also where no round of it could be made; one good answer is enough to tell something."""
    failed = Spent(100, 1.0, [], {"503": 100}, [0.0], 0.1, 0.02, 1.0)
    hardly = Spent(100, 1.0, [0.01], {"503": 99}, [0.0], 0.1, 0.02, 1.0)
    assert list(unanswered(report(hardly, failed))) == ["4 KiB, 500/s: no request was answered well: extproc"]
    assert list(unanswered(report(hardly, hardly))) == []
    nothing = Found(Cell(64, 1, 4096, None), {"envoy_alone": [spent(0.0)]}).as_json()
    (line,) = unanswered({"cells": [nothing]})
    assert line == "4 KiB, as fast as it goes: no request was answered well: floor, extproc"


def test_cells_that_no_target_speaks_of_are_shown_without_one() -> None:
    """Other fleets, sizes and rates."""
    lines = list(report_lines(report(spent(0.1), spent(0.2), Cell(8, 1, 1024, None))))
    assert "as it goes" in lines[1]
    assert not [line for line in lines if "target" in line]


def test_a_machine_that_could_not_keep_up_is_told_of() -> None:
    """Neither lateness of the generator nor failed requests may pass for a property of the service."""
    text = "\n".join(report_lines(report(spent(0.1), spent(0.12, late_s=0.05, undecided=30))))
    assert "0/0/30" in text
    assert "target 1.5: nothing to tell, for 13% of the requests failed" in text
    assert "50 ms late" in text
    assert "errors of 4 KiB, 500/s: undecided" in text


def test_what_was_not_measured_is_a_dash() -> None:
    """Not a zero."""
    empty = Found(Cell(64, 1, 4096, None), {}, failed=["round 1 of floor: it ended"])
    lines = list(report_lines({"cells": [empty.as_json()], "streams": []}))
    assert " - " in lines[1]
    assert "round 1 of floor: it ended" in lines


def held(body_bytes: int, service_kib: float, envoy_kib: float, **ended: int) -> dict[str, Any]:
    """Two thousand streams; a stream of the floor takes 20 KiB, and its Envoy 30."""
    floor = {"service_bytes_per_1000_streams": 20 * 1024_000, "envoy_bytes_per_1000_streams": 30 * 1024_000}
    ours = {
        "service_bytes_per_1000_streams": service_kib * 1024_000,
        "envoy_bytes_per_1000_streams": envoy_kib * 1024_000,
    }
    ways = {FLOOR: floor | {"ended": {}}, OURS: ours | {"ended": ended}}
    return {"streams": 2000, "body_bytes": body_bytes, "instances": 64, "workers": 1, **ways}


def test_memory_of_held_streams_is_told_by_stream() -> None:
    """Bytes of a thousand, in KiB of one; the body is not what the target speaks of."""
    streams = [held(4096, 70, 41.5, status=3), held(64 * 1024, 70, 140)]
    lines = list(report_lines({"cells": [], "streams": streams}))
    small, large = (
        "memory, 2000 streams of 4 KiB, 64 instances, 1 worker(s)",
        "memory, 2000 streams of 64 KiB, 64 instances",
    )
    assert f"{small}, floor: 20.0 KiB a stream; its Envoy 30.0 KiB a stream; 0 lost" in lines
    missed = "70.0 KiB a stream, target 60 beyond its body: missed; its Envoy 41.5 KiB a stream; 3 lost"
    assert f"{small}, extproc: {missed}" in lines
    met = "70.0 KiB a stream, target 60 beyond its body: met; its Envoy 140.0 KiB a stream; 0 lost"
    assert f"{large}, 1 worker(s), extproc: {met}" in lines
