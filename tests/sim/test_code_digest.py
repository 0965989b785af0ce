"""Which modules a policy's results depend on."""

from __future__ import annotations

import pytest

from extproc.sim import code_digest
from extproc.sim.code_digest import digest_of, modules_of
from extproc.sim.policies.catalog import CATALOG

OURS = {name for name, entry in CATALOG.items() if entry.factory.__module__.startswith("extproc.sim.policies.ours")}
RIVALS = sorted(set(CATALOG) - OURS - {"oracle"})


@pytest.mark.parametrize("rival", RIVALS)
def test_a_rival_depends_on_the_simulator_and_its_own_rule(rival: str) -> None:
    """And not on ours, whose changes shall leave its results as they are."""
    modules = modules_of(rival)
    assert CATALOG[rival].factory.__module__ in modules
    assert {"extproc.sim.physics.scheduler", "extproc.sim.capacity", "extproc.sim.report.slo", "extproc"} <= modules
    ours = {
        "extproc.sim.policies.ours",
        "extproc.core.pricing.cost",
        "extproc.core.router",
        "extproc.core.speeds.speeds",
    }
    assert not modules & ours
    assert not modules & {"extproc.sim.policies.catalog", "extproc.sim.report.table", "extproc.sim.jobs"}


def test_ours_depends_on_the_whole_decision() -> None:
    """Through the router that serves, whatever it imports."""
    assert {
        "extproc.core.pricing.cost",
        "extproc.core.pricing.tail",
        "extproc.core.prefixes.kv_index",
        "extproc.core.speeds.speeds",
    } < modules_of("extproc")


def test_digests_tell_rules_apart_and_stay_the_same() -> None:
    """Two rules of one module have one digest: results also say whose they are."""
    digests = {name: digest_of(name) for name in CATALOG}
    assert digests["preble"] != digests["lmetric"] != digests["extproc"]
    assert digests["dynamo_kv"] == digests["dynamo_kv_tuned"]
    assert digests == {name: digest_of.__wrapped__(name) for name in CATALOG}


def test_nobody_knows_what_a_policy_from_outside_depends_on() -> None:
    """So it has no digest."""
    assert digest_of("tests.sim.strangers:raises") is None


@pytest.mark.parametrize(
    ("source", "same"),
    [("a = 1  # why\n\n", True), ("a = 2", False), ("'''What.'''\na = 1", False)],
)
def test_comments_and_layout_do_not_count(source: str, same: bool, tmp_path, monkeypatch) -> None:
    """What runs does."""
    (tmp_path / "some_rule.py").write_text("a = 1\n")
    monkeypatch.syspath_prepend(tmp_path)

    def digest() -> str:
        for cached in (code_digest._path, code_digest._tree, code_digest._source_digest):
            cached.cache_clear()
        return code_digest._source_digest("some_rule")

    before = digest()
    (tmp_path / "some_rule.py").write_text(source)
    assert (digest() == before) is same


def test_an_autoscaler_depends_on_its_own_rule_and_not_on_others() -> None:
    """And what is run without one depends on none."""
    rules = {"extproc.sim.scaling.hpa", "extproc.sim.scaling.aibrix", "extproc.sim.scaling.ours"}
    assert not modules_of("least_request") & rules
    assert modules_of("least_request", "hpa_gpu") & rules == {"extproc.sim.scaling.hpa"}
    assert modules_of("least_request", "keda_requests") & rules == {"extproc.sim.scaling.hpa"}  # its HPA
    assert modules_of("least_request", "extproc") & rules == {"extproc.sim.scaling.ours"}
    assert "extproc.core.scaling.scaler" in modules_of("least_request", "extproc")
    assert digest_of("least_request", "hpa_gpu") != digest_of("least_request", "aibrix_apa")
