"""What was found as a table for people, and beside the targets. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from extproc.bench.overhead.figures import ALONE, FEWEST_P99, FLOOR, OURS
from extproc.bench.overhead.plan import KIB
from extproc.text_table import table_lines

_LATE_S = 0.005
_LOST_SHARE = 0.01
_HEADS = (
    *("body", "instances", "workers", "requests/s"),
    *("floor CPU", "extproc CPU", "ratio", "more", "unasked"),
    *("Envoy alone", "with floor", "with extproc", "over alone"),
    *(
        "p50 more",
        "p99 more",
        "p99.9 more",
        "p50 over alone",
        "p99 over alone",
        "extproc p50",
        "p99",
        "p99.9",
        "answered/s",
        "errors",
    ),
)


@dataclass(frozen=True, slots=True)
class Target:
    """A bound for what a cell with this body has beyond the floor; `key` is of `over_floor`."""

    what: str
    body_bytes: int
    key: str
    bound: float
    unit: str
    scale: float  # from the JSON's unit to the one shown
    rate_rps: float | None = None  # it holds at this rate alone


TARGETS = (
    Target("CPU, 4 KiB", 4 * KIB, "cpu_ratio", 1.5, "times the floor", 1.0),
    Target("CPU, 128 KiB", 128 * KIB, "cpu_us_per_request", 2.0, "ms more", 1e-3),
    Target("CPU, 1 MiB", KIB * KIB, "cpu_us_per_request", 15.0, "ms more", 1e-3),
    Target("p50, 4 KiB at 500/s", 4 * KIB, "p50_s", 1.5, "ms more", 1e3, 500.0),
    Target("p99, 4 KiB at 500/s", 4 * KIB, "p99_s", 8.0, "ms more", 1e3, 500.0),
)
_TARGET_INSTANCES = 64
_TARGET_STREAM_BYTES = 60 * KIB


def report_lines(report: Mapping[str, Any]) -> Iterator[str]:
    """The table, the targets that it tells something of, and what to be careful about."""
    yield from table_lines([_HEADS, *map(_row, report["cells"])], right=_HEADS)
    yield ""
    yield "CPU: of the service, and of Envoy, for each request that was answered well; more: beyond the floor, in pairs"
    yield "over alone: what Envoy's CPU and latencies have with extproc beyond those of Envoy alone, in pairs"
    yield "unasked: CPU of extproc while nobody asks, part of the above; latencies and answered/s are extproc's"
    yield from _against_targets(report)
    yield from _cautions(report["cells"])


def _row(cell: Mapping[str, Any]) -> Sequence[str]:
    alone, floor, ours = (cell[name] for name in (ALONE, FLOOR, OURS))
    over, over_alone = cell["over_floor"], cell["over_envoy_alone"]
    return (
        _size(cell["body_bytes"]),
        str(cell["instances"]),
        str(cell["workers"]),
        "as it goes" if cell["rate_rps"] is None else f"{cell['rate_rps']:g}",
        _us(floor["cpu_us_per_request"]),
        _us(ours["cpu_us_per_request"]),
        _shown(over["cpu_ratio"], 1.0, ".2f", ""),
        _us(over["cpu_us_per_request"]),
        f"{ours['background_cpu_us_per_s'] / 1e3:.0f} ms/s",
        *(_us(way["envoy_cpu_us_per_request"]) for way in (alone, floor, ours)),
        _us(over_alone["envoy_cpu_us_per_request"]),
        *(_ms(over[key]) for key in ("p50_s", "p99_s", "p999_s")),
        *(_ms(over_alone[key]) for key in ("p50_s", "p99_s")),
        _ms(ours["p50_s"]),
        _ms(ours["p99_s"] if ours["answers_per_round"] >= FEWEST_P99 else None),
        _ms(ours["p999_s"]),
        f"{ours['rps']:.0f}",
        "/".join(str(way["errors"]) for way in (alone, floor, ours)),
    )


def _against_targets(report: Mapping[str, Any]) -> Iterator[str]:
    for target in TARGETS:
        for cell in report["cells"]:
            if not _meant(target, cell):
                continue
            found = cell["over_floor"][target.key]
            if found is not None:
                value = found * target.scale
                verdict = "met" if value <= target.bound else "missed"
                if (lost := _lost_share(cell)) > _LOST_SHARE:
                    verdict = f"nothing to tell, for {lost:.0%} of the requests failed: too much for this machine"
                rate = "" if target.rate_rps else f" ({_rate(cell)})"
                yield f"{target.what}{rate}: {value:.2f} {target.unit}, target {target.bound:g}: {verdict}"
    yield from chain.from_iterable(map(_memory, report["streams"]))


def _memory(held: Mapping[str, Any]) -> Iterator[str]:
    """Of one stand's streams of one size; the target is for what a stream takes beyond its body."""
    shape = f"{held['instances']} instances, {held['workers']} worker(s)"
    what = f"memory, {held['streams']} streams of {_size(held['body_bytes'])}, {shape}"
    for name in (FLOOR, OURS):
        if not (found := held.get(name)) or found["service_bytes_per_1000_streams"] is None:
            continue
        each = found["service_bytes_per_1000_streams"] / 1000
        met = each - held["body_bytes"] <= _TARGET_STREAM_BYTES
        target = f", target {_TARGET_STREAM_BYTES // KIB} beyond its body: {'met' if met else 'missed'}"
        envoy = found["envoy_bytes_per_1000_streams"] / 1000
        yield (
            f"{what}, {name}: {each / KIB:.1f} KiB a stream{target if name == OURS else ''}; "
            f"its Envoy {envoy / KIB:.1f} KiB a stream; {sum(found['ended'].values())} lost"
        )


