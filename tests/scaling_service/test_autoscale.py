"""`extproc autoscale` as a process, with a real server, a real command and a fleet that obeys it."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Iterator
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
from tests.scaling_service.world import LONG_S, POLICY, POOL, Replica, World, living, start_replica, write_script
from tests.server.test_intents_keeper import listening

ROOT = Path(__file__).parents[2]
LONG_STARTS = POLICY.replace("start_s: 3", "start_s: 60")
QUICK = ("--settle-s", "0.5", "--lease-s", "1.5")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    with RedisServer("valkey", tmp_path) as running:
        yield running


def policy_file(folder: Path, text: str = POLICY) -> str:
    path = folder / "policy.yaml"
    path.write_text(text)
    return str(path)


async def starts(world: World) -> list[str]:
    return world.started()


async def ready(world: World) -> list[str]:
    return [name for name, lifecycle in world.lifecycles.items() if lifecycle is Lifecycle.READY]


async def test_load_starts_instances_and_its_end_drains_them_and_stops_them_when_they_are_empty(
    server: RedisServer, tmp_path: Path
) -> None:
    """Told everything in the environment; the one that still has requests is not stopped before they are over."""
    script, log = write_script(tmp_path)
    flags = ("--policy-file", policy_file(tmp_path), "--exec", str(script), *QUICK)
    async with Processes(tmp_path) as processes, living(server.url, log) as world:
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


async def turns(replica: Replica, count: int = 5) -> None:
    """Wait until a leader has looked so many times more."""
    for _ in range(count):
        last = (await replica.page())["recommendations"][0]["at_s"]
        await eventually(replica.page, lambda page, last=last: page["recommendations"][0]["at_s"] > last)


def leads(page: dict[str, Any]) -> bool:
    return bool(page["role"] == "leader")


async def test_a_killed_leader_is_followed_and_what_it_has_begun_is_not_begun_again(
    server: RedisServer, tmp_path: Path
) -> None:
    """The start that no agent has told of yet is known to the next leader; the follower served the leader's word."""
    script, log = write_script(tmp_path)
    flags = ("--policy-file", policy_file(tmp_path, LONG_STARTS), "--exec", str(script))
    async with Processes(tmp_path) as processes, living(server.url, log) as world:
        world.answers = False
        first = await start_replica(processes, "first", server.url, *flags, *QUICK)
        await eventually(first.page, leads)
        second = await start_replica(processes, "second", server.url, *flags, *QUICK)
        await eventually(lambda: starts(world), lambda names: len(names) == 1)
        told = await eventually(second.page, lambda page: [each["pending"] for each in page["recommendations"]] == [1])
        assert (told["role"], told["said_by"]) == ("follower", (await first.page())["said_by"])
        first.child.process.kill()
        await eventually(second.page, leads)
        await turns(second, 8)
        assert len(world.started()) == 1
        page = await second.page()
        assert page["recommendations"][0]["coming"] == 1
        world.lifecycles[world.started()[0]] = Lifecycle.READY
        await eventually(second.page, lambda page: page["recommendations"][0]["ready"] == 1)
        await turns(second, 3)
        assert len(world.started()) == 1


async def test_a_leader_that_was_frozen_does_nothing_when_it_wakes_up(server: RedisServer, tmp_path: Path) -> None:
    """Another leads by then. What both have asked for together is what one would have."""
    script, log = write_script(tmp_path)
    flags = ("--policy-file", policy_file(tmp_path), "--exec", str(script), *QUICK)
    async with Processes(tmp_path) as processes, living(server.url, log) as world:
        first = await start_replica(processes, "first", server.url, *flags)
        await eventually(first.page, leads)
        second = await start_replica(processes, "second", server.url, *flags)
        await eventually(lambda: ready(world), lambda names: len(names) == 1)
        first.child.process.send_signal(signal.SIGSTOP)
        try:
            await eventually(second.page, leads)
            world.requests_s = 60.0
            await eventually(lambda: ready(world), lambda names: len(names) >= 2)
        finally:
            first.child.process.send_signal(signal.SIGCONT)
        await eventually(first.page, lambda page: page["role"] == "follower" and page["leader"] is not None)
        desired = await eventually(second.desired, lambda number: number is not None)
        await turns(second)
        assert len(world.started()) <= max(4, desired or 0)
        assert len(await ready(world)) <= 4


async def test_a_leader_that_is_told_to_end_lets_its_commands_end_first(server: RedisServer, tmp_path: Path) -> None:
    """Else a start would be cut off half-way; the next leader knows what came of it."""
    go, finished = tmp_path / "go", tmp_path / "finished"
    script, log = write_script(tmp_path, f"while [ ! -e {go} ]; do sleep 0.05; done; touch {finished}")
    flags = ("--policy-file", policy_file(tmp_path, LONG_STARTS), "--exec", str(script), *QUICK)
    async with Processes(tmp_path) as processes, living(server.url, log) as world:
        world.answers = False
        first = await start_replica(processes, "first", server.url, *flags)
        await eventually(lambda: starts(world), bool)
        first.child.process.terminate()
        await asyncio.sleep(0.5)
        assert first.child.process.returncode is None
        go.touch()
        assert await first.child.process.wait() == 0
        assert finished.exists()
        second = await start_replica(processes, "second", server.url, *flags)
        await eventually(second.page, leads)
        await turns(second, 5)
        assert len(world.started()) == 1


