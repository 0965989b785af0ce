"""Policies by name, and policies from outside."""

from __future__ import annotations

import pytest

from extproc.errors import ConfigError
from extproc.sim.policies.catalog import CATALOG, DEFAULTS, comparable, described, load, names
from extproc.sim.policies.textbook import round_robin
from tests.sim.policies.counter import setting


def test_every_name_makes_a_policy_and_says_what_it_is():
    """One short line each, without a line break."""
    assert names() == tuple(CATALOG)
    for name, about in described():
        assert 5 < len(about) < 100
        assert "\n" not in about
        assert load(name)(setting()).choose is not None


def test_the_defaults_are_in_the_catalog():
    """What is compared by default can be loaded."""
    assert set(DEFAULTS) <= set(names())


def test_rules_for_pairs_are_in_no_suite():
    """A fleet without pairs has nothing to show of them."""
    assert set(names()) - set(comparable()) >= {"llm_d_pd", "dynamo_pd", "always_paired"}
    assert {"extproc", "oracle", *DEFAULTS} <= set(comparable())


def test_a_policy_from_outside_is_loaded():
    """package.module:factory."""
    assert load("extproc.sim.policies.textbook:round_robin") is round_robin


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("no_such_rule", "round_robin"),
        ("no.such.module:factory", "ModuleNotFoundError"),
        ("extproc.sim.policies.textbook:nothing", "AttributeError"),
        ("extproc.sim.policies.least_kv:PERIOD_S", "not callable"),
        (":factory", "unknown policy"),
        ("module:", "unknown policy"),
    ],
)
def test_what_cannot_be_loaded_is_told_in_one_line(name, says):
    """The error names the policy and what is wrong."""
    with pytest.raises(ConfigError) as error:
        load(name)
    assert says in str(error.value)
    assert name in str(error.value)
    assert "\n" not in str(error.value)


def test_who_knows_hardware_is_flagged():
    """Profiles given, or rates learned."""
    assert {name for name, entry in CATALOG.items() if entry.knows_hardware} >= {"preble", "aibrix_slo", "smetric"}
    assert not CATALOG["least_load"].knows_hardware
