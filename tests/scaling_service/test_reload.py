"""An autoscaler whose configuration file changes while it runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from extproc.cli import parse_arguments
from extproc.commands.autoscale import _settings
from extproc.core.pricing.classes import ClassPolicy
from extproc.core.scaling.rules import PoolRules, ScalingRules
from extproc.core.scaling.scaler import Scaler
from extproc.core.scaling.sight import Sight
from extproc.scaling_service.run import AutoscaleSettings, in_force
from tests.core.builders import MODEL
from tests.e2e.eventually import eventually
from tests.processes import Processes
from tests.redis_server import RedisServer
from tests.scaling_service.world import LONG_S, QUICK, living, start_replica, write_script

POOLS = "tick_s: 0.2, pools: {h: {models: [%s], least: %d, most: 9, dwell_s: 0.1}}"


def settings_of(file: Path, text: str) -> AutoscaleSettings:
    file.write_text(text)
    return _settings(parse_arguments(["autoscale", "--config", str(file)]))


@pytest.mark.parametrize(
    ("before", "after", "later"),
    [
        ("autoscale: {pools: {}}", "autoscale: {tick_s: 5, pools: {h: {models: [m]}}}", ()),
        ("autoscale: {drain_s: 1}", "autoscale: {}\nclasses: {batch: {ttft: 0.1}}", ()),
        ("autoscale: {}", "autoscale: {keda_listen: ':1', lease_s: 3}", ("autoscale.keda_listen", "autoscale.lease_s")),
        ("", "redis: {url: 'redis://h:1/0'}", ("redis.url",)),
        ("", "serve: {max_streams: 1}", ()),
    ],
)
def test_rules_are_taken_and_flags_are_named_and_stay(
    tmp_path: Path, before: str, after: str, later: tuple[str, ...]
) -> None:
    file = tmp_path / "extproc.yaml"
    old, new = settings_of(file, before), settings_of(file, after)
    taken, named = in_force(old, new)
    assert named == later
    assert (taken.rules, taken.classes) == (new.rules, new.classes)
    assert replace(taken, rules=old.rules, classes=old.classes) == old


def test_a_scaler_goes_on_with_a_pool_more_and_a_bound_that_is_higher() -> None:
    """What it knows of the first pool stays; one that is gone is recommended no more."""
    one, other = PoolRules(name="a", models=("m",), least=1), PoolRules(name="b", models=("n",), least=2)
    made = Scaler(ScalingRules(pools=(one,)), ClassPolicy())
    sight = Sight(at_s=1000.0, instances=(), routers=1)
    assert [(each.pool, each.desired) for each in made.look(sight)] == [("a", 1)]
    made.use(ScalingRules(pools=(replace(one, least=3), other), period_s=600.0), ClassPolicy())
    assert [(each.pool, each.desired) for each in made.look(replace(sight, at_s=1001.0))] == [("a", 3), ("b", 2)]
    made.use(ScalingRules(pools=(other,)), ClassPolicy())
    assert [(each.pool, each.desired) for each in made.look(replace(sight, at_s=1002.0))] == [("b", 2)]


async def test_an_autoscaler_that_runs_goes_by_the_new_file(tmp_path: Path, server: RedisServer) -> None:
    """And by that of before where the new one is wrong; the leader stays the leader."""
    file, (_, log) = tmp_path / "extproc.yaml", write_script(tmp_path)
    file.write_text(f"autoscale: {{{POOLS % (MODEL, 1)}}}")
    async with living(server.url, log), Processes(tmp_path) as processes:
        replica = await start_replica(processes, "one", server.url, "--config", str(file), *QUICK)
        await eventually(replica.desired, lambda found: found == 1, LONG_S)
        fence = (await replica.page())["leader"]
        file.write_text(f"autoscale: {{{POOLS % (MODEL, 3)}}}")
        await eventually(replica.desired, lambda found: found == 3, LONG_S)
        file.write_text(f"autoscale: {{{POOLS % (MODEL, 3)}, tik_s: 1}}")

        async def page() -> bytes:
            return await replica.get("/metrics")

        await eventually(page, lambda found: b'extproc_config_reloads_total{result="failed"} 1.0' in found, LONG_S)
        assert await replica.desired() == 3
        assert (await replica.page())["leader"] == fence
