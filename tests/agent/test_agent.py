"""The agent between a scripted HTTP backend and a real Valkey."""

from __future__ import annotations

import asyncio

import pytest

from extproc.adapters.registry import Registry
from extproc.agent.backend import Backend, check
from extproc.core.values.instance import Instance, Lifecycle, Load
from extproc.errors import ConfigError
from tests.agent.backends import ScriptedBackend
from tests.agent.harness import LONG_S, eventually, running_agent
from tests.redis_server import RedisServer


async def test_all_that_is_known_of_a_backend_is_published(server: RedisServer, backend: ScriptedBackend) -> None:
    backend.running = 3
    described = Backend(url=backend.url, id="gpu-0", cluster="blue", hardware="h100_sxm", tensor_parallel=2, zone="z")
    async with backend, running_agent(server, described) as (seen, _):
        instance = await seen.is_lifecycle(Lifecycle.READY)
    assert instance == Instance(
        id="gpu-0",
        incarnation="1000.00",
        address=f"127.0.0.1:{backend.port}",
        cluster="blue",
        models=("tiny",),
        lifecycle=Lifecycle.READY,
        engine="vllm",
        engine_version="0.32.0",
        hardware="h100_sxm",
        tensor_parallel=2,
        zone="z",
        max_model_len_tokens=4096,
        load=Load(running=3, waiting=0, kv_usage=0.5),
        age_s=instance.age_s,
    )


async def test_a_backend_goes_from_starting_over_loading_to_ready(
    server: RedisServer, backend: ScriptedBackend
) -> None:
    backend.health, backend.models = 503, []
    async with running_agent(server, Backend(url=backend.url)) as (seen, _):
        await seen.is_lifecycle(Lifecycle.STARTING)
        await backend.up()
        loading = await seen.is_lifecycle(Lifecycle.LOADING)
        assert loading.lifecycle_reason == "health: HTTP 503"
        backend.health = 200
        await seen.until(lambda instance: instance.lifecycle_reason == "models: none listed")
        backend.models = ["tiny", "adapter"]
        ready = await seen.is_lifecycle(Lifecycle.READY)
        assert ready.models == ("tiny", "adapter")
        assert ready.id == f"127.0.0.1:{backend.port}"


async def test_a_backend_that_dies_is_unhealthy_and_comes_back_as_another_incarnation(
    server: RedisServer, backend: ScriptedBackend
) -> None:
    async with backend, running_agent(server, Backend(url=backend.url)) as (seen, _):
        await seen.is_lifecycle(Lifecycle.READY)
        await backend.down()
        dead = await seen.is_lifecycle(Lifecycle.UNHEALTHY)
        assert dead.lifecycle_reason == "health: refused"
        backend.started = 2000.0
        await backend.up()
        again = await seen.is_lifecycle(Lifecycle.READY)
        assert again.incarnation == "2000.00"


async def test_a_restart_between_two_probes_is_a_new_incarnation(server: RedisServer, backend: ScriptedBackend) -> None:
    async with backend, running_agent(server, Backend(url=backend.url)) as (seen, _):
        await seen.until(lambda instance: instance.incarnation == "1000.00")
        backend.started = 2000.0
        await seen.until(lambda instance: instance.incarnation == "2000.00")
        assert {instance.lifecycle for instance in seen.history} == {Lifecycle.READY}


async def test_an_engine_that_is_put_to_sleep_takes_nothing_until_it_is_woken(
    server: RedisServer, backend: ScriptedBackend
) -> None:
    """It counts as loading, without an end in sight, and what it had cached is gone."""
    backend.asleep = False
    async with backend, running_agent(server, Backend(url=backend.url)) as (seen, _):
        awake = await seen.is_lifecycle(Lifecycle.READY)
        backend.asleep = True
        asleep = await seen.is_lifecycle(Lifecycle.LOADING)
        assert (asleep.asleep, asleep.ready_in_s, asleep.models) == (True, None, ("tiny",))
        assert asleep.lifecycle_reason == "asleep: serves nothing until it is woken"
        backend.asleep = False
        woken = await seen.is_lifecycle(Lifecycle.READY)
    assert (awake.incarnation, woken.incarnation) == ("1000.00", "1000.00.1")


async def test_metrics_that_do_not_come_make_the_load_old_and_never_zero(
    server: RedisServer, backend: ScriptedBackend
) -> None:
    backend.running = 7
    async with backend, running_agent(server, Backend(url=backend.url)) as (seen, _):
        await seen.until(lambda instance: instance.load.running == 7)
        backend.stalled.add("/metrics")
        old = await seen.until(lambda instance: instance.age_s > 0.5)
        assert (old.lifecycle, old.load.running) == (Lifecycle.READY, 7)
        backend.stalled.clear()
        backend.running = 8
        await seen.until(lambda instance: instance.load.running == 8 and instance.age_s < 0.5)


