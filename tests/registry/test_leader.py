"""Leader election on real servers, with the rights of `redis/users.acl`: one leads at a time, whatever happens."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import redis.asyncio as aioredis

from extproc.adapters.leader import Leader
from extproc.adapters.redis_link import Link
from extproc.adapters.registry import Registry
from extproc.adapters.scaling_memory import ScalingMemory
from extproc.errors import RegistryError
from tests.e2e.eventually import eventually
from tests.redis_server import RedisServer
from tests.registry.deployments import Wire
from tests.registry.test_users import ACL, GuardedServer, login

BASE = "extproc:{default}"
LONG_S = 3600.0  # a lease that no test outlasts


@pytest.fixture
def server(kind: str, tmp_path: Path) -> Iterator[RedisServer]:
    with GuardedServer(kind, tmp_path, "--aclfile", str(ACL)) as started:
        yield started


@dataclass
class Clock:
    """A replica's own, which stands until a test moves it."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass
class House:
    """Several replicas on one server, each with a clock of its own that is far from the others'."""

    link: Link
    raw: aioredis.Redis
    clocks: dict[str, Clock] = field(default_factory=dict)

    def replica(self, name: str, lease_s: float = LONG_S) -> Leader:
        self.clocks[name] = Clock(1e6 * len(self.clocks))
        return Leader(self.link, BASE, name, f"{name}:80", lease_s=lease_s, clock=self.clocks[name])

    @property
    def memory(self) -> ScalingMemory:
        return ScalingMemory(self.link, BASE)

    async def lapse(self) -> None:
        """The lease of whoever leads ends on the server's clock."""
        await self.raw.hset(f"{BASE}:leader", "until_ms", "1")


@asynccontextmanager
async def house(server: RedisServer) -> AsyncIterator[House]:
    async with (
        Registry(login(server, "autoscaler")) as registry,
        aioredis.Redis.from_url(server.url, username="autoscaler", password="autoscaler-secret") as raw,
    ):
        assert registry.base == BASE
        yield House(registry.link, raw)


async def test_one_of_many_leads_and_the_others_are_told_who(server: RedisServer) -> None:
    """And it goes on leading, under the same number."""
    async with house(server) as made:
        replicas = [made.replica(f"r{number}") for number in range(8)]
        assert replicas[0].led is None
        leads = await asyncio.gather(*(each.turn() for each in replicas))
        assert sum(leads) == 1
        leader = replicas[leads.index(True)]
        fence = leader.fence
        assert fence is not None
        for each in replicas:
            assert await each.turn() == (each is leader)
            assert each.led is not None
            assert (each.led.about, each.led.fence) == (f"{each.led.name}:80", fence)
            assert each.fence == (fence if each is leader else None)


async def test_a_leader_that_falls_silent_is_followed_under_a_higher_number(server: RedisServer) -> None:
    """Not before its lease ends. When it comes back, somebody else leads."""
    async with house(server) as made:
        one, two = made.replica("one"), made.replica("two")
        assert await one.turn()
        assert not await two.turn()
        before = one.fence
        await made.lapse()
        assert await two.turn()
        assert before is not None
        assert two.fence is not None
        assert two.fence > before
        assert not await one.turn()
        assert one.fence is None


async def test_a_leader_that_resigns_is_followed_at_once(server: RedisServer) -> None:
    """Whoever does not lead cannot give it up for another."""
    async with house(server) as made:
        one, two = made.replica("one"), made.replica("two")
        await one.turn()
        await two.resign()
        assert not await two.turn()
        await one.resign()
        assert one.fence is None
        assert await two.turn()


async def test_a_leader_that_is_too_late_for_its_own_lease_begins_anew(server: RedisServer) -> None:
    """Another may have led in between: what it had begun then is refused."""
    async with house(server) as made:
        one = made.replica("one")
        await one.turn()
        before = one.fence
        assert before is not None
        await made.lapse()
        assert await one.turn()
        assert one.fence is not None
        assert one.fence > before
        assert not await made.memory.write(b"x", before)


async def test_a_leader_steps_down_by_its_own_clock_before_its_lease_ends(server: RedisServer) -> None:
    """Without a word from anybody: four fifths of the lease after it asked."""
    async with house(server) as made:
        one = made.replica("one", lease_s=100.0)
        await one.turn()
        made.clocks["one"].now += 79.9
        assert one.fence is not None
        made.clocks["one"].now += 0.2
        assert one.fence is None
        assert await one.turn()


