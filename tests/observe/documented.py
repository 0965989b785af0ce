"""Metrics as pages show them and as the docs' tables describe them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

DOCS = Path(__file__).parents[2] / "docs"
PAGES = {"service": "metrics.md", "xds": "xds.md", "autoscale": "autoscale.md"}
_EVERYWHERE = re.compile(r"process_|extproc_build_info")  # described in metrics.md alone


@dataclass(frozen=True)
class Described:
    """One metric: a counter's name ends in `_total`, a histogram's has no suffix."""

    kind: str
    labels: frozenset[str]


def described(program: str) -> dict[str, Described]:
    """The metrics of one program's page, by the tables of its doc."""
    tables = _table(DOCS / PAGES[program])
    common = {name: told for name, told in _table(DOCS / PAGES["service"]).items() if _EVERYWHERE.match(name)}
    return common | tables


def _table(path: Path) -> dict[str, Described]:
    known: dict[str, Described] = {}
    inside = False
    for line in path.read_text().splitlines():
        inside = line.startswith("| metric |") or (inside and line.startswith("|"))
        if not inside or not line.startswith("| `"):
            continue
        names, kind, labels = (cell.strip() for cell in line.strip("|").split("|")[:3])
        words = re.sub(r"\([^)]*\)", "", labels)  # in brackets stand their values
        for name in re.findall(r"`([a-z_]+)`", names):
            assert name not in known, f"{name} is described twice"
            known[name] = Described(kind, frozenset(re.findall(r"`([a-z_]+)`", words)))
    return known


def shown(page: str) -> dict[str, Described]:
    """The metrics of a page. Labels are those of the samples that it has."""
    known = {}
    for family in text_string_to_metric_families(page):
        name = f"{family.name}_total" if family.type == "counter" else family.name
        labels = {label for sample in family.samples for label in sample.labels} - {"le"}
        # The same of each worker is no metric of its own.
        kind = "histogram" if family.type == "unknown" else family.type
        if not (family.type == "gauge" and family.name.endswith("_created")):
            known[name] = Described(kind, frozenset(labels))
    return known


def undescribed(page: str, program: str, besides: Iterable[str] = ()) -> list[str]:
    """What a real page shows and its doc does not tell, or tells otherwise; `besides`: labels of all metrics."""
    known, allowed = described(program), frozenset(besides)
    return [
        f"{name} is a {metric.kind} with labels {sorted(metric.labels)}"
        for name, metric in shown(page).items()
        if name not in known or known[name].kind != metric.kind or not metric.labels - allowed <= known[name].labels
    ]