@pytest.mark.parametrize("how", ["absent", "rubbish"])
async def test_metrics_without_the_load_are_unknown_and_the_backend_stays_ready(
    server: RedisServer, backend: ScriptedBackend, how: str
) -> None:
    async with backend, running_agent(server, Backend(url=backend.url)) as (seen, _):
        await seen.until(lambda instance: instance.load.running == 0)
        if how == "absent":
            backend.running = None
        else:
            backend.broken.add("/metrics")
        unknown = await seen.until(lambda instance: instance.load == Load())
        assert unknown.lifecycle is Lifecycle.READY
        assert ("rubbish" in unknown.lifecycle_reason or "metrics" in unknown.lifecycle_reason) == (how == "rubbish")


async def test_a_stalled_backend_is_unhealthy_only_after_three_probes(
    server: RedisServer, backend: ScriptedBackend
) -> None:
    async with backend, running_agent(server, Backend(url=backend.url)) as (seen, _):
        await seen.is_lifecycle(Lifecycle.READY)
        before = backend.probes
        backend.stalled.add("/health")
        ill = await seen.is_lifecycle(Lifecycle.UNHEALTHY)
        assert backend.probes - before >= 3
        assert ill.lifecycle_reason == "health: timed out"
        backend.stalled.clear()
        await seen.is_lifecycle(Lifecycle.READY)


async def test_one_backend_that_stalls_does_not_hold_up_another(server: RedisServer, backend: ScriptedBackend) -> None:
    backend.stalled |= {"/health", "/metrics", "/v1/models", "/version"}
    async with ScriptedBackend() as other, backend:
        described = (Backend(url=backend.url, id="slow"), Backend(url=other.url, id="fast"))
        async with running_agent(server, *described) as (seen, _):
            async with asyncio.timeout(LONG_S):
                while sum(instance.id == "fast" for instance in seen.history) < 10:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            assert sum(instance.id == "slow" for instance in seen.history) <= 5


async def test_a_registry_that_goes_and_comes_is_published_to_again(
    server: RedisServer, backend: ScriptedBackend, caplog: pytest.LogCaptureFixture
) -> None:
    async with backend, running_agent(server, Backend(url=backend.url)) as (seen, _):
        await seen.is_lifecycle(Lifecycle.READY)
        server.stop()
        before = backend.probes
        async with asyncio.timeout(LONG_S):
            while backend.probes < before + 5:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        server.start()
        backend.running = 9
        await seen.until(lambda instance: instance.load.running == 9)
    complaints = [record for record in caplog.records if "cannot publish" in record.message]
    assert len(complaints) == 1


async def test_a_stopped_agent_drains_until_its_backend_is_idle(server: RedisServer, backend: ScriptedBackend) -> None:
    backend.running = 2
    async with backend, running_agent(server, Backend(url=backend.url), grace_s=LONG_S) as (seen, stopping):
        await seen.is_lifecycle(Lifecycle.READY)
        stopping.set()
        draining = await seen.is_lifecycle(Lifecycle.DRAINING)
        assert draining.load.running == 2
        backend.running = 0
        stopped = await seen.is_lifecycle(Lifecycle.STOPPED)
        assert stopped.lifecycle_reason == "its agent was stopped"


async def test_draining_ends_with_the_grace_time(server: RedisServer, backend: ScriptedBackend) -> None:
    backend.running = 2
    async with backend, running_agent(server, Backend(url=backend.url), grace_s=0.2) as (seen, stopping):
        await seen.is_lifecycle(Lifecycle.READY)
        stopping.set()
        await seen.is_lifecycle(Lifecycle.STOPPED)
        assert backend.running == 2


async def test_a_host_name_becomes_an_address_for_envoy() -> None:
    assert await Backend(url="http://localhost:8000").resolve() == "127.0.0.1:8000"
    assert await Backend(url="http://[::1]:8000/base").resolve() == "[::1]:8000"
    assert await Backend(url="https://10.0.0.1").resolve() == "10.0.0.1:443"
    assert await Backend(url="http://127.0.0.1:1", address="10.0.0.1:2").resolve() == "10.0.0.1:2"


async def test_an_agent_goes_on_where_the_registry_cannot_be_read(
    server: RedisServer, backend: ScriptedBackend, caplog: pytest.LogCaptureFixture
) -> None:
    """What another program has written there ends neither this publisher nor those of the other backends."""
    async with Registry(server.url) as registry, backend:
        await registry.link.command("SET", f"{registry.base}:seq", "x")
        async with running_agent(server, Backend(url=backend.url)) as (seen, _):
            await eventually(lambda: "its last record cannot be read" in caplog.text)
            await registry.link.command("DEL", f"{registry.base}:seq")
            await seen.is_lifecycle(Lifecycle.READY)


async def test_a_name_without_an_address_is_told_by_name() -> None:
    """The system's own words do not say which."""
    with pytest.raises(OSError, match=r"^cannot look up nowhere\.invalid: "):
        await Backend(url="http://nowhere.invalid:8000").resolve()


def test_the_id_is_taken_from_the_url_if_none_is_given() -> None:
    assert Backend(url="http://gpu-0.local:8000/base").name == "gpu-0.local:8000"
    check([Backend(url="http://[::1]:8000", id="six")])
    with pytest.raises(ConfigError):
        check([])
