"""Where the list of backends comes from, and what becomes of those that join and leave it."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from extproc.adapters import yaml_files
from extproc.agent.backend import Backend
from extproc.agent.sources import BackendsFile, DnsName, Source
from extproc.core.values.instance import Lifecycle
from extproc.errors import ConfigError
from tests.agent.backends import ScriptedBackend
from tests.agent.harness import agent, eventually, watching
from tests.redis_server import RedisServer


def write(path: Path, text: str) -> None:
    """As an editor does: never seen half-written, and with a time stamp of its own."""
    beside = path.with_suffix(".new")
    beside.write_text(text)
    beside.replace(path)


async def urls(file: BackendsFile) -> list[str] | None:
    found = await file.read()
    return None if found is None else [backend.url for backend in found]


async def test_a_file_is_read_again_only_when_it_has_changed(tmp_path: Path) -> None:
    """By its time, size or place."""
    path = tmp_path / "backends.yaml"
    write(path, "- {url: 'http://x:1'}")
    file = BackendsFile(path, {})
    assert await urls(file) == ["http://x:1"]
    assert await urls(file) is None
    write(path, "- {url: 'http://x:2'}")
    assert await urls(file) == ["http://x:2"]
    assert await urls(file) is None


async def test_a_file_that_changes_while_it_is_loaded_is_loaded_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing would tell later that it has."""
    path, read = tmp_path / "backends.yaml", yaml_files.read

    def interrupted(where: Path) -> yaml_files.Node:
        found = read(where)
        monkeypatch.setattr(yaml_files, "read", read)
        write(path, "- {url: 'http://x:2'}")
        return found

    write(path, "- {url: 'http://x:1'}")
    monkeypatch.setattr(yaml_files, "read", interrupted)
    file = BackendsFile(path, {})
    assert await urls(file) == ["http://x:2"]


async def test_a_file_that_has_become_wrong_leaves_the_list_before_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Told once, and over when it is mended."""
    path = tmp_path / "backends.yaml"
    write(path, "- {url: 'http://x:1'}")
    file = BackendsFile(path, {})
    await file.read()
    for wrong in ("- {url: [}", "[]", "- {url: 'http://x:1', gpus: 0}"):
        caplog.clear()
        write(path, wrong)
        assert [await urls(file), await urls(file)] == [None, None]
        assert len(caplog.records) == 1
        assert "going on with the list before it" in caplog.text
    path.unlink()
    assert await urls(file) is None
    write(path, "- {url: 'http://x:2'}")
    assert await urls(file) == ["http://x:2"]


async def test_flags_fill_in_what_the_entries_of_a_file_leave_out(tmp_path: Path) -> None:
    """An entry's own word goes first."""
    path = tmp_path / "backends.yaml"
    write(path, "- {url: 'http://x:1'}\n- {url: 'http://x:2', hardware: l40s, tags: {team: a}}")
    found = await BackendsFile(path, {"hardware": "h100_sxm", "zone": "z"}).read()
    assert found == [
        Backend(url="http://x:1", hardware="h100_sxm", zone="z"),
        Backend(url="http://x:2", hardware="l40s", zone="z", tags={"team": "a"}),
    ]


class Names:
    """A name server's answers, one after the other."""

    def __init__(self, *answers: set[str] | OSError) -> None:
        self._answers = list(answers)

    async def __call__(self, host: str) -> set[str]:
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, OSError):
            raise answer
        return answer


async def answers(*names: set[str] | OSError) -> list[list[str] | None]:
    dns = DnsName("http://svc:8000/base", {}, resolve=Names(*names))
    found = [await dns.read() for _ in names]
    return [None if backends is None else [backend.url for backend in backends] for backends in found]


async def test_every_address_of_a_name_is_a_backend() -> None:
    """Of both families, with port and path of the URL."""
    assert await answers({"10.0.0.2", "10.0.0.1", "fd00::1"}) == [
        ["http://10.0.0.1:8000/base", "http://10.0.0.2:8000/base", "http://[fd00::1]:8000/base"]
    ]


async def test_an_address_is_gone_when_two_answers_in_a_row_leave_it_out() -> None:
    """Servers that give a part of the addresses each time do not flap the fleet."""
    one, two = "http://10.0.0.1:8000/base", "http://10.0.0.2:8000/base"
    both, first = {"10.0.0.1", "10.0.0.2"}, {"10.0.0.1"}
    assert await answers(both, first, both, first, first) == [[one, two]] * 4 + [[one]]


async def test_a_name_server_that_fails_takes_nobody_out(caplog: pytest.LogCaptureFixture) -> None:
    """Told once; each backend's own state says more than a missing answer."""
    caplog.set_level("INFO")
    broken = OSError(-3, "Temporary failure in name resolution")
    one = ["http://10.0.0.1:8000/base"]
    assert await answers({"10.0.0.1"}, broken, broken, {"10.0.0.1"}) == [one, None, None, one]
    told = [record.message for record in caplog.records]
    assert told == ["cannot resolve svc: Temporary failure in name resolution; trying on", "svc is resolved again"]


