"""The section `autoscale` of a configuration file."""

from __future__ import annotations

from pathlib import Path

import pytest

from extproc.config_file.load import load_policy
from extproc.core.scaling.rules import PoolRules, ScalingRules
from extproc.errors import ConfigError

FULL = """
autoscale:
  tick_s: 2
  period_s: 604800
  quantile: 0.9
  busiest: 0.7
  drain_s: 60
  pools:
    h100:
      models: [m, n]
      hardware: h100_sxm
      tensor_parallel: 2
      least: 1
      most: 8
      spare: 1
      price_per_hour: 4.5
      start_s: 90
      before_start_s: 40
      idle_s: 60
      dwell_s: 30
      labels: {zone: b}
    l40s: {models: [n, m], hardware: l40s}
    other: {models: [o]}
"""


def rules_of(tmp_path: Path, text: str) -> ScalingRules | None:
    file = tmp_path / "extproc.yaml"
    file.write_text(text)
    return load_policy(file).autoscale


def test_all_keys_are_taken_and_the_rest_is_as_by_default(tmp_path: Path) -> None:
    """Pools in the order of the file."""
    assert rules_of(tmp_path, FULL) == ScalingRules(
        tick_s=2.0,
        period_s=604_800.0,
        quantile=0.9,
        busiest=0.7,
        drain_s=60.0,
        pools=(
            PoolRules(
                name="h100",
                models=("m", "n"),
                hardware="h100_sxm",
                tensor_parallel=2,
                least=1,
                most=8,
                spare=1,
                price_per_hour=4.5,
                start_s=90.0,
                before_start_s=40.0,
                idle_s=60.0,
                dwell_s=30.0,
                labels={"zone": "b"},
            ),
            PoolRules(name="l40s", models=("n", "m"), hardware="l40s"),
            PoolRules(name="other", models=("o",)),
        ),
    )


def test_without_the_section_there_are_no_rules_and_an_empty_one_has_the_defaults(tmp_path: Path) -> None:
    """Pools are made from what is there then."""
    assert rules_of(tmp_path, "priority_step: 2") is None
    assert rules_of(tmp_path, "autoscale: {}") == ScalingRules()


@pytest.mark.parametrize(
    ("section", "told"),
    [
        ("{tick_s: 0.01}", "tick_s must be from 0.1 to 30"),
        ("{tick_s: 31}", "tick_s must be from 0.1 to 30"),
        ("{tick_s: 20, period_s: 10}", "period_s must be from 20"),
        ("{period_s: .nan}", "period_s must be from"),
        ("{quantile: 1}", "quantile must be"),
        ("{quantile: 0.4}", "quantile must be"),
        ("{busiest: 0}", "busiest must be"),
        ("{busiest: 1.1}", "busiest must be"),
        ("{drain_s: -1}", "drain_s must be"),
        ("{pools: {a: {}}}", "models"),
        ("{pools: {a: {models: []}}}", "pool a: models must name at least one"),
        ("{pools: {a: {models: [m, m]}}}", "pool a: models must name at least one, and each once"),
        ("{pools: {a b: {models: [m]}}}", "pool a b: its name"),
        ("{pools: {a: {models: [m], least: 3, most: 2}}}", "pool a: least must be 0 or more, and no more than most"),
        ("{pools: {a: {models: [m], least: -1}}}", "pool a: least"),
        ("{pools: {a: {models: [m], most: 0}}}", "pool a: least"),
        ("{pools: {a: {models: [m], spare: -1}}}", "pool a: spare"),
        ("{pools: {a: {models: [m], tensor_parallel: 0}}}", "pool a: tensor_parallel"),
        ("{pools: {a: {models: [m], price_per_hour: 0}}}", "pool a: price_per_hour"),
        ("{pools: {a: {models: [m], start_s: 0}}}", "pool a: start_s"),
        ("{pools: {a: {models: [m], before_start_s: -1}}}", "pool a: before_start_s must be 0 or more"),
        ("{pools: {a: {models: [m], before_start_s: .nan}}}", "pool a: before_start_s must be 0 or more"),
        ("{pools: {a: {models: [m], before_start_s: 180}}}", "less than start_s (180), the whole"),
        ("{pools: {a: {models: [m], idle_s: -1}}}", "pool a: idle_s"),
        ("{pools: {a: {models: [m], dwell_s: .inf}}}", "pool a: dwell_s"),
        ("{pools: {a: {models: [m]}, b: {models: [m]}}}", "pools a and b have the same models and hardware"),
        ("{pools: {a: {models: [m], role: prefill}}}", "some need role: prefill and all others role: decode"),
        ("{pools: {a: {models: [m], role: decode}, b: {models: [m]}}}", "some need role: prefill"),
        ("{pools: {a: {models: [m], role: half}}}", "role"),
        ("{pools: {a: {models: [m]}, b: {models: [m, n]}}}", "m is in pools with different models"),
    ],
)
def test_what_is_wrong_is_named_in_one_line(section: str, told: str, tmp_path: Path) -> None:
    """With the pool."""
    with pytest.raises(ConfigError) as raised:
        rules_of(tmp_path, f"autoscale: {section}")
    assert told in str(raised.value)
    assert "\n" not in str(raised.value)
