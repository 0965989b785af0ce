"""Settings that change while the service runs."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
from envoy.service.ext_proc.v3 import external_processor_pb2 as ext_proc

from extproc.adapters.http_client import HttpClient
from extproc.adapters.registry import Registry
from extproc.cli import parse_arguments
from extproc.commands.reloading import read_again
from extproc.commands.serve import serve_settings
from extproc.config import ServeSettings
from extproc.config_file import reload
from extproc.config_file.reload import DONE, FAILED, Reload
from extproc.demo.processes import wait_for_line
from extproc.errors import ConfigError
from extproc.named_files import Stamp
from extproc.server.reload import _LIVE, in_force
from extproc.server.worker import FromParent
from tests.core.builders import MODEL, instance
from tests.e2e.eventually import eventually
from tests.processes import Processes
from tests.redis_server import RedisServer
from tests.server.test_service import body, headers, process
from tests.server.test_workers import ANYWHERE, LONG_S, Service, serving


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("EXTPROC_")]:
        monkeypatch.delenv(name)


def reloading(settings: ServeSettings, again: Callable[[], ServeSettings], file: Path) -> Reload[ServeSettings]:
    """As `extproc serve` has it."""
    return Reload(settings, again, in_force, file, logging.getLogger("extproc.serve"))


def settings_of(file: Path, text: str | None = None) -> ServeSettings:
    if text is not None:
        file.write_text(text)
    return serve_settings(parse_arguments(["serve", "--config", str(file)]))


@pytest.mark.parametrize(
    ("before", "after", "later"),
    [
        ("", "serve: {max_in_flight: 3, zone: b, tenant_header: x-t, drain_s: 1}", ()),
        ("", "admission: {}", ()),
        ("serve: {rollout_share: 0}", "serve: {rollout_share: 0.01}", ()),
        ("", "limits: {rules: [{concurrent: 3}]}\nclasses: {batch: {ttft: 0.1}}\nown_zone: a", ()),
        ("cold: {}", "cold: {hold_s: 3}", ()),
        ("", "cold: {}", ("cold",)),
        ("cold: {}", "", ("cold",)),
        ("", "serve: {listen: ':1', workers: 3}", ("serve.listen", "serve.workers")),
        ("serve: {listen: ':1'}", "", ("serve.listen",)),
        ("", "serve: {cluster_header: x-c, hand_over: dynamo}", ("serve.cluster_header", "serve.hand_over")),
        ("", "redis: {url: 'redis://h:1/0'}\nfleet: blue", ("fleet", "redis.url")),
        ("", "xds: {listen: ':1'}\nautoscale: {tick_s: 3}", ()),
        ("serve: {max_in_flight: 1}", "serve: {max_in_flight: 1, strict_limits: true}", ("serve.strict_limits",)),
    ],
)
def test_what_can_be_changed_is_and_what_cannot_is_named_and_stays(
    tmp_path: Path, before: str, after: str, later: tuple[str, ...]
) -> None:
    """And is named as often as the file is read, until the restart or until it says what it said before."""
    file = tmp_path / "extproc.yaml"
    old, new = settings_of(file, before), settings_of(file, after)
    taken, told = in_force(old, new)
    assert told == later
    if not later:
        assert taken == new
    else:
        assert replace(taken, said={}) == replace(old, said={})
        assert in_force(taken, new)[1] == later
        assert in_force(taken, old) == (old, ())


@asynccontextmanager
async def watching(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[Reload[ServeSettings], list[ServeSettings]]]:
    """Somebody who looks often, and what it hands over."""
    monkeypatch.setattr(reload, "WATCH_S", 0.01)
    news = reloading(settings_of(file), lambda: settings_of(file), file)
    taken: list[ServeSettings] = []
    task = asyncio.create_task(news.run(taken.append))
    yield news, taken
    assert not task.done()
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


async def counted(news: Reload[ServeSettings], result: str, number: int) -> None:
    async def read() -> int:
        return news.counts.reloads[result]

    await eventually(read, lambda found: found >= number, LONG_S)


async def test_a_file_that_changes_is_taken_and_a_wrong_one_is_told_once_and_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The next right one is."""
    file = tmp_path / "extproc.yaml"
    file.write_text("serve: {max_streams: 1}")
    async with watching(file, monkeypatch) as (news, taken):
        file.write_text("serve: {max_streams: 22}")
        await counted(news, DONE, 1)
        file.write_text("serve: {max_stream: 3}")
        await counted(news, FAILED, 1)
        before_s = news.counts.loaded_at_s
        file.write_text("serve: {max_streams: 4444, workers: 3}")
        await counted(news, DONE, 2)
        assert [each.max_streams for each in taken] == [22, 4444]
        assert news.counts.reloads[FAILED] == 1
        assert news.counts.loaded_at_s > before_s
    warnings = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert warnings == [
        f"{file}:1: serve.max_stream: unknown key; did you mean max_streams?; the settings before stay in force",
        "needs a restart: serve.workers",
    ]


