"""Writes docs/monitoring/grafana.json from panels.yaml beside it: `python -m tests.monitoring.dashboard`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

FOLDER = Path(__file__).parents[2] / "docs/monitoring"
WIDTH, HEIGHT, STAT_HEIGHT = 24, 8, 4
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
_OF_FLEET = 'fleet=~"$fleet"'
_OF_ROUTER = f'{_OF_FLEET}, instance=~"$router"'


def dashboard() -> dict[str, Any]:
    """The dashboard as Grafana imports it. Its schema is that of Grafana 9, which later ones migrate."""
    described = yaml.safe_load((FOLDER / "panels.yaml").read_text())
    return {
        "uid": "extproc",
        "title": "extproc",
        "description": "Inference router for Envoy: traffic, predictions, fleet, autoscaler, control plane.",
        "tags": ["envoy", "extproc", "llm"],
        "schemaVersion": 36,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "timezone": "browser",
        "annotations": {"list": [_began()]},
        "links": [],
        "templating": {"list": _variables()},
        "panels": _placed(described["rows"]),
    }


def text() -> str:
    """The file's content."""
    return json.dumps(dashboard(), indent=1, ensure_ascii=False) + "\n"


def full(expr: str) -> str:
    """PromQL with the selectors for which `@@` and `@` stand."""
    return expr.replace("@@", _OF_FLEET).replace("@", _OF_ROUTER)


def _began() -> dict[str, Any]:
    """Marks on every graph: something began to be degraded."""
    return {
        "name": "Degraded",
        "datasource": _SOURCE,
        "enable": True,
        "iconColor": "orange",
        "expr": full("sum by (rung) (increase(extproc_degradations_total{@}[1m])) > 0"),
        "titleFormat": "{{rung}}",
    }


def _variables() -> list[dict[str, Any]]:
    source = {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus", "hide": 0}
    return [
        source,
        _variable("fleet", "Fleet", "label_values(extproc_build_info, fleet)"),
        _variable("router", "Router", 'label_values(extproc_degraded{fleet=~"$fleet"}, instance)'),
        _variable("instance", "Instance", full("label_values(extproc_in_flight{@}, exported_instance)")),
        _variable("model", "Model", full("label_values(extproc_routed_requests_total{@}, model)")),
    ]


def _variable(name: str, label: str, query: str) -> dict[str, Any]:
    """A choice of several values of a label; all of them also where the label is absent."""
    return {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": _SOURCE,
        "definition": query,
        "query": {"query": query, "refId": name},
        "refresh": 2,
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"selected": True, "text": ["All"], "value": ["$__all"]},
        "hide": 0,
    }


def _placed(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """All panels, from left to right and from top to bottom."""
    panels: list[dict[str, Any]] = []
    top = 0
    for row in rows:
        panels.append({"id": len(panels) + 1, "type": "row", "title": row["title"], "collapsed": False, "panels": []})
        panels[-1]["gridPos"] = {"x": 0, "y": top, "w": WIDTH, "h": 1}
        top += 1
        left = height = 0
        for described in row["panels"]:
            wide = described.get("wide", 8)
            high = STAT_HEIGHT if described.get("kind") == "stat" else HEIGHT
            if left + wide > WIDTH:
                left, top, height = 0, top + height, 0
            panels.append(_panel(len(panels) + 1, described))
            panels[-1]["gridPos"] = {"x": left, "y": top, "w": wide, "h": high}
            left, height = left + wide, max(height, high)
        top += height
    return panels


def _panel(number: int, described: dict[str, Any]) -> dict[str, Any]:
    kind = described.get("kind", "timeseries")
    return {
        "id": number,
        "type": kind,
        "title": described["title"],
        "description": described.get("description", ""),
        "datasource": _SOURCE,
        "fieldConfig": {"defaults": _look(kind, described), "overrides": []},
        "options": _options(kind),
        "targets": [
            {"refId": chr(ord("A") + index), "datasource": _SOURCE, "expr": full(expr), "legendFormat": legend or "all"}
            for index, (expr, legend) in enumerate(described["show"])
        ],
    }


def _look(kind: str, described: dict[str, Any]) -> dict[str, Any]:
    look: dict[str, Any] = {"unit": described["unit"]}
    if kind == "timeseries":
        stacking = {"mode": "normal" if described.get("stack") else "none", "group": "A"}
        look["custom"] = {
            "lineWidth": 1,
            "fillOpacity": 20 if described.get("stack") else 5,
            "showPoints": "never",
            "stacking": stacking,
        }
    if kind == "state-timeline":
        on = "orange" if described.get("alarm") else "blue"
        steps = [{"color": "transparent", "value": None}, {"color": on, "value": 1}]
        look |= {"color": {"mode": "thresholds"}, "thresholds": {"mode": "absolute", "steps": steps}}
    return look


def _options(kind: str) -> dict[str, Any]:
    match kind:
        case "stat":
            return {"reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False}, "graphMode": "area"}
        case "state-timeline":
            return {"showValue": "never", "legend": {"displayMode": "list", "placement": "bottom"}}
    return {
        "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
        "tooltip": {"mode": "multi", "sort": "desc"},
    }


if __name__ == "__main__":
    (FOLDER / "grafana.json").write_text(text())
