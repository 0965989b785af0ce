"""The Grafana dashboard can be imported, asks for metrics that exist, and shows all of them."""

from __future__ import annotations

import json
import re
from itertools import combinations
from typing import Any

import jsonschema
import pytest

from tests.monitoring.dashboard import FOLDER, WIDTH, text
from tests.monitoring.promql import faults, known, selectors

BOARD = json.loads((FOLDER / "grafana.json").read_text())
PANELS = [panel for panel in BOARD["panels"] if panel["type"] != "row"]
EXPRESSIONS = [(panel["title"], target["expr"]) for panel in PANELS for target in panel["targets"]]

# https://github.com/grafana/grafana/blob/main/packages/grafana-data/src/valueFormats/categories.ts has all units.
UNITS = ["s", "short", "none", "percentunit", "reqps", "cps", "ops", "bytes", "dateTimeFromNow"]
_TEXT = {"type": "string", "minLength": 1}
_PLACE = {
    "type": "object",
    "required": ["x", "y", "w", "h"],
    "properties": {"w": {"minimum": 3, "maximum": WIDTH}, "h": {"minimum": 1, "maximum": 20}, "x": {"minimum": 0}},
    "additionalProperties": {"type": "integer", "minimum": 0},
}
_SOURCE = {"const": {"type": "prometheus", "uid": "${datasource}"}}
_ROW = {
    "required": ["id", "title", "gridPos", "collapsed", "panels"],
    "properties": {"type": {"const": "row"}, "title": _TEXT, "gridPos": _PLACE, "panels": {"maxItems": 0}},
}
_PANEL = {
    "required": ["id", "title", "gridPos", "datasource", "fieldConfig", "options", "targets"],
    "properties": {
        "type": {"enum": ["timeseries", "stat", "state-timeline"]},
        "title": _TEXT,
        "gridPos": _PLACE,
        "datasource": _SOURCE,
        "fieldConfig": {
            "required": ["defaults", "overrides"],
            "properties": {"defaults": {"required": ["unit"], "properties": {"unit": {"enum": UNITS}}}},
        },
        "targets": {
            "minItems": 1,
            "items": {
                "required": ["refId", "datasource", "expr", "legendFormat"],
                "properties": {"refId": {"pattern": "^[A-Z]$"}, "expr": _TEXT, "legendFormat": _TEXT},
            },
        },
    },
}  # fmt: skip
SCHEMA = {
    "type": "object",
    "required": ["uid", "title", "schemaVersion", "panels", "templating", "time"],
    "properties": {
        "id": False,  # an import that names one overwrites whatever has it
        "schemaVersion": {"type": "integer", "minimum": 36},
        "panels": {
            "minItems": 1,
            "items": {"type": "object", "required": ["type"], "oneOf": [_ROW, _PANEL]},
        },
    },
}


def test_the_file_is_what_its_description_says() -> None:
    """After a change of panels.yaml: `python -m tests.monitoring.dashboard`."""
    assert (FOLDER / "grafana.json").read_text() == text()


def test_it_has_the_shape_that_grafana_imports() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    jsonschema.validate(BOARD, SCHEMA)


def test_panels_have_numbers_and_places_of_their_own() -> None:
    numbers = [panel["id"] for panel in BOARD["panels"]]
    assert len(set(numbers)) == len(numbers)
    for one, other in combinations([panel["gridPos"] for panel in BOARD["panels"]], 2):
        beside = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        above = one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
        assert beside or above, (one, other)
    assert all(panel["gridPos"]["x"] + panel["gridPos"]["w"] <= WIDTH for panel in BOARD["panels"])


def test_titles_are_told_apart_within_a_row_and_queries_within_a_panel() -> None:
    row: set[str] = set()
    for panel in BOARD["panels"]:
        if panel["type"] == "row":
            row = set()
            continue
        assert panel["title"] not in row
        row.add(panel["title"])
        names = [target["refId"] for target in panel["targets"]]
        assert len(set(names)) == len(names)


def test_its_variables_are_those_that_it_uses() -> None:
    variables: dict[str, Any] = {each["name"]: each for each in BOARD["templating"]["list"]}
    assert list(variables) == ["datasource", "fleet", "router", "instance", "model"]
    assert variables["datasource"]["type"] == "datasource"
    used = set(re.findall(r"\$\{?([a-z]+)", json.dumps(BOARD["panels"])))
    assert used == set(variables)
    for name in ("fleet", "router", "instance", "model"):
        assert variables[name]["allValue"] == ".*"  # also where no target has a label fleet


def test_panels_ask_for_metrics_and_labels_that_exist() -> None:
    assert {expr: found for _, expr in EXPRESSIONS if (found := faults(expr))} == {}


def test_rates_follow_the_resolution_of_the_graph() -> None:
    for title, expr in EXPRESSIONS:
        assert set(re.findall(r"\[(.*?)\]", expr)) <= {"$__rate_interval"}, title


def test_legends_name_labels_that_their_queries_keep() -> None:
    for panel in PANELS:
        for target in panel["targets"]:
            for label in re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]):
                assert re.search(rf"\bby \([^)]*\b{label}\b", target["expr"]), (panel["title"], label)


def test_every_metric_is_shown() -> None:
    """Sums of histograms and what tells nothing to an operator aside."""
    read = {name for _, expr in EXPRESSIONS for name, _ in selectors(expr)}
    left_out = {"process_virtual_memory_bytes", "process_start_time_seconds"}
    unseen = {name for name in known() if not name.endswith(("_sum", "_count"))} - read - left_out
    assert unseen == set()


@pytest.mark.parametrize(
    ("expr", "fault"),
    [
        ("sum(rate(extproc_requests_total[5m])", "( is not closed"),
        ("sum(rate(extproc_request_total[5m]))", "unknown metric extproc_request_total"),
        ("summ(rate(extproc_requests_total[5m]))", "unknown function summ"),
        ("sum(extproc_requests_total)", "extproc_requests_total grows for ever and is shown without a rate"),
        ('sum(rate(extproc_requests_total{model="m"}[5m]))', "extproc_requests_total has no label model"),
        ("sum by (model) (rate(extproc_requests_total[5m]))", "nothing here has a label model"),
    ],
)
def test_a_wrong_expression_is_seen(expr: str, fault: str) -> None:
    """What the tests above would not see, they would not test."""
    assert fault in faults(expr)
