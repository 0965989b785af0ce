"""The quick start of docs/autoscale.md: its policy, its script, real engines and agents, from zero and back to it."""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import sys
from contextlib import suppress
from pathlib import Path

import pytest
import yaml

from extproc.adapters.intents import Intents
from extproc.adapters.registry import Registry
from extproc.adapters.traffic_counts import TrafficCounts
from extproc.core.scaling.rules import PoolRules, ScalingRules
from extproc.core.values.instance import Lifecycle
from tests.e2e.eventually import eventually
from tests.processes import Processes
from tests.redis_server import RedisServer
from tests.scaling_service.world import LONG_S, start_replica

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/autoscale.md").read_text()
FLAGS = ("--settle-s", "0.5", "--lease-s", "1.5")


def test_the_rules_that_are_documented_as_defaults_are() -> None:
    """Those of the whole fleet, and the times of a pool."""
    shown = yaml.safe_load(re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)[1])["autoscale"]
    pool = shown.pop("pools")["h100"]
    of_pool = {name: value for name, value in pool.items() if name.endswith("_s")}
    assert (len(shown), len(of_pool)) == (5, 4)
    assert {name: getattr(ScalingRules(), name) for name in shown} == shown
    default = PoolRules(name="h100", models=())
    assert {name: getattr(default, name) for name in of_pool} == of_pool


async def lifecycles(registry: Registry) -> list[Lifecycle]:
    return [record.instance.lifecycle for record in (await registry.state()).records]


def command(folder: Path) -> Path:
    """A folder with `extproc` as the script calls it, which runs these sources, installed or not."""
    folder.mkdir()
    script = folder / "extproc"
    script.write_text(
        f'#!/bin/sh\nPYTHONPATH={shlex.quote(str(ROOT))} exec {shlex.quote(sys.executable)} -m extproc "$@"\n'
    )
    script.chmod(0o755)
    return folder


async def telling(registry: Registry) -> None:
    """A router to which nobody comes."""
    counts = TrafficCounts(registry.link, registry.base, "router")
    batch = 0
    while True:
        batch += 1
        await counts.add(batch, {}, {})
        await asyncio.sleep(0.5)


@pytest.mark.long
async def test_the_quick_start_wakes_a_model_up_that_is_wanted_and_lets_it_go_when_nobody_asks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The documented policy with `least: 0`; the engine is a process, its agent another."""
    example = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)[0]
    assert "least: 1" in example
    policy = tmp_path / "extproc.yaml"
    policy.write_text(
        example.replace("least: 1", "least: 0, idle_s: 2, dwell_s: 1").replace("pools:", "tick_s: 0.2\n  pools:")
    )
    script = ROOT / re.findall(r"--exec (\S+autoscale-local\.sh)", PAGE)[0]
    commands = command(tmp_path / "bin")
    monkeypatch.setenv("PATH", f"{commands}:{Path(sys.executable).parent}:{os.environ['PATH']}")
    monkeypatch.setenv("ENGINES", str(tmp_path / "engines"))
    monkeypatch.setenv("LOAD_DELAY_S", "1")
    with RedisServer("valkey", tmp_path) as server:
        monkeypatch.setenv("EXTPROC_REDIS_URL", server.url)
        async with Processes(tmp_path) as processes, Registry(server.url) as registry:
            router = asyncio.create_task(telling(registry))
            flags = ("--config", str(policy), "--exec", str(script), *FLAGS)
            replica = await start_replica(processes, "one", server.url, *flags)
            await eventually(replica.desired, lambda number: number == 0, LONG_S)
            intents = Intents(registry.link, registry.base, "router")
            await intents.want("llama-3.1-8b", 1, 1, 120.0)
            try:
                await eventually(lambda: lifecycles(registry), lambda seen: seen == [Lifecycle.READY], LONG_S)
                page = await eventually(replica.page, lambda page: page["recommendations"][0]["ready"] == 1)
                assert page["recommendations"][0]["pending"] == 0
                await intents.fulfil("llama-3.1-8b")
                await eventually(lambda: lifecycles(registry), lambda seen: seen == [], LONG_S)
                assert list((tmp_path / "engines").glob("*.pids")) == []
            finally:
                router.cancel()
                for left in (tmp_path / "engines").glob("*.pids"):
                    for process in left.read_text().split():
                        with suppress(ProcessLookupError):  # what could not start at all
                            os.kill(int(process), 9)