async def test_a_lease_that_was_given_long_ago_is_not_relied_on(kind: str, tmp_path: Path) -> None:
    """It counts from when it was asked for: the answer may have been on its way for as long as it lasts."""
    with RedisServer(kind, tmp_path) as server:
        async with Wire(server.port) as wire, Link(wire.url) as link:
            leader = Leader(link, BASE, "one", lease_s=0.2)
            assert await leader.turn() in (True, False)  # connects, and loads the script
            wire.delay_s = 0.2
            assert not await leader.turn()
            assert leader.fence is None


async def test_while_redis_is_away_nobody_leads_for_longer_than_the_lease(kind: str, tmp_path: Path) -> None:
    """When it is back and has forgotten everything, numbers are still higher than any before."""
    with RedisServer(kind, tmp_path) as server:
        async with Link(server.url) as link:
            clock = Clock()
            one, two = Leader(link, BASE, "one", lease_s=9.0, clock=clock), Leader(link, BASE, "two", lease_s=9.0)
            await one.turn()
            before = one.fence
            assert before is not None
            server.stop()
            await one.try_turn()
            assert one.fence == before  # its lease may stand
            clock.now += 7.3
            assert one.fence is None
            await one.try_turn()
            assert one.fence is None
            server.start()
            assert await two.turn()
            assert two.fence is not None
            assert two.fence > before
            await one.try_turn()
            assert one.fence is None
            assert not await ScalingMemory(link, BASE).write(b"x", before)


async def test_a_server_whose_clock_is_set_back_keeps_nobody_in_office(server: RedisServer) -> None:
    """The lease would end in a year; it does after as long as it was given for."""
    async with house(server) as made:
        one, two = made.replica("one", lease_s=0.2), made.replica("two")
        await one.turn()
        until_ms = round((time.time() + 3e7) * 1000)
        await made.raw.hset(f"{BASE}:leader", "until_ms", until_ms)
        assert not await two.turn()

        async def leads() -> bool:
            return await two.turn()

        await eventually(leads, bool)


async def test_what_another_program_has_left_there_is_outlasted(server: RedisServer) -> None:
    """A replica that died of it would lead never again, and serve on."""
    async with house(server) as made:
        one = Leader(made.link, BASE, "one", lease_s=0.3)
        await made.raw.hset(f"{BASE}:leader", "name", b"\xff")
        await made.raw.hset(f"{BASE}:leader", "until_ms", "9e15")
        await made.raw.hset(f"{BASE}:leader", "lease_ms", "60000")
        running = asyncio.create_task(one.run())

        async def leads() -> bool:
            return one.fence is not None

        await asyncio.sleep(0.25)
        assert not running.done()
        await made.lapse()
        await eventually(leads, bool)
        running.cancel()


