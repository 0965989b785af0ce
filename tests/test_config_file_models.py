"""Models, virtual models, aliases and fallbacks in the operator's configuration file."""

from __future__ import annotations

from pathlib import Path

import pytest

from extproc.cli import main
from extproc.config_file.load import load_policy
from extproc.core.models.virtual import Aim, ModelPolicy
from extproc.core.values.instance import Capability
from extproc.errors import ConfigError

FULL = """
quality_tiers: [basic, good, best]
models:
  small: {quality: basic, input_price: 0.05, output_price: 0.08, context_tokens: 32768, capabilities: [tools]}
  big: {quality: 2.5, input_price: 0.6, output_price: 0.8, tenants: [search]}
virtual_models:
  auto:
    models: [small, big]
    tier_s: 1.5
    rules:
      - {name: code, when: {code: true, headers: {X-Task: [review, fix*]}}, models: [big]}
      - {when: {min_input_tokens: 8000, languages: [de], scripts: [latin]}, min_quality: good, max_cost: 0.01}
  chat-fast: {split: {small: 95, small-next: 5}, tenants: [search, mail]}
aliases: {gpt-4o-mini: auto, tiny: small}
fallbacks: {big: [small], auto: [spare]}
context_window_fallbacks: {small: [big]}
"""


def models_of(tmp_path: Path, text: str) -> ModelPolicy:
    file = tmp_path / "extproc.yaml"
    file.write_text(text)
    return load_policy(file).models


def test_all_sections_reach_the_core(tmp_path: Path) -> None:
    """Names of tiers become numbers, headers are in lower case, rules without a name get one."""
    policy = models_of(tmp_path, FULL)
    assert policy.models["small"].quality == 1.0
    assert policy.models["small"].capabilities == frozenset({Capability.TOOLS})
    assert policy.models["big"].tenants == frozenset({"search"})
    auto = policy.virtual["auto"]
    assert auto.aim == Aim(tier_s=1.5)
    assert [rule.name for rule in auto.rules] == ["code", "rule 2"]
    assert auto.rules[0].when.headers == {"x-task": ("review", "fix*")}
    assert auto.rules[1].aim == Aim(min_quality=2.0, max_cost=0.01)
    assert policy.virtual["chat-fast"].split == {"small": 95.0, "small-next": 5.0}
    assert policy.headers == frozenset({"x-task"})
    assert policy.names_for("mail") == ("auto", "chat-fast", "gpt-4o-mini", "tiny")
    assert policy.names_for("nobody") == ("auto", "gpt-4o-mini", "tiny")
    assert (policy.quality_of("best"), policy.quality_of("1.5"), policy.quality_of("nan")) == (3.0, 1.5, None)


