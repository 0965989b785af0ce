"""Leaders that die, commands that fail, a Redis that is lost: nothing is done twice, nor what ought not to be."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import pytest

from extproc.core.values.instance import Lifecycle
from tests.e2e.eventually import eventually
from tests.observe.documented import undescribed
from tests.processes import Processes
from tests.redis_server import RedisServer
from tests.scaling_service.world import (
    POLICY,
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

LONG_STARTS = POLICY.replace("start_s: 3", "start_s: 60")


async def test_a_killed_leader_is_followed_and_what_it_has_begun_is_not_begun_again(
    server: RedisServer, tmp_path: Path
) -> None:
    """The start that no agent has told of yet is known to the next leader; the follower served the leader's word."""
    script, log = write_script(tmp_path)
    flags = ("--config", config_file(tmp_path, LONG_STARTS), "--exec", str(script))
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


async def test_what_a_killed_leader_has_drained_is_stopped_by_the_next_once_it_is_empty(
    server: RedisServer, tmp_path: Path
) -> None:
    """It is no person's drain, of which it would keep its hands. Both tell the command under which number they lead."""
    script, log = write_script(tmp_path)
    flags = ("--config", config_file(tmp_path), "--exec", str(script), *QUICK)
    async with Processes(tmp_path) as processes, living(server.url, log) as world:
        world.lifecycles.update({f"i{number}": Lifecycle.READY for number in range(2)})
        world.running = 1
        first = await start_replica(processes, "first", server.url, *flags)
        await eventually(first.page, leads)

        async def orders() -> list[str]:
            return [*(await world.registry.state()).orders]

        (drained,) = await eventually(orders, lambda names: len(names) == 1, 60.0)
        first.child.process.kill()
        second = await start_replica(processes, "second", server.url, *flags)
        await eventually(second.page, leads)
        await turns(second)
        assert world.stopped() == []
        world.running = 0
        await eventually(orders, lambda names: names == [], 60.0)
        assert world.stopped() == [drained]
        assert world.started() == []
        fence = int(world.calls("stop")[0]["EXTPROC_FENCE"])
        assert fence == int(await world.registry.link.command("HGET", "extproc:{default}:leader", "fence"))


@pytest.mark.chaos
async def test_a_leader_that_was_frozen_does_nothing_when_it_wakes_up(server: RedisServer, tmp_path: Path) -> None:
    """Another leads by then. What both have asked for together is what one would have."""
    script, log = write_script(tmp_path)
    flags = ("--config", config_file(tmp_path), "--exec", str(script), *QUICK)
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
    flags = ("--config", config_file(tmp_path, LONG_STARTS), "--exec", str(script), *QUICK)
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
    flags = ("--config", config_file(tmp_path), "--exec", str(script), *QUICK)
    async with Processes(tmp_path) as processes, living(server.url, log) as world:
        world.answers = False
        replica = await start_replica(processes, "one", server.url, *flags)
        await eventually(lambda: starts(world), lambda names: len(names) == 2)
        assert len(set(world.started())) == 2
        assert "failed with status 3" in replica.child.output()
        assert "no quota" in replica.child.output()
        page = (await replica.get("/metrics")).decode()
        assert undescribed(page, "autoscale") == []
        assert 'extproc_autoscale_actions_total{action="start",pool="h100",result="failed"} 1.0' in page


async def test_nothing_is_done_while_redis_is_lost_and_nothing_twice_when_it_is_back(
    server: RedisServer, tmp_path: Path
) -> None:
    """With all its data gone: the instances publish anew, and the leader remembers what it had begun."""
    script, log = write_script(tmp_path)
    flags = ("--config", config_file(tmp_path), "--exec", str(script), *QUICK)
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
    flags = ("--config", config_file(tmp_path), "--exec", str(script), *QUICK)
    async with Processes(tmp_path) as processes, living(server.url, log) as world:
        replica = await start_replica(processes, "one", server.url, *flags)
        first = (await eventually(lambda: ready(world), lambda names: len(names) == 1))[0]
        await eventually(replica.page, lambda page: page["recommendations"][0]["ready"] == 1)
        assert await world.registry.order(first, Lifecycle.DRAINING)
        await eventually(lambda: ready(world), lambda names: len(names) == 2)
        await turns(replica, 8)
        assert world.stopped() == []
        assert (await world.registry.state()).orders == {first: Lifecycle.DRAINING}


