"""An agent whose configuration file changes while it runs."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any, cast

import pytest

from extproc.adapters.http_client import HttpClient
from extproc.adapters.registry import Registry
from extproc.agent.pace import Pace, Periods
from extproc.agent.publisher import Surroundings
from extproc.agent.settings import AgentSettings
from extproc.cli import parse_arguments
from extproc.commands.agent import _NO_BACKEND, _told, in_force
from extproc.commands.reloading import read_again
from extproc.core.values.instance import Lifecycle, Load
from extproc.errors import ConfigError
from tests.agent.backends import ScriptedBackend
from tests.e2e.eventually import eventually
from tests.processes import Processes
from tests.redis_server import RedisServer

LONG_S = 60.0


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("EXTPROC_")]:
        monkeypatch.delenv(name)


@pytest.mark.parametrize(
    ("before", "after", "later"),
    [
        ("backend: 'http://x:1'", "backend: ['http://x:1', 'http://y:2'], period_s: 3, ttl_s: 20", ()),
        ("backend: 'http://x:1'", "backends_dns: 'http://x:1', dns_period_s: 3, hardware: h100_sxm", ()),
        (
            "backend: 'http://x:1'",
            "backend: 'http://x:1', engine: sglang, drain_on_stop: true, zone: a",
            (),
        ),
        ("backend: 'http://x:1'", "backend: 'http://x:1', state: /s", ("agent.state",)),
        ("backend: 'http://x:1'", "backend: 'http://x:1', log_format: json", ("agent.log_format",)),
        ("backend: 'http://x:1'", "backend: 'http://x:1'}\nredis: {url: 'redis://h:1/0'", ("redis.url",)),
        ("backend: 'http://x:1'", "backend: 'http://x:1'}\nserve: {max_streams: 1", ()),
    ],
)
def test_what_can_be_changed_is_and_what_cannot_is_named_and_stays(
    tmp_path: Path, before: str, after: str, later: tuple[str, ...]
) -> None:
    file = tmp_path / "extproc.yaml"

    def told(text: str) -> object:
        file.write_text(f"agent: {{{text}}}\n")
        return _told(parse_arguments(["agent", "--config", str(file)]))

    old, new = told(before), told(after)
    taken, named = in_force(old, new)  # type: ignore[arg-type]
    assert named == later
    assert taken == (old if later else new)


def test_a_file_that_names_no_backend_any_more_is_a_fault_and_no_end(tmp_path: Path) -> None:
    file = tmp_path / "extproc.yaml"
    file.write_text("agent: {period_s: 1}")
    with pytest.raises(ConfigError, match="no backend is given"):
        read_again(["agent", "--config", str(file)], _told, _NO_BACKEND)


def test_a_shorter_period_counts_at_once_for_a_backend_that_is_seldom_looked_at() -> None:
    pace = Pace(Periods(1.0, 10.0, 60.0))
    idle = Load(running=0, waiting=0)
    for _ in range(20):
        long_s = pace.after(Lifecycle.READY, idle)
    pace.use(Periods(0.1, 0.2, 0.4))
    assert (long_s, pace.after(Lifecycle.READY, idle)) == (60.0, 0.4)


def test_a_longer_period_gives_backends_as_much_longer_to_answer() -> None:
    """Who looks more seldom since its engines are slow must wait for them."""
    client, nothing = HttpClient(), cast(Any, None)
    around = Surroundings(client, *[nothing] * 6, AgentSettings())
    around.use(AgentSettings(period_s=30.0, ttl_s=100.0))
    assert client._timeout.total == 60.0


async def test_backends_come_and_go_with_the_file_and_a_wrong_one_changes_nothing(
    tmp_path: Path, server: RedisServer
) -> None:
    one, other = ScriptedBackend(), ScriptedBackend()
    file = tmp_path / "extproc.yaml"

    def write(*backends: ScriptedBackend, more: str = "", hardware: str = "h100_sxm") -> None:
        urls = ", ".join(each.url for each in backends)
        file.write_text(
            f"redis: {{url: '{server.url}'}}\n"
            f"agent: {{backend: [{urls}], hardware: {hardware}, period_s: 0.1, drain_on_stop: false{more}}}\n"
        )

    write(one)
    async with one, other, Registry(server.url) as registry, Processes(tmp_path) as processes:
        child = await processes.start_extproc("agent", "agent", "--config", str(file))

        async def living() -> dict[str, str]:
            state = await registry.state()
            each = (record.instance for record in state.records)
            return {it.id: it.hardware for it in each if it.lifecycle is Lifecycle.READY}

        async def logged() -> str:
            return child.log.read_text()

        first, second = (each.url.removeprefix("http://") for each in (one, other))
        await eventually(living, lambda found: found == {first: "h100_sxm"}, LONG_S)
        write(one, other, hardware="l40s")
        await eventually(living, lambda found: found == {first: "l40s", second: "l40s"}, LONG_S)
        write(other, more=", perod_s: 1")
        await eventually(logged, lambda text: "did you mean period_s?; the settings before stay" in text, LONG_S)
        await asyncio.sleep(0.3)
        assert set(await living()) == {first, second}
        write(other, more=", state: /nowhere")
        await eventually(living, lambda found: found == {second: "h100_sxm"}, LONG_S)
        await eventually(logged, lambda text: "needs a restart: agent.state" in text, LONG_S)