def test_an_empty_file_says_nothing_of_models(tmp_path: Path) -> None:
    """Every name is then what it says."""
    assert models_of(tmp_path, "own_zone: eu\n") == ModelPolicy()


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("models: {a: {}}\nvirtual_models: {a: {models: [b]}}", "'a' stands under models and under virtual_models"),
        ("models: {a: {}}\naliases: {a: b}", "'a' stands under models and under aliases"),
        ("virtual_models: {a: {models: [b]}}\naliases: {a: b}", "'a' stands under virtual_models and under aliases"),
        ("aliases: {a: b, b: c}", "the alias 'a' must lead to"),
        ("virtual_models: {a: {}}", "virtual model 'a' needs models, or a split"),
        ("virtual_models: {a: {models: [b], split: {c: 1}}}", "not both"),
        ("virtual_models: {a: {split: {c: 0}}}", "a weight above 0"),
        ("virtual_models: {a: {models: [x]}}\naliases: {x: y}", "names 'x', which is no model itself"),
        ("fallbacks: {a: [a]}", "fallbacks of 'a' must name other models"),
        ("fallbacks: {a: []}", "fallbacks of 'a' must name other models"),
        ("context_window_fallbacks: {a: [b, b]}", "context_window_fallbacks of 'a' must name other models"),
        ("fallbacks: {a: [v]}\nvirtual_models: {v: {models: [b]}}", "names 'v', which is no model itself"),
        ("models: {a: {quality: superb}}", "'superb' is none of the quality_tiers (there are none)"),
        ("quality_tiers: [a, a]", "quality_tiers must be names, each once"),
        ("models: {a: {input_price: 1}}", "give input_price and output_price, or neither"),
        ("models: {a: {input_price: -1}}", "input_price"),
        ("models: {a: {colour: red}}", "colour"),
        ("virtual_models: {a: {models: [b], tier_s: 1}}", "asks for quality, and of 'b' none is told"),
        ("virtual_models: {a: {models: [b], min_quality: 1}}", "asks for quality, and of 'b' none is told"),
        ("virtual_models: {a: {models: [b], max_cost: 1}}", "prices of 'b' are not told"),
        ("virtual_models: {a: {models: [b], rules: [{when: {}}]}}", "when must name at least one condition"),
        ("virtual_models: {a: {models: [b], rules: [{when: {languages: [xx]}}]}}", "languages xx cannot be told"),
        ("virtual_models: {a: {models: [b], rules: [{when: {headers: {x-extproc-a: b}}}]}}", "'x-extproc-a'"),
        ("virtual_models: {a: {models: [b], split: {b: 1}}}", "not both"),
        ("virtual_models: {a: {models: [b], rules: [{when: {apis: [chta]}}]}}", "apis chta cannot be told"),
        (
            "virtual_models: {a: {models: [b], rules: [{when: {min_input_tokens: 9, max_input_tokens: 8}}]}}",
            "no prompt has both 9 tokens",
        ),
        (
            "virtual_models: {a: {models: [b], rules: [{when: {headers: {X-A: b, x-a: c}}}]}}",
            "each header is named once",
        ),
        ("virtual_models: {a: {models: [b], rules: [{when: {headers: {x-a: []}}}]}}", "the values that it may have"),
        ("aliases: {a: b}\nfallbacks: {a: [c]}", "fallbacks of the alias 'a' belong to what it leads to, 'b'"),
        ('aliases: {a: "b\\nc"}', "aliases"),
        ('aliases: {a: "\\uD800"}', "half a character in line 1, column"),
        ("aliases: {a: ''}", "aliases"),
        ("aliases: {a: b, 'a': c}", "'a' stands twice in line 1"),
        ("models: {}\nmodels: {}", "'models' stands twice in line 2"),
        ('fallbacks: {"a\\0": [b]}', "fallbacks"),
        (
            "virtual_models: {a: {models: [b], rules: [{name: r, when: &w {code: true}}, {name: r, when: *w}]}}",
            "each rule needs a name of its own",
        ),
        (
            "virtual_models: {a: {models: [b], rules: [{when: {code: true}, min_quality: 2}]}}",
            "rule 'rule 1' asks for quality",
        ),
    ],
)
def test_a_wrong_section_is_one_line_that_names_what_is_wrong(tmp_path: Path, text: str, told: str) -> None:
    """Told at start, not found out by a request."""
    with pytest.raises(ConfigError) as error:
        models_of(tmp_path, text)
    assert told in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "text",
    [
        "models: {a: {tenants: [us]}}",
        "virtual_models: {v: {models: [a], tenants: [us]}}",
        "virtual_models: {v: {models: [a], rules: [{when: {tenants: [us]}}]}}",
    ],
)
def test_what_is_for_some_tenants_needs_the_header_that_tells_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    """Without it nobody could use such a model; told by the command before it listens."""
    file = tmp_path / "extproc.yaml"
    file.write_text(text)
    assert main(["serve", "--config", str(file), "--listen", "127.0.0.1:0"]) == 2
    assert "need --tenant-header" in capsys.readouterr().err