async def test_what_replicas_think_of_the_time_does_not_matter(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No word that they write holds a time of theirs; the clocks of this house are weeks apart, too."""
    async with house(server) as made:
        monkeypatch.setattr(time, "time", lambda: -1e9)
        one, two = made.replica("one"), made.replica("two")
        assert await one.turn()
        assert one.fence is not None
        assert await made.memory.tell(b"x", one.fence)
        monkeypatch.setattr(time, "time", lambda: 1e12)
        assert not await two.turn()
        told = await made.memory.told()
        assert told is not None
        assert 0.0 <= told.age_s < 60.0


async def test_two_never_lead_at_once(server: RedisServer) -> None:
    """Three replicas that miss renewals, resign and come back at random: looked at between any two of their steps."""
    chance, fences = random.Random(7), list[int]()
    async with house(server) as made:
        replicas = [Leader(made.link, BASE, f"r{number}", lease_s=0.06) for number in range(3)]

        async def live(each: Leader) -> None:
            for _ in range(60):
                await asyncio.sleep(chance.choice((0.0, 0.005, 0.02, 0.1)))
                await (each.resign() if chance.random() < 0.1 else each.turn())

        lives = [asyncio.create_task(live(each)) for each in replicas]
        while not all(task.done() for task in lives):
            leading = [fence for each in replicas if (fence := each.fence) is not None]
            assert len(leading) <= 1
            fences += [fence for fence in leading if fence not in fences[-1:]]
            await asyncio.sleep(0)
        await asyncio.gather(*lives)
    assert len(fences) > 5
    assert fences == sorted(set(fences))


async def test_only_the_leader_writes_and_anybody_reads(server: RedisServer) -> None:
    """Its memory, as bytes of any kind, and its word with its age."""
    async with house(server) as made:
        one, memory = made.replica("one"), made.memory
        assert not await memory.write(b"x", 0)
        assert await memory.read() is None
        assert await memory.told() is None
        await one.turn()
        assert one.fence is not None
        data = bytes(range(256)) * 4000
        assert await memory.write(data, one.fence)
        assert await memory.tell(b"\x00", one.fence)
        for wrong in (one.fence + 1, one.fence - 1, 0):
            assert not await memory.write(b"y", wrong)
        assert await memory.read() == data
        await made.lapse()
        assert not await memory.write(b"y", one.fence)
        await made.raw.hset(f"{BASE}:recommendations", "at_ms", round((time.time() - 100) * 1000))
        told = await memory.told()
        assert told is not None
        assert told.data == b"\x00"
        assert told.age_s == pytest.approx(100.0, abs=30.0)
        await made.raw.hset(f"{BASE}:recommendations", "at_ms", "?")
        assert await memory.told() is None
        assert await made.raw.pttl(f"{BASE}:scaling-memory") > 0
        assert await made.raw.pttl(f"{BASE}:leader") > 0


async def test_an_agent_may_not_lead(server: RedisServer) -> None:
    """It needs no right to."""
    async with Registry(login(server, "agent")) as agent:
        with pytest.raises(RegistryError):
            await Leader(agent.link, agent.base, "agent").turn()


async def test_who_may_not_ask_who_leads_says_so_once(server: RedisServer, caplog: pytest.LogCaptureFixture) -> None:
    """Else a replica with another program's login would follow nobody for ever, and nothing would show why."""
    async with Registry(login(server, "agent")) as agent, house(server) as made:
        one = Leader(agent.link, agent.base, "agent")
        for _ in range(2):
            await one.try_turn()
        assert one.refused
        assert [record.getMessage() for record in caplog.records if record.levelname == "WARNING"] == [
            f"this replica cannot lead: {one.refused}"
        ]
        other = made.replica("other")
        await other.try_turn()
        assert other.refused == ""


class Replica:
    """`tests.registry.autoscaler_process` as a process of its own."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def ask(self, words: str) -> str:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{words}\n".encode())
        return (await self._process.stdout.readline()).decode().strip()

    async def fence(self) -> int | None:
        said = (await self.ask("lead")).removeprefix("leads ")
        return None if said == "None" else int(said)

    def signal(self, number: signal.Signals) -> None:
        os.kill(self._process.pid, number)

    async def end(self) -> None:
        with suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()


@asynccontextmanager
async def replica(url: str, name: str, lease_s: float) -> AsyncIterator[Replica]:
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.registry.autoscaler_process", url, name, str(lease_s), stdin=pipe, stdout=pipe
    )
    made = Replica(process)
    try:
        yield made
    finally:
        await made.end()


async def test_a_leader_that_was_frozen_in_the_middle_of_an_act_changes_nothing_any_more(
    kind: str, tmp_path: Path
) -> None:
    """It has made sure that it leads, is stopped, and goes on when another has led for long."""
    with RedisServer(kind, tmp_path) as server:
        async with AsyncExitStack() as stack:
            link = await stack.enter_async_context(Link(server.url))
            memory = ScalingMemory(link, BASE)
            one = await stack.enter_async_context(replica(server.url, "one", 1.0))
            first = await eventually(one.fence, bool)
            two = await stack.enter_async_context(replica(server.url, "two", 1.0))
            assert await two.fence() is None
            assert await one.ask("begin") == f"began {first}"
            assert await one.ask("write first") == "written"

            one.signal(signal.SIGSTOP)
            second = await eventually(two.fence, bool)
            assert first is not None
            assert second is not None
            assert second > first
            assert await two.ask("begin") == f"began {second}"
            assert await two.ask("write second") == "written"

            one.signal(signal.SIGCONT)
            assert await one.ask("write late") == "refused"
            assert await one.fence() is None
            assert await memory.read() == b"second"
            told = await memory.told()
            assert told is not None
            assert told.data == b"second"

            await two.end()
            third = await eventually(one.fence, bool)
            assert third is not None
            assert third > second


async def test_a_replica_that_ends_in_good_order_leaves_at_once(server: RedisServer) -> None:
    """The next one need not wait for its lease."""
    async with house(server) as made:
        one, two = Leader(made.link, BASE, "one", lease_s=LONG_S), made.replica("two")
        leading = asyncio.create_task(one.run())

        async def fence() -> int | None:
            return one.fence

        await eventually(fence, bool)
        assert not await two.turn()
        leading.cancel()
        with suppress(asyncio.CancelledError):
            await leading
        assert one.fence is None
        assert await two.turn()
