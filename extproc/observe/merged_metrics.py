"""Makes one metrics page of the pages of several workers, as one process that does all their work would show it.

Counters and histograms are summed, and never fall when a worker dies, or drops a series that others have: a falling sum
would look like a restart of the service, and Prometheus would count all of it anew. Gauges are a worker's own and get a
label `worker`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from enum import Enum, auto
from math import inf

# Counted by engines, not by us: each worker tells the same.
_ENGINES_OWN = "extproc_engine_"

MOST_GONE = 1024
"""Series of a metric that are kept though no worker tells them any more; beyond, those that went first go for good."""
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


class _Way(Enum):
    SUM = auto()
    MOST = auto()  # of what all tell alike, some a little later than others
    LEAST = auto()
    EACH = auto()


@dataclass(slots=True)
class _Family:
    """Lines of one metric: what is said of it, and its samples by name and labels as they are written."""

    head: list[str] = field(default_factory=list)
    way: _Way = _Way.EACH
    samples: dict[str, float] = field(default_factory=dict)


_Page = dict[str, _Family]


class MergedMetrics:
    """The latest page of each worker, and what was counted by those that have ended and in series that were dropped."""

    def __init__(self, most_gone: int = MOST_GONE) -> None:
        self._most_gone = most_gone
        self._pages: dict[int, _Page] = {}
        self._ended: _Page = {}

    def take(self, worker: int, page: bytes) -> None:
        """A worker has shown its page, in Prometheus' text format."""
        before, self._pages[worker] = self._pages.get(worker, {}), _read(page)
        self._keep(before, self._pages[worker])

    def end(self, worker: int) -> None:
        """A worker has died; what it had counted when it was last asked stays."""
        self._keep(self._pages.pop(worker, {}), {})

    def _keep(self, before: _Page, after: _Page) -> None:
        """Keep what was counted in samples that are gone, or began anew."""
        for name, family in before.items():
            if family.way is not _Way.SUM:
                continue
            told = after[name].samples if name in after else {}
            gone = {sample: value for sample, value in family.samples.items() if told.get(sample, -inf) < value}
            if gone:
                kept = self._ended.setdefault(name, _Family(family.head, family.way)).samples
                for sample, value in gone.items():
                    kept[sample] = kept.pop(sample, 0.0) + value
                self._bound(name, kept)

    def _bound(self, name: str, kept: dict[str, float]) -> None:
        """Drop the series that went first of those that no worker tells, if they are too many.

        A sum of which a worker has its part must not fall; what returns when all of it was dropped began anew.
        """
        if len(kept) <= self._most_gone:
            return
        told = [page[name].samples for page in self._pages.values() if name in page]
        gone: dict[frozenset[tuple[str, str]], list[str]] = {}
        for sample in kept:
            if not any(sample in samples for samples in told):
                gone.setdefault(_series(sample), []).append(sample)
        for samples in list(gone.values())[: max(0, len(gone) - self._most_gone)]:
            for sample in samples:
                del kept[sample]

    def page(self, answering: Collection[int]) -> bytes:
        """One page of all. Of workers that do not answer now, counters count as they last told them."""
        merged: _Page = {}
        for name, family in self._ended.items():
            merged[name] = _Family(family.head, family.way, dict(family.samples))
        for worker, page in sorted(self._pages.items()):
            for name, family in page.items():
                if family.way is not _Way.EACH or worker in answering:
                    _add(merged.setdefault(name, _Family(family.head, family.way)), family, worker)
        return "".join(_written(merged)).encode()


def _add(into: _Family, family: _Family, worker: int) -> None:
    for sample, value in family.samples.items():
        match family.way:
            case _Way.SUM:
                into.samples[sample] = into.samples.get(sample, 0.0) + value
            case _Way.MOST:
                into.samples[sample] = max(into.samples.get(sample, value), value)
            case _Way.LEAST:
                into.samples[sample] = min(into.samples.get(sample, value), value)
            case _Way.EACH:
                name, brace, labels = sample.partition("{")
                rest = f",{labels}" if brace else "}"
                into.samples[f'{name}{{worker="{worker}"{rest}'] = value


def _series(sample: str) -> frozenset[tuple[str, str]]:
    """Labels of the series that a sample is of: all buckets of a histogram are of one."""
    return frozenset((label, value) for label, value in _LABEL.findall(sample) if label != "le")


def _read(page: bytes) -> _Page:
    families: _Page = {}
    family = _Family()
    for line in page.decode().split("\n"):  # names in labels may hold what else ends lines elsewhere
        if line.startswith("# HELP "):
            family = families.setdefault(line.split(" ", 3)[2], _Family())
            family.head.append(line)
        elif line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ", 3)
            family = families.setdefault(name, family)
            family.head.append(line)
            family.way = _way(name, kind)
        elif line:
            sample, _, value = line.rpartition(" ")
            family.samples[sample] = float(value)
    return families


def _way(name: str, kind: str) -> _Way:
    if name.endswith("_created"):  # when a counter began: the first one's beginning is that of the sum
        return _Way.LEAST
    if kind not in ("counter", "histogram", "summary"):
        return _Way.EACH
    return _Way.MOST if name.startswith(_ENGINES_OWN) else _Way.SUM


def _written(page: _Page) -> Iterator[str]:
    for family in page.values():
        for line in family.head:
            yield f"{line}\n"
        for sample, value in family.samples.items():
            yield f"{sample} {value!r}\n" if value - value == 0.0 else f"{sample} {_odd(value)}\n"


def _odd(value: float) -> str:
    return "NaN" if value != value else "+Inf" if value > 0 else "-Inf"  # noqa: PLR0124 - what NaN is
