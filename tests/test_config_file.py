"""The operator's configuration file: what it changes, what stays, and what is told of a wrong one."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from extproc.cli import main
from extproc.config_file.load import File, OperatorPolicy, load_policy
from extproc.core.admission.admission import DEFAULT_HOLD_S, Admission
from extproc.core.fleet.zones import UNLISTED, Crossing
from extproc.core.pricing.classes import DEFAULT_CLASSES
from extproc.core.pricing.slo import Slo
from extproc.core.values.request import RequestClass
from extproc.errors import ConfigError

FULL = """
own_zone: eu-1a
crossings:
  - {between: [eu-1a, eu-1b], rtt_ms: 0.8, price_per_gb: 0.02}
  - {between: [us-1a, eu-1a], rtt_ms: 80, bytes_s: 1.0e+8}
unlisted: {rtt_ms: 30}
classes:
  batch: {completion: 0.05, value_per_hour: 0.5}
  interactive: {slo: {ttft_s: 1.0}}
priority_step: 2
priority_span: 3
"""


def policy_of(tmp_path: Path, text: str) -> OperatorPolicy:
    file = tmp_path / "extproc.yaml"
    file.write_text(text)
    return load_policy(file)


def test_a_file_changes_what_it_names_field_by_field(tmp_path: Path) -> None:
    """The rest keeps its default."""
    policy = policy_of(tmp_path, FULL)
    assert policy.zones.to("eu-1b") == Crossing(rtt_s=0.0008, price_per_gb=0.02)
    assert policy.zones.to("us-1a") == Crossing(rtt_s=0.08, bytes_s=1e8)
    assert policy.zones.to("ap-1a") == Crossing(rtt_s=0.03)
    batch, usual = policy.classes.classes[RequestClass.BATCH], DEFAULT_CLASSES[RequestClass.BATCH]
    assert (batch.completion, batch.value_per_hour, batch.ttft, batch.harm) == (0.05, 0.5, usual.ttft, usual.harm)
    interactive = DEFAULT_CLASSES[RequestClass.INTERACTIVE]
    slo = policy.classes.classes[RequestClass.INTERACTIVE].slo
    assert slo == Slo(ttft_s=1.0, tpot_s=interactive.slo.tpot_s)
    assert (policy.classes.priority_step, policy.classes.priority_span) == (2.0, 3)


def test_an_empty_mapping_is_the_default(tmp_path: Path) -> None:
    """One zone, and the classes as they are."""
    policy = policy_of(tmp_path, "{}")
    assert policy == OperatorPolicy()
    assert policy.zones.unlisted == UNLISTED


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("zone: a", "zone: unknown key"),
        ("crossings: [{between: [a, a], rtt_ms: 1}]", "two different zones"),
        ("crossings: [{between: [a, b], rtt_ms: 1}, {between: [b, a], rtt_ms: 2}]", "each pair once"),
        ("crossings: [{between: [a, b, c], rtt_ms: 1}]", "crossings[0].between: must be a list of 2"),
        ("crossings: [{between: [a, b], rtt_ms: -1}]", "rtt_ms must be 0 or more"),
        ("unlisted: {rtt_ms: .nan}", "rtt_ms must be 0 or more"),
        ("unlisted: {rtt_ms: 1, bytes_s: 0}", "bytes_s must be more than 0"),
        ("classes: {slow: {ttft: 1}}", "classes.slow: the key must be one of interactive"),
        ("classes: {batch: {tfft: 1}}", "classes.batch.tfft: unknown key; did you mean ttft?"),
        ("classes: {batch: {ttft: fast}}", "classes.batch.ttft: must be a number (in standard seconds), not 'fast'"),
        ("classes: {batch: {ttft: -1}}", "ttft of batch must be 0 or more"),
        ("classes: {batch: {ttft: null}}", "classes.batch.ttft: must be a number (in standard seconds), not None"),
        ("classes: {batch: {slo: 3}}", "classes.batch.slo: must be a mapping"),
        ("classes: {batch: {slo: {e2e: 3}}}", "classes.batch.slo.e2e: unknown key"),
        ("priority_step: 0.5", "priority_step must be 1 or more"),
    ],
)
def test_a_wrong_file_is_one_line_and_status_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, told: str
) -> None:
    """By the command, before it listens anywhere."""
    file = tmp_path / "extproc.yaml"
    file.write_text(text)
    assert main(["serve", "--config", str(file), "--listen", "127.0.0.1:0"]) == 2
    error = capsys.readouterr().err
    assert told in error
    assert error.count("\n") == 1


def test_admission_is_off_until_its_section_stands_there(tmp_path: Path) -> None:
    """An empty one is enough; what it leaves out keeps its default."""
    assert policy_of(tmp_path, FULL).admission is None
    assert policy_of(tmp_path, "admission: {}").admission == Admission()
    text = "admission: {max_held_requests: 7, max_hold_s: {batch: 5}, tenant_weights: {gold: 4}, share_ramp: 0.2}"
    rules = policy_of(tmp_path, text).admission
    assert rules is not None
    assert (rules.max_held_requests, rules.share_ramp, rules.weight("gold"), rules.weight("x")) == (7, 0.2, 4.0, 1.0)
    assert rules.max_hold_s == {**DEFAULT_HOLD_S, RequestClass.BATCH: 5.0}


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("admission: {held: 1}", "held"),
        ("admission: {tpot_share: 2}", "tpot_share must be"),
        ("admission: {share_ramp: 0}", "share_ramp must be"),
        ("admission: {max_hold_s: {interactive: -1}}", "max_hold_s of interactive"),
        ("admission: {tenant_weights: {gold: 0}}", "weight of gold"),
    ],
)
def test_what_is_wrong_with_admission_is_named(tmp_path: Path, text: str, line: str) -> None:
    """In one line, with the file."""
    with pytest.raises(ConfigError, match=line):
        policy_of(tmp_path, text)


ROOT = Path(__file__).parents[1]
SECTIONS = re.compile(r"^(?:" + "|".join(section.name for section in msgspec.structs.fields(File)) + "):", re.M)
EXAMPLES = [
    pytest.param(text, id=f"{page.name}-{number}")
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
    for number, text in enumerate(re.findall(r"```yaml\n(.*?)```", page.read_text(), re.S))
    if SECTIONS.search(text)
]


@pytest.mark.parametrize("text", EXAMPLES)
def test_each_example_in_the_documentation_is_a_config_file(text: str, tmp_path: Path) -> None:
    """As it stands there."""
    file = tmp_path / "extproc.yaml"
    file.write_text(text)
    assert load_policy(file) != OperatorPolicy()
    assert main(["config", "check", str(file)]) == 0
    assert main(["config", "check", "--config", str(file)]) == 0


def test_the_documentation_has_examples_of_every_section() -> None:
    """So that none is left out by the pattern that finds them."""
    found = {name.rstrip(":") for param in EXAMPLES for name in SECTIONS.findall(str(param.values[0]))}
    assert {"admission", "aliases", "classes", "cold", "crossings", "fallbacks", "limits", "models"} <= found


def test_what_aliases_stand_for_is_not_written_out(tmp_path: Path) -> None:
    """Eight lists of eight lists of eight …: sixteen million texts in ten lines."""
    lists = ", ".join(f"&a{n} [{', '.join([f'*a{n - 1}' if n else 'x'] * 8)}]" for n in range(8))
    path = tmp_path / "extproc.yaml"
    path.write_text(f"admission:\n  max_hold_s: [{lists}]\n", encoding="utf-8")
    with pytest.raises(ConfigError) as raised:
        load_policy(path)
    assert len(str(raised.value)) < 2_000
