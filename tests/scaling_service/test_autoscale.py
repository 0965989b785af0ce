"""`extproc autoscale` as a process, with a real server, a real command and a fleet that obeys it."""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from extproc.adapters.keda_messages import SERVICE, GetMetricsRequest, GetMetricsResponse, ScaledObjectRef
from extproc.cli import main
from extproc.core.values.instance import Lifecycle
from extproc.demo.processes import wait_for_line
from tests.e2e.eventually import eventually
from tests.processes import Processes
from tests.redis_server import RedisServer
from tests.registry.test_users import GuardedServer
from tests.scaling_service.world import (
    LONG_S,
    POOL,
    QUICK,
    config_file,
    leads,
    living,
    ready,
    start_replica,
    starts,
    turns,
    write_script,
)
from tests.server.test_intents_keeper import listening

ROOT = Path(__file__).parents[2]


@pytest.mark.long
async def test_load_starts_instances_and_its_end_drains_them_and_stops_them_when_they_are_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Told everything in the environment; the one that still has requests is not stopped before they are over.

    All of it as the user `autoscaler` of redis/users.acl: no command is refused, of which the log would tell.
    """
    monkeypatch.setenv("EXTPROC_REDIS_PASSWORD", "autoscaler-secret")
    script, log = write_script(tmp_path)
    flags = ("--config", config_file(tmp_path), "--exec", str(script), "--redis-user", "autoscaler", *QUICK)
    acl = tmp_path / "users.acl"
    acl.write_text((ROOT / "redis/users.acl").read_text() + "user world on >world-secret ~* &* +@all\n")
    async with AsyncExitStack() as stack:
        server = stack.enter_context(GuardedServer("valkey", tmp_path, "--aclfile", str(acl)))
        world_url = server.url.replace("redis://", "redis://world:world-secret@")
        processes = await stack.enter_async_context(Processes(tmp_path))
        world = await stack.enter_async_context(living(world_url, log))
        replica = await start_replica(processes, "one", server.url, *flags)
        await eventually(lambda: starts(world), lambda names: len(names) == 1)
        call = world.calls("start")[0]
        assert call["EXTPROC_POOL"] == POOL
        assert call["EXTPROC_HARDWARE"] == "h100_sxm"
        assert call["EXTPROC_LABELS"] == '{"zone":"b"}'
        assert call["EXTPROC_DESIRED"] == "1"
        await eventually(lambda: ready(world), lambda names: len(names) == 1)
        world.requests_s = 60.0
        await eventually(lambda: ready(world), lambda names: len(names) >= 2)
        assert (await replica.page())["recommendations"][0]["driver"]["why"]
        world.running = 1
        world.requests_s = 0.0

        async def draining() -> list[str]:
            state = await world.registry.state()
            return [name for name, order in state.orders.items() if order is Lifecycle.DRAINING]

        drained = await eventually(draining, lambda names: len(names) >= 1)
        await asyncio.sleep(1.0)
        assert not {*drained, *await draining()} & {*world.stopped()}, "they still have a request"
        world.running = 0
        await eventually(lambda: ready(world), lambda names: len(names) == 1, 60.0)
        assert set(drained) <= set(world.stopped())
        assert len(world.stopped()) == len(set(world.stopped())), "each once"
        await eventually(draining, lambda names: names == [])
        assert (await replica.page())["trouble"] == ""
        assert "permission" not in replica.child.output().lower()


@pytest.mark.long
async def test_a_webhook_is_told_of_each_change_and_again_by_nobody(server: RedisServer, tmp_path: Path) -> None:
    """Refused once, it is told again what holds then."""
    _, log = write_script(tmp_path)
    async with Processes(tmp_path) as processes, living(server.url, log) as world, listening(503) as endpoint:
        flags = ("--config", config_file(tmp_path), "--webhook", endpoint.url, *QUICK)
        replica = await start_replica(processes, "one", server.url, *flags)
        await eventually(replica.page, leads)

        async def messages() -> list[dict[str, Any]]:
            return [json.loads(body) for _, body in endpoint.seen]

        told = await eventually(messages, lambda seen: len(seen) == 2)
        assert told[0] == told[1]
        assert told[1]["fence"] > 0
        wanted = {"event": "pool_scaled", "fleet": "default", "pool": POOL, "desired": 1, "ready": 0, "stop": []}
        assert (wanted | {"broken": 0}).items() <= told[1].items()
        await turns(replica, 5)
        assert len(endpoint.seen) == 2
        world.lifecycles["by-hand"] = Lifecycle.READY
        world.requests_s = 60.0
        more = await eventually(messages, lambda seen: len(seen) > 2)
        assert more[-1]["desired"] > 1
        assert more[-1]["why"]
        world.lifecycles["by-hand"] = Lifecycle.UNHEALTHY
        await eventually(messages, lambda seen: seen[-1]["broken"] == 1)
        assert world.asked == []


async def test_keda_is_told_what_the_pages_show_by_leader_and_follower(server: RedisServer, tmp_path: Path) -> None:
    """Over real gRPC."""
    _, log = write_script(tmp_path)
    flags = ("--config", config_file(tmp_path), "--keda-listen", "127.0.0.1:0", *QUICK)
    async with Processes(tmp_path) as processes, living(server.url, log):
        first = await start_replica(processes, "first", server.url, *flags)
        await eventually(first.page, leads)
        assert "takes another one away" not in first.child.output()
        second = await start_replica(processes, "second", server.url, *flags, "--drain")
        assert "takes another one away: leave out --drain" in second.child.output()
        await eventually(second.desired, lambda number: number == 1)
        for replica in (first, second):
            found = await wait_for_line(replica.child, r"serving KEDA on port (\d+)", LONG_S)
            async with grpc.aio.insecure_channel(f"127.0.0.1:{found[1]}") as channel:
                call = channel.unary_unary(f"/{SERVICE}/GetMetrics", bytes, GetMetricsResponse.parse)
                ref = ScaledObjectRef(name="engines", namespace="default", scaler_metadata={"pool": POOL})
                answer = await call(GetMetricsRequest(scaled_object_ref=ref, metric_name="x"))
            assert answer.metric_values[0].metric_value > 0


async def test_a_dry_run_and_one_look_show_what_is_recommended_and_do_nothing(
    server: RedisServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither leads."""
    script, log = write_script(tmp_path)
    flags = ("--config", config_file(tmp_path), "--exec", str(script), *QUICK)
    async with Processes(tmp_path) as processes, living(server.url, log) as world:
        replica = await start_replica(processes, "dry", server.url, "--dry-run", *flags)
        await eventually(replica.desired, lambda number: number == 1)
        await turns(replica, 8)
        page = await replica.page()
        assert (page["role"], page["leader"]) == ("watcher", None)
        once = ("autoscale", "--redis-url", server.url, *flags[:2], "--once")
        assert await asyncio.to_thread(main, [*once, "--json"]) == 0
        shown = json.loads(capsys.readouterr().out)
        assert (shown[0]["pool"], shown[0]["desired"], shown[0]["without"] is None) == (POOL, 1, False)
        assert shown[0]["driver"]["why"]
        assert await asyncio.to_thread(main, [*once]) == 0
        table = capsys.readouterr().out.splitlines()
        assert table[0].split()[:3] == ["POOL", "DESIRED", "READY"]
        assert table[1].split()[:3] == [POOL, "1", "0"]
        assert world.asked == []


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (["--json"], "--json goes with --once"),
        (["--exec", "true"], "--exec needs a configuration file with a section autoscale"),
        (["--webhook", "http://h/x"], "--webhook needs a configuration file"),
        (["--drain"], "--drain needs a configuration file"),
        (["--webhook", "h:80/x"], "--webhook must be a URL"),
        (["--webhook", "http://h/x", "--webhook-secret-file", "/nowhere"], "/nowhere"),
        (["--config", "/nowhere"], "cannot read /nowhere"),
        (["--metrics-listen", "x"], "is not host:port"),
        (["--keda-listen", "x"], "is not host:port"),
        (["--once", "--redis-url", "redis://127.0.0.1:1/0"], "127.0.0.1:1"),
    ],
)
def test_what_cannot_be_used_is_one_line_and_status_2(
    flags: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """At the start."""
    assert main(["autoscale", *flags]) == 2
    error = capsys.readouterr().err
    assert told in error
    assert error.count("\n") == 1