async def test_starts_that_end_in_no_pool_are_not_made_again_and_it_is_said(
    server: RedisServer, tmp_path: Path
) -> None:
    """Here the pool's hardware is not what agents tell: without a check, instances would be started for ever."""
    script, log = write_script(tmp_path)
    text = POLICY.replace("h100_sxm", "h100").replace("start_s: 3", "start_s: 0.3")
    flags = ("--config", config_file(tmp_path, text), "--exec", str(script), *QUICK)
    async with Processes(tmp_path) as processes, living(server.url, log) as world:
        replica = await start_replica(processes, "one", server.url, *flags)
        first = (await eventually(lambda: starts(world), bool))[0]
        await eventually(replica.page, lambda page: page["outside"] == [first])
        await turns(replica, 10)
        assert world.started() == [first]
        assert f"{first} belongs to no pool" in replica.child.output()
        assert b"extproc_instances_outside_pools 1.0" in await replica.get("/metrics")


@pytest.mark.chaos
async def test_starts_that_nothing_comes_of_are_made_again_ever_more_rarely(
    server: RedisServer, tmp_path: Path
) -> None:
    """The command says that it has done it; no agent ever tells of an instance."""
    script, log = write_script(tmp_path)
    text = POLICY.replace("start_s: 3", "start_s: 0.1")
    flags = ("--config", config_file(tmp_path, text), "--exec", str(script), *QUICK)
    async with Processes(tmp_path) as processes, living(server.url, log) as world:
        world.answers = False
        replica = await start_replica(processes, "one", server.url, *flags)
        await eventually(lambda: starts(world), lambda names: len(names) == 2)
        page = (await replica.get("/metrics")).decode()
        assert 'action="start",pool="h100",result="given_up"} 1.0' in page
        assert f"no agent has told of {world.started()[0]}" in replica.child.output()


@pytest.mark.chaos
async def test_while_no_router_tells_nothing_is_taken_away(server: RedisServer, tmp_path: Path) -> None:
    """Counts that stand still are no load of 0; what is missing is still started."""
    script, log = write_script(tmp_path)
    flags = ("--config", config_file(tmp_path), "--exec", str(script), *QUICK)
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


@pytest.mark.chaos
async def test_an_engine_that_crashes_again_and_again_is_replaced_so_often_only_and_stopped_in_the_end(
    server: RedisServer, tmp_path: Path
) -> None:
    """Of `most` one, three machines are there at a time; the page tells how many are broken."""
    script, log = write_script(tmp_path)
    policy = config_file(tmp_path, POLICY.replace("most: 4", "most: 1").replace("drain_s: 600", "drain_s: 10"))
    async with Processes(tmp_path) as processes, living(server.url, log) as world:
        replica = await start_replica(processes, "one", server.url, "--config", policy, "--exec", str(script), *QUICK)
        most_seen, most_broken = 0, 0

        async def stopped() -> list[str]:
            nonlocal most_seen, most_broken
            page = await replica.page()
            made = page["recommendations"][0] if page["recommendations"] else {"ready": 0, "broken": 0}
            most_broken = max(most_broken, made["broken"])
            most_seen = max(most_seen, len(world.lifecycles))
            if made["ready"] and made["broken"] == len(world.started()) - 1:  # seen to be Ready, and not shaken
                await turns(replica, 2)  # its start has come to a good end
                world.lifecycles.update(dict.fromkeys(await ready(world), Lifecycle.UNHEALTHY))
            return world.stopped()

        (first, *_) = await eventually(stopped, bool, 60.0)
        assert first == world.started()[0]
        assert (most_seen, most_broken) == (3, 3)
        await eventually(lambda: starts(world), lambda names: len(names) > 3)