async def test_a_real_name_is_resolved() -> None:
    """That of this machine."""
    backends = await DnsName("http://localhost:8000", {"hardware": "l40s"}).read()
    assert backends is not None
    assert "127.0.0.1:8000" in [backend.name for backend in backends]
    assert {backend.hardware for backend in backends} == {"l40s"}


@pytest.mark.parametrize(
    ("url", "common"),
    [("svc:8000", {}), ("https://svc", {}), ("http://svc", {"gpus": 0}), ("http://svc", {"gpus": "x"})],
)
def test_a_name_that_cannot_be_used_is_told_at_once(url: str, common: dict[str, Any]) -> None:
    """Before anything runs."""
    with pytest.raises(ConfigError):
        DnsName(url, common)


def list_of(backends: list[Backend]) -> Source:
    """A source that tests change under the agent's eyes."""

    async def read() -> list[Backend]:
        return list(backends)

    return Source(read, 0.02)


async def test_backends_that_join_are_published_and_those_that_leave_end_as_stopped(
    server: RedisServer, backend: ScriptedBackend
) -> None:
    """At once, without draining: whoever took them from the list has done so on purpose."""
    async with ScriptedBackend() as other, backend, watching(server) as seen:
        first, second = Backend(url=backend.url, id="first"), Backend(url=other.url, id="second")
        listed = [first]
        async with agent(server, list_of(listed)):
            await eventually(lambda: is_lifecycle(seen.get("first"), Lifecycle.READY))
            listed.append(second)
            await eventually(lambda: is_lifecycle(seen.get("second"), Lifecycle.READY))
            listed.remove(first)
            await eventually(lambda: is_lifecycle(seen.get("first"), Lifecycle.STOPPED))
            gone = seen.get("first")
            assert gone is not None
            assert gone.lifecycle_reason == "no longer among its agent's backends"
            listed.append(first)
            await eventually(lambda: is_lifecycle(seen.get("first"), Lifecycle.READY))
            assert is_lifecycle(seen.get("second"), Lifecycle.READY)


async def test_facts_that_change_are_published_without_a_new_incarnation(
    server: RedisServer, backend: ScriptedBackend
) -> None:
    """A price or a tag is no restart."""
    backend.started = None
    async with backend, watching(server) as seen:
        listed = [Backend(url=backend.url, id="a")]
        async with agent(server, list_of(listed)):
            await eventually(lambda: is_lifecycle(seen.get("a"), Lifecycle.READY))
            listed[0] = Backend(url=backend.url, id="a", price_per_hour=2.5)
            await seen.until(lambda instance: instance.price_per_hour == 2.5)
    assert len({instance.incarnation for instance in seen.history}) == 1
    assert Lifecycle.STOPPED not in {instance.lifecycle for instance in seen.history[:-1]}


async def test_an_id_that_moves_to_another_server_is_another_incarnation(
    server: RedisServer, backend: ScriptedBackend
) -> None:
    """Prefixes and work in flight stayed with the old one."""
    backend.started = None
    async with ScriptedBackend() as other, backend, watching(server) as seen:
        other.started = None
        listed = [Backend(url=backend.url, id="a")]
        async with agent(server, list_of(listed)):
            before = await seen.is_lifecycle(Lifecycle.READY)
            listed[0] = Backend(url=other.url, id="a")
            after = await seen.until(
                lambda instance: instance.address != before.address and instance.lifecycle is Lifecycle.READY
            )
    assert after.incarnation != before.incarnation
    assert Lifecycle.STOPPED not in {instance.lifecycle for instance in seen.history[:-1]}


async def test_sighup_reads_the_file_at_once(server: RedisServer, backend: ScriptedBackend, tmp_path: Path) -> None:
    """Without waiting for the next look at it."""
    path = tmp_path / "backends.yaml"
    write(path, f"- {{url: '{backend.url}', id: a}}")
    again = asyncio.Event()
    async with backend, watching(server) as seen:
        slow = Source(BackendsFile(path, {}).read, every_s=3600.0)
        async with agent(server, slow, again=again):
            await eventually(lambda: seen.get("a") is not None)
            write(path, f"- {{url: '{backend.url}', id: b}}")
            again.set()
            await eventually(lambda: seen.get("b") is not None)


async def test_a_file_that_is_touched_without_a_change_disturbs_nobody(tmp_path: Path) -> None:
    """It is read again, and lists the same."""
    path = tmp_path / "backends.yaml"
    write(path, "- {url: 'http://x:1'}")
    file = BackendsFile(path, {})
    await file.read()
    os.utime(path, ns=(1, 1))
    assert await urls(file) == ["http://x:1"]


def is_lifecycle(instance: object, lifecycle: Lifecycle) -> bool:
    return getattr(instance, "lifecycle", None) is lifecycle
