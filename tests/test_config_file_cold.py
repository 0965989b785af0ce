"""The configuration file's section on cold models: what it says, and what is told of a wrong one."""

from __future__ import annotations

from pathlib import Path

import pytest

from extproc.cli import main
from extproc.commands.deciding_arguments import awaited_for_at_most
from extproc.config_file.load import load_policy
from extproc.core.models.cold import ColdPolicy, ColdRule, Way
from extproc.errors import ConfigError

FULL = """
models: {listed: {context_tokens: 100}}
virtual_models: {auto: {models: [candidate]}}
aliases: {name: target, short: auto}
fallbacks: {first: [second]}
cold:
  default: {way: refuse, start_s: 200}
  models:
    big: {way: hold, start_s: 9}
    small: {way: redirect}
  hold_s: 15
  remember_s: 60
  most_held: 5
"""


def cold_of(tmp_path: Path, text: str) -> ColdPolicy | None:
    file = tmp_path / "extproc.yaml"
    file.write_text(text)
    return load_policy(file).cold


def test_a_model_has_the_default_rule_in_what_its_own_leaves_out(tmp_path: Path) -> None:
    """All models that the file names are known, and no name that only stands for others."""
    assert cold_of(tmp_path, FULL) == ColdPolicy(
        usual=ColdRule(way=Way.REFUSE, start_s=200.0),
        models={"big": ColdRule(way=Way.HOLD, start_s=9.0), "small": ColdRule(way=Way.REDIRECT, start_s=200.0)},
        known=frozenset({"listed", "candidate", "target", "first", "second"}),
        hold_s=15.0,
        remember_s=60.0,
        most_held=5,
    )


def test_without_the_section_no_model_is_cold_and_an_empty_one_turns_it_on(tmp_path: Path) -> None:
    """With defaults: fallbacks where there are, else a refusal."""
    assert cold_of(tmp_path, "priority_step: 2") is None
    assert cold_of(tmp_path, "cold: {}") == ColdPolicy()
    assert ColdPolicy().usual.way is Way.REDIRECT


@pytest.mark.parametrize(
    ("section", "told"),
    [
        ("{default: {way: wait}}", "wait"),
        ("{models: {m: {start_s: 0}}}", "start_s of cold m"),
        ("{hold_s: .inf}", "hold_s"),
        ("{hold_s: 0}", "hold_s"),
        ("{remember_s: -1}", "remember_s"),
        ("{most_held: -1}", "most_held"),
        ("{holds: 3}", "holds"),
    ],
)
def test_what_is_wrong_is_named_in_one_line(section: str, told: str, tmp_path: Path) -> None:
    """With the file."""
    with pytest.raises(ConfigError) as raised:
        cold_of(tmp_path, f"cold: {section}")
    assert told in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (["--intent-webhook", "scaler:80/x"], "must be a URL"),
        (["--intent-webhook", "http://[scaler"], "must be a URL"),
        (["--intent-webhook", "http://127.0.0.1:1/x"], "needs a configuration file with a section cold"),
        (["--intent-webhook", "http://h/x", "--intent-webhook-secret-file", "/nowhere"], "/nowhere"),
    ],
)
def test_a_webhook_that_cannot_be_used_is_refused_at_the_start(
    flags: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rather than that it is never told anything."""
    assert main(["serve", *flags]) == 2
    assert told in capsys.readouterr().err


def test_no_model_is_waited_for_longer_than_envoy_waits() -> None:
    """It ignores a wish for more time than it was told to grant, and goes on undecided."""
    assert awaited_for_at_most(None, 10.0) is None
    for longest_s, hold_s in ((10.0, 10.0), (60.0, 25.0)):
        rules = awaited_for_at_most(ColdPolicy(), longest_s)
        assert rules is not None
        assert rules.hold_s == hold_s