async def test_a_config_map_that_is_updated_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file is a link into a directory that is a link, and that one is set to another directory."""
    for name, number in (("first", 1), ("second", 2)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "extproc.yaml").write_text(f"serve: {{max_streams: {number}}}")
        os.utime(tmp_path / name / "extproc.yaml", (0, 0))
    (tmp_path / "..data").symlink_to("first")
    file = tmp_path / "extproc.yaml"
    file.symlink_to("..data/extproc.yaml")
    async with watching(file, monkeypatch) as (news, taken):
        (tmp_path / "new").symlink_to("second")
        (tmp_path / "new").rename(tmp_path / "..data")
        await counted(news, DONE, 1)
        assert [each.max_streams for each in taken] == [2]


async def test_what_changed_between_the_reading_and_the_watching_is_not_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The start takes seconds."""
    file = tmp_path / "extproc.yaml"
    old = settings_of(file, "serve: {max_streams: 1}")
    file.write_text("serve: {max_streams: 2}")
    news = reloading(old, lambda: settings_of(file), file)
    taken: list[ServeSettings] = []
    task = asyncio.create_task(news.run(taken.append))
    await counted(news, DONE, 1)
    task.cancel()
    assert [each.max_streams for each in taken] == [2]


async def test_a_file_is_read_when_it_has_come_to_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever writes it makes it empty first, and an empty one would lift all limits."""
    looks: Iterator[Stamp] = iter([(0, 0, 0), (1, 0, 0), (2, 0, 0), (3, 0, 0), (3, 0, 0)])
    monkeypatch.setattr(reload, "stamp_of", lambda _: next(looks, (3, 0, 0)))
    monkeypatch.setattr(reload, "WATCH_S", 0.001)
    left: list[int] = []

    def again() -> ServeSettings:
        if not news.counts.reloads and left:  # the first time is the start
            left.append(len(list(looks)))
        left.append(-1)
        return settings

    settings = ServeSettings()
    news = reloading(settings, again, tmp_path)
    task = asyncio.create_task(news.run(lambda _: None))
    await counted(news, DONE, 1)
    task.cancel()
    assert left == [-1, 0, -1]


async def test_a_hangup_reads_anew_though_the_file_has_not_changed(tmp_path: Path) -> None:
    """Files that it names may have."""
    faults = [ConfigError("wrong"), None]

    def again() -> ServeSettings:
        if faults and (fault := faults.pop()) is not None:
            raise fault
        return ServeSettings()

    news = reloading(ServeSettings(), again, tmp_path)
    task = asyncio.create_task(news.run(lambda _: None))
    await asyncio.sleep(0)
    for result in (FAILED, DONE):
        os.kill(os.getpid(), signal.SIGHUP)
        await counted(news, result, 1)
    task.cancel()


def test_what_the_parser_refuses_is_a_fault_of_the_settings_and_no_end_of_the_service() -> None:
    """It ends a command that begins, by SystemExit, which a running one must not be ended by."""
    with pytest.raises(ConfigError, match="do not go together"):
        read_again(["serve", "--workers", "none"], serve_settings, "they do not go together")


async def test_a_fault_of_ours_counts_as_a_failure_and_the_next_settings_are_taken(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Else nobody would look at the file any more."""
    faults: list[Exception | None] = [None, KeyError("zone"), None]

    def again() -> ServeSettings:
        if (fault := faults.pop()) is not None:
            raise fault
        return ServeSettings()

    news = reloading(ServeSettings(), again, tmp_path)
    task = asyncio.create_task(news.run(lambda _: None))
    await asyncio.sleep(0)
    for result in (FAILED, DONE):
        os.kill(os.getpid(), signal.SIGHUP)
        await counted(news, result, 1)
    task.cancel()
    assert "cannot be taken; those before stay in force" in caplog.text


async def answer(channel: grpc.aio.Channel) -> tuple[Any, str]:
    """A call for a model, and what it is answered: `routed`, or the status of a refusal."""
    call = process(channel)
    for message in (headers(), body()):
        await call.write(message)
        reply = ext_proc.ProcessingResponse.FromString(await call.read())
    kind = reply.WhichOneof("response")
    return call, str(reply.immediate_response.status.code) if kind == "immediate_response" else "routed"


async def answered(port: int, wanted: str) -> None:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:

        async def ask() -> str:
            call, told = await answer(channel)
            call.cancel()
            return told

        await eventually(ask, lambda told: told == wanted, LONG_S)


