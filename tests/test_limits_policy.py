"""The section `limits` of a configuration file: what it says in the core's values, and what is told of a wrong one."""

from __future__ import annotations

from math import inf
from pathlib import Path

import pytest

from extproc.cli import main
from extproc.config_file.load import load_policy
from extproc.core.limits.rules import EACH, Limits, OnLoss, Rule

FULL = """
limits:
  on_loss: refuse
  budget_ms: 20
  tenants: {acme: [d1, d2], umbrella: [d3]}
  rules:
    - {tenants: "*", requests_per_minute: 60, tokens_per_minute: 100000, token_burst: 20000}
    - {tenants: [acme], requests_per_minute: unlimited, concurrent: 20}
    - {models: [llama-70b, llama-8b], concurrent: 64}
    - {requests_per_minute: 0.5, request_burst: 3}
"""


def loaded(folder: Path, text: str) -> Limits:
    file = folder / "extproc.yaml"
    file.write_text(text)
    return load_policy(file).limits


def test_a_section_says_whom_it_limits_to_what(tmp_path: Path) -> None:
    """Names in lists, "*" for each, left out for all together."""
    assert loaded(tmp_path, FULL) == Limits(
        rules=(
            Rule(tenants=EACH, requests_per_minute=60, tokens_per_minute=100_000, token_burst=20_000),
            Rule(tenants=frozenset({"acme"}), requests_per_minute=inf, concurrent=20),
            Rule(models=frozenset({"llama-70b", "llama-8b"}), concurrent=64),
            Rule(requests_per_minute=0.5, request_burst=3),
        ),
        on_loss=OnLoss.REFUSE,
        budget_s=0.02,
        names={"d1": "acme", "d2": "acme", "d3": "umbrella"},
    )


def test_without_a_section_nothing_is_limited(tmp_path: Path) -> None:
    """And by default a lost Redis stops nobody."""
    assert loaded(tmp_path, "{}") == Limits()
    assert Limits().on_loss is OnLoss.ALLOW


@pytest.mark.parametrize(
    ("section", "told"),
    [
        ("{rules: [{tenants: [a]}]}", "rule 1: it limits nothing"),
        ("{rules: [{concurrent: 1}, {tenants: a, concurrent: 1}]}", "rule 2: tenants must be a list"),
        ("{rules: [{tenants: [], concurrent: 1}]}", "tenants must be a list"),
        ('{rules: [{models: [a, "*"], concurrent: 1}]}', "models must be a list"),
        ("{rules: [{concurrent: 0}]}", "concurrent must be a number of more than 0, or unlimited"),
        ("{rules: [{requests_per_minute: -1}]}", "requests_per_minute must be"),
        ("{rules: [{tokens_per_minute: .inf}]}", "tokens_per_minute must be"),
        ("{rules: [{tokens_per_minute: .nan}]}", "tokens_per_minute must be"),
        ("{rules: [{concurrent: 1%s}]}" % ("0" * 400), "concurrent must be"),
        ("{rules: [{requests_per_minute: 1, request_burst: 1%s}]}" % ("0" * 400), "request_burst must be"),
        ("{rules: [{requests_per_minute: 1.0e-300}]}", "requests_per_minute: a burst would take more than 95 years"),
        ("{rules: [{tokens_per_minute: 1, token_burst: 1000000000}]}", "a burst would take more than 95 years"),
        ("{rules: [{tokens_per_minute: endless}]}", "tokens_per_minute must be"),
        ("{rules: [{tokens_per_minute: 1, token_burst: 0}]}", "token_burst must be 1 or more"),
        ("{rules: [{tokens_per_minute: 1, request_burst: 1}]}", "request_burst must be 1 or more, and needs requests_"),
        ("{rules: [{tokens_per_minute: unlimited, token_burst: 1}]}", "token_burst must be"),
        ("{rules: [{concurrent: 1}, {concurrent: 2}]}", "limits: two rules limit the concurrent of all tenants"),
        ("{tenants: {a: [x], b: [x]}}", "x is both a and b"),
        ("{on_loss: panic}", "limits.on_loss: must be one of"),
        ("{budget_ms: 0}", "budget_ms must be more than 0, and 200 at the most"),
        ("{budget_ms: 250}", "budget_ms must be"),
        ("{rules: [{rpm: 1}]}", "limits.rules[0].rpm: unknown key"),
        ("{rules: [{tenants: [a], concurrent: 1}]}", "limits of tenants need --tenant-header"),
    ],
)
def test_a_wrong_section_is_one_line_and_status_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], section: str, told: str
) -> None:
    """By the command, before it listens anywhere."""
    file = tmp_path / "extproc.yaml"
    file.write_text(f"limits: {section}")
    assert main(["serve", "--config", str(file), "--listen", "127.0.0.1:0"]) == 2
    error = capsys.readouterr().err
    assert told in error
    assert error.count("\n") == 1
