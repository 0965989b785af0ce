"""Names, selectors and labels of PromQL expressions, as far as regular expressions find them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache

from tests.observe.documented import PAGES, Described, described

# Labels that a scrape adds, and what workers' pages add to gauges.
ADDED = frozenset({"job", "instance", "fleet", "worker", "le"})
# The only functions and words that dashboard and alerts use.
WORDS = frozenset(
    "absent and avg by count group_left histogram_quantile increase max min min_over_time on or rate sum time unless "
    "vector".split()
)
_FUNCTION = re.compile(r"\b([a-z_]+)\s*(?=\()")
_SELECTOR = re.compile(r"\b([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{([^}]*)\})?")
_MATCHER = re.compile(r'([a-z_]+)\s*(=~|!~|!=|=)\s*"((?:[^"\\]|\\.)*)"')
_GROUPING = re.compile(r"\b(?:by|on|group_left)\s*\(([^)]*)\)")
_PAIRS = {")": "(", "}": "{", "]": "["}


@cache
def known() -> dict[str, Described]:
    """Every metric of every program, by the names of its samples: histograms have three."""
    metrics: dict[str, Described] = {}
    for program in PAGES:
        for name, metric in described(program).items():
            ends = ("_bucket", "_sum", "_count") if metric.kind == "histogram" else ("",)
            metrics |= {f"{name}{end}": metric for end in ends}
    return metrics


def selectors(expr: str) -> Iterator[tuple[str, list[tuple[str, str, str]]]]:
    """Each metric that is read, with its matchers: label, operator, value."""
    bare = _GROUPING.sub(" ", expr)
    for found in _SELECTOR.finditer(re.sub(r"\[[^\]]*\]", "", bare)):
        name, matchers = found.group(1), found.group(2) or ""
        if name not in WORDS and not name.isdigit():
            yield name, _MATCHER.findall(matchers)


def grouped(expr: str) -> set[str]:
    """Labels that are aggregated or joined by."""
    return {label.strip() for labels in _GROUPING.findall(expr) for label in labels.split(",") if label.strip()}


def faults(expr: str, recorded: frozenset[str] = frozenset()) -> list[str]:
    """What is wrong with an expression. `recorded`: names of recording rules."""
    wrong = [f"unknown function {name}" for name in _FUNCTION.findall(expr) if name not in WORDS]
    open_ones: list[str] = []
    for sign in re.sub(r'"(?:[^"\\]|\\.)*"', '""', expr):
        if sign in _PAIRS.values():
            open_ones.append(sign)
        elif sign in _PAIRS and (not open_ones or open_ones.pop() != _PAIRS[sign]):
            wrong.append(f"{sign} closes nothing")
    wrong += [f"{sign} is not closed" for sign in open_ones]
    metrics, labels = known(), set(ADDED)
    for name, matchers in selectors(expr):
        if name in ("up", "ALERTS"):
            labels |= {"alertname", "alertstate"}
        elif name in recorded:
            labels |= {"model"}
        elif name not in metrics:
            wrong.append(f"unknown metric {name}")
        else:
            has = {"exported_instance" if label == "instance" else label for label in metrics[name].labels}
            labels |= has
            wrong += [f"{name} has no label {label}" for label, _, _ in matchers if label not in has | ADDED]
            needs_rate = metrics[name].kind != "gauge"
            if needs_rate and not re.search(rf"(rate|increase)\({re.escape(name)}\b", expr):
                wrong.append(f"{name} grows for ever and is shown without a rate")
    return wrong + [f"nothing here has a label {label}" for label in grouped(expr) - labels]