ONCE = 'limits: {rules: [{models: "*", requests_per_minute: 1}]}'
FORBIDDEN = f"models: {{{MODEL}: {{tenants: [nobody]}}}}\nserve: {{tenant_header: x-t}}\n"


async def test_a_service_takes_other_rules_while_requests_run(tmp_path: Path) -> None:
    """By the file's change, and by SIGHUP; a wrong file keeps the rules before; nobody's request ends."""
    file = tmp_path / "extproc.yaml"
    file.write_text("serve: {max_in_flight: 1}")
    with RedisServer("valkey", tmp_path) as server:
        async with Registry(server.url) as registry, Processes(tmp_path) as processes, HttpClient() as http:
            await registry.publish(instance("a"), ttl_s=1000.0)
            places = ("--listen", ANYWHERE, "--metrics-listen", ANYWHERE, "--drain-s", "0", "--stale-after-s", "900")
            flags = ("--redis-url", server.url, "--config", str(file))
            child = await processes.start_extproc("serve", "serve", *places, *flags)
            found = await wait_for_line(child, r"serving ext_proc on port (\d+), pages on port (\d+)", LONG_S)
            port, service = int(found[1]), Service(child, [], f"http://127.0.0.1:{found[2]}", http)
            async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
                running, told = await answer(channel)
                assert told == "routed"
                await answered(port, "503")
                file.write_text("serve: {max_in_flight: 2, listen: ':1', workers: 3}")
                await answered(port, "routed")
                await wait_for_line(child, "needs a restart: serve.workers\n", LONG_S)
                file.write_text("serve: {max_in_flight: many}")
                child.process.send_signal(signal.SIGHUP)
                await wait_for_line(child, "'many' is not a whole number.*the settings before stay in force", LONG_S)
                await answered(port, "routed")
                file.write_text(ONCE)
                os.utime(file, (0, 0))
                child.process.send_signal(signal.SIGHUP)
                await answered(port, "429")
                samples = await service.metrics()
                assert samples['extproc_config_reloads_total{result="failed"}'] == 1.0
                assert samples['extproc_config_reloads_total{result="done"}'] >= 2.0
                assert samples["extproc_config_loaded_timestamp_seconds"] > 1e9
                assert not running.done()
                running.cancel()


@pytest.mark.chaos
async def test_all_workers_take_other_rules_and_so_does_one_that_is_started_again(tmp_path: Path) -> None:
    """The parent reads them; four seconds of CPU for the start."""
    file = tmp_path / "extproc.yaml"
    file.write_text("")
    with RedisServer("valkey", tmp_path) as server:
        async with Registry(server.url) as registry:
            await registry.publish(instance("a"), ttl_s=1000.0)
            flags = ("--config", str(file), "--stale-after-s", "900")
            async with serving(tmp_path, server.url, *flags) as service:
                for port in service.ports:
                    await answered(port, "routed")
                file.write_text(FORBIDDEN)
                service.child.process.send_signal(signal.SIGHUP)
                for port in service.ports:
                    await answered(port, "404")
                samples = await service.metrics()
                assert samples['extproc_config_reloads_total{result="done"}'] >= 1.0
                os.kill(service.workers()[0], signal.SIGKILL)
                await wait_for_line(service.child, "serves again", LONG_S)
                for port in service.ports:
                    await answered(port, "404")


def test_each_setting_that_is_taken_at_once_is_one_of_the_service_and_is_documented() -> None:
    """So that none is only thought to be."""
    page = (Path(__file__).parents[2] / "docs/configuration.md").read_text()
    said = ServeSettings(said=parse_arguments(["serve"]).said).said
    assert {f"serve.{name}" for name in _LIVE} <= said.keys()
    assert [name for name in _LIVE if f"`{name}`" not in page] == []


async def test_settings_that_a_worker_cannot_take_cost_none_that_follow(caplog: pytest.LogCaptureFixture) -> None:
    """Neither those that come while it still starts, nor those that come later from the thread that hears them."""
    news, taken = FromParent(), list[int]()
    second = asyncio.Event()

    def take(settings: ServeSettings) -> None:
        if settings.max_streams % 2:
            raise RuntimeError("odd")
        taken.append(settings.max_streams)
        second.set() if len(taken) > 1 else None

    news.hear(ServeSettings(max_streams=1))
    news.hear(ServeSettings(max_streams=2))
    task = asyncio.create_task(news.run(take))
    try:
        await asyncio.sleep(0)
        assert taken == [2]
        for number in (3, 4):
            await asyncio.to_thread(news.hear, ServeSettings(max_streams=number))
        async with asyncio.timeout(LONG_S):
            await second.wait()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert taken == [2, 4]
    assert caplog.text.count("the parent's settings were not taken") == 2