def unanswered(report: Mapping[str, Any]) -> Iterator[str]:
    """A line for each cell in which nobody was answered well on some way: it tells nothing."""
    for cell in report["cells"]:
        if silent := [name for name in (ALONE, FLOOR, OURS) if cell[name]["requests"] <= cell[name]["errors"]]:
            yield f"{_size(cell['body_bytes'])}, {_rate(cell)}: no request was answered well: {', '.join(silent)}"


def _lost_share(cell: Mapping[str, Any]) -> float:
    """Of the requests to the floor and to us, those that were not answered well."""
    ways = [cell[name] for name in (FLOOR, OURS)]
    requests, errors = (sum(int(way[key]) for way in ways) for key in ("requests", "errors"))
    return errors / max(1, requests)


def _meant(target: Target, cell: Mapping[str, Any]) -> bool:
    """Whether a target speaks of a cell: 64 instances, one worker."""
    shape = (cell["body_bytes"], cell["instances"], cell["workers"]) == (target.body_bytes, _TARGET_INSTANCES, 1)
    return shape and target.rate_rps in (None, cell["rate_rps"])


def _cautions(cells: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    late = max((cell[name]["late_p99_s"] or 0.0 for cell in cells for name in (ALONE, FLOOR, OURS)), default=0.0)
    if late > _LATE_S:
        yield f"the load generator was up to {late * 1e3:.0f} ms late (p99): the machine is busy, trust ratios alone"
    for cell in cells:
        yield from cell["failed_rounds"]
        kinds = {kind for name in (ALONE, FLOOR, OURS) for kind in cell[name]["errors_by_kind"]}
        if kinds:
            yield f"errors of {_size(cell['body_bytes'])}, {_rate(cell)}: {', '.join(sorted(kinds))}"


def _rate(cell: Mapping[str, Any]) -> str:
    return "as fast as it goes" if cell["rate_rps"] is None else f"{cell['rate_rps']:g}/s"


def _size(size_bytes: int) -> str:
    return f"{size_bytes / KIB:g} KiB" if size_bytes < KIB * KIB else f"{size_bytes / KIB / KIB:g} MiB"


def _us(value: float | None) -> str:
    return _shown(value, 1.0, ",.0f", " µs")


def _ms(value_s: float | None) -> str:
    return _shown(value_s, 1e3, ".2f", " ms")


def _shown(value: float | None, scale: float, form: str, unit: str) -> str:
    return "-" if value is None else f"{value * scale:{form}}{unit}"
