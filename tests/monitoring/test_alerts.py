"""Alerts ask for metrics that exist, say what to do, and fire when they should."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from extproc.core.fleet.degradation import Rung
from extproc.core.values.decision import Reason
from tests.monitoring.dashboard import FOLDER
from tests.monitoring.promql import faults, selectors
from tests.observe.documented import DOCS

ROOT = DOCS.parent
RULES = [rule for group in yaml.safe_load((FOLDER / "alerts.yaml").read_text())["groups"] for rule in group["rules"]]
ALERTS: dict[str, dict[str, Any]] = {rule["alert"]: rule for rule in RULES if "alert" in rule}
RECORDED = frozenset(rule["record"] for rule in RULES if "record" in rule)

promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool is no dependency: it is in Debian's package prometheus"
)


def run_promtool(*arguments: str | Path) -> str:
    """What it prints. Fails the test if promtool finds fault."""
    done = subprocess.run(["promtool", *map(str, arguments)], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_every_rule_has_a_name_of_its_own() -> None:
    assert len(ALERTS) + len(RECORDED) == len(RULES)


@pytest.mark.parametrize("name", ALERTS)
def test_an_alert_says_how_bad_it_is_what_it_means_and_what_to_do(name: str) -> None:
    alert = ALERTS[name]
    assert re.fullmatch(r"Extproc[A-Z]\w+", name)
    assert re.fullmatch(r"[1-9]\d*m", alert["for"])
    assert alert["labels"] in [{"severity": severity} for severity in ("critical", "warning", "info")]
    assert set(alert["annotations"]) == {"summary", "description", "runbook_url"}
    assert len(alert["annotations"]["summary"]) < 120
    assert alert["annotations"]["description"].endswith(".")
    assert alert["annotations"]["runbook_url"] == f"docs/monitoring.md#{name.lower()}"


@pytest.mark.parametrize("name", ALERTS)
def test_an_alert_asks_for_metrics_and_names_labels_that_exist(name: str) -> None:
    alert = ALERTS[name]
    assert faults(alert["expr"], RECORDED) == []
    kept = set(re.findall(r"\$labels\.(\w+)", json.dumps(alert["annotations"])))
    grouping = re.search(r"\bby \(([^)]*)\)", alert["expr"])
    if grouping is not None:
        assert kept <= set(re.split(r"[, ]+", grouping[1]))


@pytest.mark.parametrize("rule", [rule for rule in RULES if "record" in rule], ids=lambda rule: str(rule["record"]))
def test_a_recorded_rate_asks_for_metrics_that_exist(rule: dict[str, str]) -> None:
    assert faults(rule["expr"], RECORDED) == []
    assert re.fullmatch(r"extproc:[a-z_]+:[a-z]+\d+[mh]", rule["record"])


def test_reasons_and_rungs_are_those_of_the_code() -> None:
    for alert in ALERTS.values():
        for _, matchers in selectors(alert["expr"]):
            for label, operator, value in matchers:
                if label == "rung":
                    assert set(value.split("|")) <= set(Rung)
                if label == "reason" and operator == "=~":
                    assert set(value.split("|")) <= set(Reason)


def test_the_runbook_has_a_section_for_every_alert() -> None:
    sections = re.findall(r"^#### (Extproc\w+)$", (DOCS / "monitoring.md").read_text(), re.MULTILINE)
    assert sections == list(ALERTS)


def test_every_alert_has_a_test() -> None:
    tests = (FOLDER / "alerts_test.yaml").read_text()
    untested = [name for name in ALERTS if f'ALERTS{{alertname="{name}", alertstate="firing"}}' not in tests]
    assert untested == []


@promtool
def test_prometheus_takes_the_rules_and_alerts_fire_when_they_should() -> None:
    assert f"{len(RULES)} rules found" in run_promtool("check", "rules", FOLDER / "alerts.yaml")
    run_promtool("test", "rules", FOLDER / "alerts_test.yaml")


@promtool
def test_prometheus_understands_every_query_of_the_dashboard(tmp_path: Path) -> None:
    """As rules, in which variables stand for something."""
    board = json.loads((FOLDER / "grafana.json").read_text())
    queries = {target["expr"] for panel in board["panels"] for target in panel.get("targets", ())}
    rules = [
        {"record": f"query:{number}", "expr": query.replace("$__rate_interval", "1m")}
        for number, query in enumerate(sorted(queries))
    ]
    path = tmp_path / "queries.yaml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "queries", "rules": rules}]}))
    assert f"{len(queries)} rules found" in run_promtool("check", "rules", path)


@promtool
def test_prometheus_takes_the_configuration_of_the_compose_file(tmp_path: Path) -> None:
    """With the rules where docker-compose.yml mounts them."""
    (tmp_path / "prometheus.yml").write_text((ROOT / "envoy/prometheus.yml").read_text())
    (tmp_path / "rules").mkdir()
    shutil.copy(FOLDER / "alerts.yaml", tmp_path / "rules")
    shown = run_promtool("check", "config", tmp_path / "prometheus.yml")
    assert f"{len(RULES)} rules found" in shown