async def test_a_command_that_fails_is_run_again_after_a_pause_and_counts_as_nothing(
    server: RedisServer, tmp_path: Path
) -> None:
    """The first call fails; its instance is not waited for."""
    marker = tmp_path / "failed-once"
    script, log = write_script(tmp_path, f'[ -e {marker} ] || {{ touch {marker}; echo "no quota"; exit 3; }}')
    flags = ("--policy-file", policy_file(tmp_path), "--exec", str(script), *QUICK)
    async with Processes(tmp_path) as processes, living(server.url, log) as world:
        world.answers = False
        replica = await start_replica(processes, "one", server.url, *flags)
        await eventually(lambda: starts(world), lambda names: len(names) == 2)
        assert len(set(world.started())) == 2
        assert "failed with status 3" in replica.child.output()
        assert "no quota" in replica.child.output()
        page = (await replica.get("/metrics")).decode()
        assert 'extproc_autoscale_actions_total{action="start",pool="h100",result="failed"} 1.0' in page


async def test_nothing_is_done_while_redis_is_lost_and_nothing_twice_when_it_is_back(
    server: RedisServer, tmp_path: Path
) -> None:
    """With all its data gone: the instances publish anew, and the leader remembers what it had begun."""
    script, log = write_script(tmp_path)
    flags = ("--policy-file", policy_file(tmp_path), "--exec", str(script), *QUICK)
    async with Processes(tmp_path) as processes:
        async with living(server.url, log) as world:
            replica = await start_replica(processes, "one", server.url, *flags)
            await eventually(lambda: ready(world), lambda names: len(names) == 1)
            await eventually(replica.page, lambda page: page["recommendations"][0]["ready"] == 1)
            lifecycles = dict(world.lifecycles)
        server.stop()
        lost = await eventually(replica.page, lambda page: page["trouble"] != "")
        assert lost["recommendations"][0]["desired"] == 1
        assert await replica.get("/healthz") == b"ok\n", "a restart would not bring Redis back"
        server.start()
        async with living(server.url, log) as world:
            world.lifecycles.update(lifecycles)
            await eventually(replica.page, lambda page: page["trouble"] == "" and page["role"] == "leader")
            await turns(replica, 8)
            assert len(world.started()) == 1
            assert world.stopped() == []


async def test_what_a_person_has_drained_is_neither_resumed_nor_stopped(server: RedisServer, tmp_path: Path) -> None:
    """It may be in repair; another one is started in its place."""
    script, log = write_script(tmp_path)
    flags = ("--policy-file", policy_file(tmp_path), "--exec", str(script), *QUICK)
    async with Processes(tmp_path) as processes, living(server.url, log) as world:
        replica = await start_replica(processes, "one", server.url, *flags)
        first = (await eventually(lambda: ready(world), lambda names: len(names) == 1))[0]
        await eventually(replica.page, lambda page: page["recommendations"][0]["ready"] == 1)
        assert await world.registry.order(first, Lifecycle.DRAINING)
        await eventually(lambda: ready(world), lambda names: len(names) == 2)
        await turns(replica, 8)
        assert world.stopped() == []
        assert (await world.registry.state()).orders == {first: Lifecycle.DRAINING}


async def test_a_webhook_is_told_of_each_change_and_again_by_nobody(server: RedisServer, tmp_path: Path) -> None:
    """Refused once, it is told again what holds then."""
    _, log = write_script(tmp_path)
    async with Processes(tmp_path) as processes, living(server.url, log) as world, listening(503) as endpoint:
        flags = ("--policy-file", policy_file(tmp_path), "--webhook", endpoint.url, *QUICK)
        replica = await start_replica(processes, "one", server.url, *flags)
        await eventually(replica.page, leads)

        async def messages() -> list[dict[str, Any]]:
            return [json.loads(body) for _, body in endpoint.seen]

        told = await eventually(messages, lambda seen: len(seen) == 2)
        assert told[0] == told[1]
        wanted = {"event": "pool_scaled", "fleet": "default", "pool": POOL, "desired": 1, "ready": 0, "stop": []}
        assert wanted.items() <= told[1].items()
        await turns(replica, 5)
        assert len(endpoint.seen) == 2
        world.lifecycles["by-hand"] = Lifecycle.READY
        world.requests_s = 60.0
        more = await eventually(messages, lambda seen: len(seen) > 2)
        assert more[-1]["desired"] > 1
        assert more[-1]["why"]
        assert world.asked == []


