"""redis/users.acl on real servers: each user can do all of its work, and nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from extproc.adapters.intents import Intents
from extproc.adapters.kv_log import START, KvLog, KvNews
from extproc.adapters.leader import Leader
from extproc.adapters.profile_memory import ProfileMemory
from extproc.adapters.redis_link import Link
from extproc.adapters.redis_settings import RedisSettings, parse
from extproc.adapters.registry import Registry
from extproc.adapters.scaling_memory import ScalingMemory
from extproc.adapters.start_memory import StartMemory
from extproc.adapters.traffic_counts import TrafficCounts
from extproc.cli import main
from extproc.core.fleet.fleet import Fleet
from extproc.core.values.instance import Lifecycle
from extproc.errors import RegistryError
from tests.core.builders import instance
from tests.redis_server import RedisServer
from tests.registry.deployments import LONG_S, cluster_of_three, until

ACL = Path(__file__).parents[2] / "redis" / "users.acl"
USERS = ("agent", "router", "operator", "autoscaler")


@pytest.fixture
def server(kind: str, tmp_path: Path) -> Iterator[RedisServer]:
    with GuardedServer(kind, tmp_path, "--aclfile", str(ACL)) as started:
        yield started


class GuardedServer(RedisServer):
    """A server that lets nobody in without a password; it says so, and that is an answer."""

    def _answers(self) -> bool:
        return self._says().startswith((b"+PONG", b"-NOAUTH"))


def login(server: RedisServer, user: str, prefix: str = "extproc") -> RedisSettings:
    return parse(server.url, username=user, password=f"{user}-secret", prefix=prefix)


async def test_every_user_can_do_its_work(server: RedisServer) -> None:
    """Agent: records and KV log. Router: follows both, tells its peers. Operator: orders, removals, a look."""
    fleet, news, synced = Fleet(), list[KvNews](), asyncio.Event()
    async with (
        Registry(login(server, "agent")) as agent,
        Registry(login(server, "router")) as router,
        Registry(login(server, "operator")) as operator,
    ):
        kv_log, key = KvLog(agent.link, agent.base), instance("a").key
        follower = KvLog(router.link, router.base)
        tasks = [
            asyncio.create_task(router.watch(fleet, synced=synced)),
            asyncio.create_task(follower.watch(lambda: [key], news.append)),
        ]
        try:
            await asyncio.wait_for(synced.wait(), LONG_S)
            await agent.publish(instance("gone"), ttl_s=0.1)
            await asyncio.sleep(0.2)
            await agent.publish(instance("a"))
            await until(lambda: "a" in {member.instance.id for member in fleet.members()})
            await kv_log.hold("a@0")
            await kv_log.hold(key)
            await kv_log.write_snapshot(key, b"whole", START)
            await kv_log.append(key, b"delta")
            await until(lambda: getattr(news[-1:] and news[-1], "payload", b"") == b"delta")
            assert await operator.order("a", Lifecycle.DRAINING)
            await until(lambda: fleet.get("a").instance.lifecycle is Lifecycle.DRAINING)  # type: ignore[union-attr]
            assert await operator.order("a", None)
            assert [record.instance.id for record in (await operator.state()).records] == ["a"]
            assert await operator.remove("a")
            await until(lambda: fleet.get("a") is None)
            assert await router.link.publish(f"{router.base}:bookings", b"x") == 0
            async with operator.link.follow(f"{operator.base}:events"):
                pass
        finally:
            for task in tasks:
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task


FORBIDDEN: dict[str, tuple[tuple[str | int, ...], ...]] = {
    "agent": (("HSET", "extproc:{default}:orders", "a", "Draining"), ("HGETALL", "extproc:{default}:orders")),
    "router": (
        ("SET", "extproc:{default}:instance:a", "x"),
        ("DEL", "extproc:{default}:instance:a"),
        ("XADD", "extproc:{default}:kv:a", "*", "d", "x"),
        ("EVAL", "return redis.call('SET', KEYS[1], 'x')", 1, "extproc:{default}:seq"),
    ),
    "operator": (("XADD", "extproc:{default}:kv:a", "*", "d", "x"), ("ZADD", "extproc:{default}:ids", 1, "a")),
    "autoscaler": (
        ("DEL", "extproc:{default}:instance:a"),
        ("ZADD", "extproc:{default}:ids", 1, "a"),
        ("XADD", "extproc:{default}:kv:a", "*", "d", "x"),
    ),
}
FORBIDDEN_TO_ALL: tuple[tuple[str | int, ...], ...] = (
    ("GET", "someone-else"),
    ("EVAL", "return redis.call('GET', 'someone-else')", 0),
    ("PUBLISH", "someone-else", "x"),
    ("KEYS", "*"),
    ("SCAN", 0),
    ("FLUSHALL",),
    ("CONFIG", "GET", "*"),
    ("ACL", "LIST"),
    ("CLIENT", "LIST"),
    ("MONITOR",),
    ("SHUTDOWN", "NOSAVE"),
    ("REPLICAOF", "127.0.0.1", 1),
    ("SCRIPT", "FLUSH"),
)


async def test_an_autoscaler_can_do_its_work(server: RedisServer) -> None:
    """It looks at everything, leads, remembers, drains and resumes."""
    fleet, synced = Fleet(), asyncio.Event()
    async with Registry(login(server, "agent")) as agent, Registry(login(server, "autoscaler")) as registry:
        link, base = registry.link, registry.base
        await agent.publish(instance("a"))
        following = asyncio.create_task(registry.watch(fleet, synced=synced))
        try:
            await asyncio.wait_for(synced.wait(), LONG_S)
            for lifecycle in (Lifecycle.DRAINING, None):
                assert await registry.order("a", lifecycle)
            leader = Leader(link, base, "one")
            assert await leader.turn()
            assert leader.fence is not None
            assert await ScalingMemory(link, base).write(b"x", leader.fence)
            assert await ScalingMemory(link, base).read() == b"x"
            await leader.resign()
            assert (await TrafficCounts(link, base).read()).routers == 0
            assert await Intents(link, base).read() == ()
            assert await ProfileMemory(link, base).read() == {}
            assert await StartMemory(link, base).read(60.0) == {}
        finally:
            following.cancel()
            with suppress(asyncio.CancelledError):
                await following


async def test_what_routers_have_learned_is_shared_and_shown(server: RedisServer) -> None:
    """Speeds, by all who have something to do with them."""
    async with Registry(login(server, "router")) as router:
        await ProfileMemory(router.link, router.base).write("one", [])
    for user in ("router", "operator", "autoscaler"):
        async with Registry(login(server, user)) as registry:
            assert await ProfileMemory(registry.link, registry.base).read() == {"one": ()}


async def test_nobody_can_do_anything_else(server: RedisServer) -> None:
    for user in USERS:
        async with Link(login(server, user)) as link:
            for words in (*FORBIDDEN[user], *FORBIDDEN_TO_ALL):
                with pytest.raises(RegistryError, match="does not let this user"):
                    await link.command(*words)


async def test_what_a_user_may_not_do_is_told_with_where_to_look(server: RedisServer) -> None:
    async with Registry(login(server, "router")) as registry:
        with pytest.raises(RegistryError, match=r"(?s)does not let this user.*redis/users\.acl") as caught:
            await registry.publish(instance("a"))
        assert "\n" not in str(caught.value)
        assert "router-secret" not in str(caught.value)


async def test_another_prefix_is_another_house(server: RedisServer) -> None:
    async with Registry(login(server, "agent", prefix="other")) as registry:
        with pytest.raises(RegistryError, match="does not let this user"):
            await registry.publish(instance("a"))


def test_the_command_line_takes_the_password_from_a_file(
    server: RedisServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "password"
    path.write_text("operator-secret\n")
    flags = ["--json", "--redis-url", server.url, "--redis-user", "operator"]
    assert main(["fleet", *flags, "--redis-password-file", str(path)]) == 0
    assert capsys.readouterr().out.strip() == "[]"
    assert main(["fleet", *flags]) == 2
    assert "refused the login" in capsys.readouterr().err


async def test_a_login_that_is_missing_or_wrong_is_told(server: RedisServer) -> None:
    for settings in (parse(server.url), parse(server.url, username="agent", password="sesame")):
        async with Registry(settings) as registry:
            with pytest.raises(RegistryError, match="refused the login") as caught:
                await registry.state()
            assert "sesame" not in str(caught.value)


async def test_the_users_can_work_on_a_cluster(kind: str, tmp_path: Path) -> None:
    """The nodes are set up by the user `default`, who keeps all rights here."""
    users = [line for line in ACL.read_text(encoding="utf-8").splitlines() if line.startswith("user ")]
    with cluster_of_three(kind, tmp_path) as nodes:
        for node in nodes:
            async with Link(node.url) as link:
                for line in users:
                    _, name, *rules = line.split()
                    if name != "default":
                        await link.command("ACL", "SETUSER", name, *rules)

        def cluster(user: str) -> RedisSettings:
            return parse(f"redis+cluster://127.0.0.1:{nodes[0].port}", username=user, password=f"{user}-secret")

        fleet, synced = Fleet(), asyncio.Event()
        async with Registry(cluster("agent")) as agent, Registry(cluster("router")) as router:
            task = asyncio.create_task(router.watch(fleet, synced=synced))
            await asyncio.wait_for(synced.wait(), LONG_S)
            await agent.publish(instance("a"))
            await until(lambda: fleet.get("a") is not None)
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