async def test_keda_is_told_what_the_pages_show_by_leader_and_follower(server: RedisServer, tmp_path: Path) -> None:
    """Over real gRPC."""
    _, log = write_script(tmp_path)
    flags = ("--policy-file", policy_file(tmp_path), "--keda-listen", "127.0.0.1:0", *QUICK)
    async with Processes(tmp_path) as processes, living(server.url, log):
        first = await start_replica(processes, "first", server.url, *flags)
        await eventually(first.page, leads)
        second = await start_replica(processes, "second", server.url, *flags)
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
    flags = ("--policy-file", policy_file(tmp_path), "--exec", str(script), *QUICK)
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


async def test_starts_that_end_in_no_pool_are_not_made_again_and_it_is_said(
    server: RedisServer, tmp_path: Path
) -> None:
    """Here the pool's hardware is not what agents tell: without a check, instances would be started for ever."""
    script, log = write_script(tmp_path)
    text = POLICY.replace("h100_sxm", "h100").replace("start_s: 3", "start_s: 0.3")
    flags = ("--policy-file", policy_file(tmp_path, text), "--exec", str(script), *QUICK)
    async with Processes(tmp_path) as processes, living(server.url, log) as world:
        replica = await start_replica(processes, "one", server.url, *flags)
        first = (await eventually(lambda: starts(world), bool))[0]
        await eventually(replica.page, lambda page: page["outside"] == [first])
        await turns(replica, 10)
        assert world.started() == [first]
        assert f"{first} belongs to no pool" in replica.child.output()
        assert b"extproc_instances_outside_pools 1.0" in await replica.get("/metrics")


async def test_starts_that_nothing_comes_of_are_made_again_ever_more_rarely(
    server: RedisServer, tmp_path: Path
) -> None:
    """The command says that it has done it; no agent ever tells of an instance."""
    script, log = write_script(tmp_path)
    text = POLICY.replace("start_s: 3", "start_s: 0.1")
    flags = ("--policy-file", policy_file(tmp_path, text), "--exec", str(script), *QUICK)
    async with Processes(tmp_path) as processes, living(server.url, log) as world:
        world.answers = False
        replica = await start_replica(processes, "one", server.url, *flags)
        await eventually(lambda: starts(world), lambda names: len(names) == 2)
        page = (await replica.get("/metrics")).decode()
        assert 'action="start",pool="h100",result="given_up"} 1.0' in page
        assert f"no agent has told of {world.started()[0]}" in replica.child.output()


async def test_while_no_router_tells_nothing_is_taken_away(server: RedisServer, tmp_path: Path) -> None:
    """Counts that stand still are no load of 0; what is missing is still started."""
    script, log = write_script(tmp_path)
    flags = ("--policy-file", policy_file(tmp_path), "--exec", str(script), *QUICK)
    async with Processes(tmp_path) as processes, living(server.url, log) as world:
        world.counting = False
        world.lifecycles.update({f"i{number}": Lifecycle.READY for number in range(3)})
        replica = await start_replica(processes, "one", server.url, *flags)
        page = await eventually(replica.page, lambda page: [each["ready"] for each in page["recommendations"]] == [3])
        await turns(replica, 8)
        page = await replica.page()
        assert page["recommendations"][0]["desired"] == 3
        assert (world.asked, (await world.registry.state()).orders) == ([], {})
        world.counting = True
        await eventually(lambda: ready(world), lambda names: len(names) == 1, 60.0)


async def test_the_user_of_the_shipped_rights_can_do_all_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As `autoscaler` of redis/users.acl; no command is refused, of which the log would tell."""
    monkeypatch.setenv("EXTPROC_REDIS_PASSWORD", "autoscaler-secret")
    script, log = write_script(tmp_path)
    flags = ("--policy-file", policy_file(tmp_path), "--exec", str(script), "--redis-user", "autoscaler", *QUICK)
    acl = tmp_path / "users.acl"
    acl.write_text((ROOT / "redis/users.acl").read_text() + "user world on >world-secret ~* &* +@all\n")
    with GuardedServer("valkey", tmp_path, "--aclfile", str(acl)) as server:
        world_url = server.url.replace("redis://", "redis://world:world-secret@")
        async with Processes(tmp_path) as processes, living(world_url, log) as world:
            world.requests_s = 60.0
            replica = await start_replica(processes, "one", server.url, *flags)
            await eventually(lambda: ready(world), lambda names: len(names) >= 2)
            world.requests_s = 0.0
            await eventually(lambda: ready(world), lambda names: len(names) == 1, 60.0)
            assert (await replica.page())["trouble"] == ""
            assert "permission" not in replica.child.output().lower()


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (["--json"], "--json goes with --once"),
        (["--exec", "true"], "--exec needs a policy file with a section autoscale"),
        (["--webhook", "http://h/x"], "--webhook needs a policy file"),
        (["--drain"], "--drain needs a policy file"),
        (["--webhook", "h:80/x"], "--webhook must be a URL"),
        (["--webhook", "http://h/x", "--webhook-secret-file", "/nowhere"], "/nowhere"),
        (["--policy-file", "/nowhere"], "cannot read /nowhere"),
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
