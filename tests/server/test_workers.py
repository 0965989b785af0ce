"""`extproc serve --workers 2` as processes: doors, one set of pages, deaths, ends, and starts that fail."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterable, AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import grpc.aio
import orjson
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from extproc.adapters.http_client import Answer, HttpClient
from extproc.adapters.redis_client import Message
from extproc.adapters.redis_settings import RedisSettings
from extproc.adapters.registry import Registry
from extproc.addresses import UnixSocket
from extproc.config import ServeSettings, WorkerPlace
from extproc.core.flight.bookings import decode
from extproc.demo.processes import Child, wait_for_line
from extproc.observe.record_reader import files, find
from extproc.server.worker_words import told
from tests.core.builders import instance
from tests.e2e.eventually import eventually
from tests.observe.documented import undescribed
from tests.processes import Processes, extproc
from tests.redis_server import RedisServer
from tests.server.test_service import body, headers, process

LONG_S = 60.0  # never reached by a machine that works
ANYWHERE = "127.0.0.1:0"
SERVING = health_pb2.HealthCheckResponse.SERVING


@dataclass
class Service:
    """A parent with its workers, and how to look at it."""

    child: Child
    ports: list[int]
    url: str
    http: HttpClient

    async def page(self, path: str) -> Any:
        """A page as JSON; "" while nobody answers."""
        answer = await self.http.get(f"{self.url}{path}")
        assert isinstance(answer, Answer)
        return orjson.loads(answer.body) if answer.status == 200 else ""

    async def text(self, path: str) -> str:
        """A page that is a line of text."""
        answer = await self.http.get(f"{self.url}{path}")
        assert isinstance(answer, Answer)
        return answer.body.decode().strip()

    async def metrics(self) -> dict[str, float]:
        """Samples by name and labels; each is a metric that docs/metrics.md tells of."""
        answer = await self.http.get(f"{self.url}/metrics")
        assert isinstance(answer, Answer)
        assert undescribed(answer.body.decode(), "service", ["worker"]) == []
        lines = [line for line in answer.body.decode().splitlines() if not line.startswith("#")]
        return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}

    def workers(self) -> list[int]:
        """Process ids of the workers, in the order of their start."""
        parent = self.child.process.pid
        return [int(pid) for pid in Path(f"/proc/{parent}/task/{parent}/children").read_text().split()]


@asynccontextmanager
async def serving(folder: Path, url: str, *flags: str) -> AsyncIterator[Service]:
    """Two workers at free ports, ended with the context."""
    async with Processes(folder) as processes, HttpClient() as http:
        places = ("--listen", ANYWHERE, "--metrics-listen", ANYWHERE, "--workers", "2", "--drain-s", "0")
        child = await processes.start_extproc("serve", "serve", *places, "--redis-url", url, *flags)
        found = await wait_for_line(child, r"2 workers serve ext_proc on (\d+), (\d+); pages on port (\d+)", LONG_S)
        yield Service(child, [int(found[1]), int(found[2])], f"http://127.0.0.1:{found[3]}", http)


async def is_healthy(port: int) -> bool:
    """What Envoy's health check would find."""
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        try:
            answer = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=5)
        except grpc.aio.AioRpcError:
            return False
        return bool(answer.status == SERVING)


async def routed(channel: grpc.aio.Channel) -> Any:
    """A request under way that was sent to an instance."""
    call = process(channel)
    for message in (headers(), body()):
        await call.write(message)
        assert await call.read()
    return call


def is_running(pid: int) -> bool:
    """Whether a process exists; one that has ended and that nobody has waited for does not count."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def exists(path: str) -> bool:
    return Path(path).exists()


async def none_runs(pids: list[int]) -> None:
    """Wait until the last has ended."""

    async def running() -> list[int]:
        return [pid for pid in pids if is_running(pid)]

    await eventually(running, lambda left: not left, LONG_S)


async def test_workers_serve_as_one_and_outlive_the_death_of_one_of_them(tmp_path: Path) -> None:
    """Each has a door; pages are of both; a killed one comes back at its port and takes no count with it.

    The log tells of each by its number, and each has a file of records.
    """
    record = tmp_path / "decisions.jsonl"
    tells = ("--log-format", "json", "--log-decisions", "1", "--record", str(record), "--record-share", "1")
    with RedisServer("valkey", tmp_path) as server:
        async with Registry(server.url) as registry:
            await registry.publish(instance("a"), ttl_s=1000.0)
            async with serving(tmp_path, server.url, *tells) as service:
                first, second = (grpc.aio.insecure_channel(f"127.0.0.1:{port}") for port in service.ports)
                async with first, second:
                    assert [await is_healthy(port) for port in service.ports] == [True, True]
                    assert [await service.text(path) for path in ("/healthz", "/readyz")] == ["ok", "2 of 2 ready"]
                    assert await service.text("/readyz?worker=1") == "ready"
                    calls = [await routed(first), await routed(second), await routed(second)]

                    async def row() -> Any:
                        return {row["id"]: row for row in await service.page("/fleet")}["a"]

                    seen = await eventually(row, lambda row: row["peers"] == 0, LONG_S)
                    assert seen["in_flight"] == 3
                    before = await service.metrics()
                    assert before['extproc_requests_total{action="routed",reason=""}'] == 3.0
                    assert before['extproc_in_flight{worker="0",instance="a"}'] == 1.0
                    assert before['extproc_in_flight{worker="1",instance="a"}'] == 2.0
                    assert before['extproc_workers{state="answering"}'] == 2.0
                    decisions = await service.page("/decisions")
                    assert len({decision["request"] for decision in decisions}) == 3
                    for decision in decisions:
                        explained = await service.page(f"/decisions/{decision['request']}")
                        assert explained["request"]["id"] == decision["request"]
                    calls.append(await routed(first))
                    last = (await service.page("/decisions/last"))["request"]["id"]
                    assert last in {each["request"] for each in await service.page("/decisions?worker=0")}
                    assert "at_s" not in await service.page("/decisions/last")

                    await service.metrics()  # what is counted then is not lost
                    killed, other = service.workers()
                    os.kill(killed, signal.SIGKILL)
                    calls.append(await routed(second))
                    assert await is_healthy(service.ports[1])
                    await wait_for_line(service.child, "worker 0 serves again", LONG_S)
                    assert await is_healthy(service.ports[0])
                    assert other in service.workers()
                    after = await service.metrics()
                    assert after['extproc_requests_total{action="routed",reason=""}'] == 5.0
                    assert after['extproc_worker_restarts_total{worker="0"}'] == 1.0
                    assert after['extproc_worker_restarts_total{worker="1"}'] == 0.0
                    for call in calls:
                        call.cancel()
                pids = service.workers()
                service.child.process.terminate()
                assert await service.child.process.wait() == 0
                await none_runs(pids)
    lines = [orjson.loads(line) for line in (tmp_path / "serve.log").read_text().splitlines()]
    decided = [(line["worker"], line["request"]) for line in lines if line["event"] == "decided"]
    assert {line.get("worker") for line in lines} == {None, 0, 1}
    assert sorted(worker for worker, _ in decided) == [0, 0, 1, 1, 1]
    assert all(find(record, request) for worker, request in decided if worker == 1)
    assert {path.name for path in files(record)} == {"decisions.jsonl.0", "decisions.jsonl.1"}


async def test_workers_end_when_their_parent_is_killed_amid_their_streams(tmp_path: Path) -> None:
    """Nobody passes anything on then. Peers hear that nothing is under way any more, and the directory goes as well."""
    with RedisServer("valkey", tmp_path) as server:
        async with Registry(server.url) as registry:
            await registry.publish(instance("a"), ttl_s=1000.0)
            async with serving(tmp_path, server.url, "--drain-s", "600") as service, AsyncExitStack() as open_:
                pids = service.workers()
                folder = (await wait_for_line(service.child, r"worker 0: .*pages on unix:(\S+)/0\n", LONG_S))[1]
                assert os.stat(folder).st_mode & 0o777 == 0o700
                heard = await open_.enter_async_context(registry.link.follow(f"{registry.base}:bookings"))
                for port in service.ports:
                    channel = await open_.enter_async_context(grpc.aio.insecure_channel(f"127.0.0.1:{port}"))
                    await routed(channel)
                service.child.process.kill()
                await none_runs(pids)
                assert len(pids) == 2
                assert not exists(folder)
                assert await last_words(heard) == [(1, 0), (1, 0)]


async def last_words(heard: AsyncIterable[Message | None]) -> list[tuple[int, int]]:
    """Of each router that is gone, whether its last batch states all it has, and how many requests it has then."""
    said: dict[str, tuple[int, int]] = {}
    async for message in heard:
        if message is None:  # there is nothing more
            break
        batch = decode(message.payload)
        said[batch.router] = (batch.parts, batch.open_requests or 0)
    return list(said.values())


@pytest.mark.parametrize("cut", [0, 4, 100])
def test_a_worker_whose_parent_dies_while_it_speaks_ends_without_a_word(tmp_path: Path, cut: int) -> None:
    """It has nothing to free, and nobody to tell."""
    done, log = orphan(told(placed(tmp_path))[:cut])
    assert (done, log) == (1, "")


def test_a_worker_whose_parent_dies_before_it_serves_leaves_nothing(tmp_path: Path) -> None:
    """The directory was made for its pages; that it serves is told to nobody."""
    folder = tmp_path / "extproc"
    folder.mkdir()
    done, log = orphan(told(placed(folder)))
    assert done in (0, 1)  # 1 where a busy machine takes longer to end it than an orphan has
    assert "the parent of this worker has ended" in log
    assert "Traceback" not in log
    assert not folder.exists()


def test_a_worker_that_is_told_to_end_while_its_loop_starts_ends_in_order(tmp_path: Path) -> None:
    """An exception amid the start of the loop would be the end of it."""
    early = (
        "import os, signal, socket\n"
        "pair = socket.socketpair\n"
        "socket.socketpair = lambda *told: (os.kill(os.getpid(), signal.SIGTERM), pair(*told))[1]\n"
    )
    with worker(early, stdout=subprocess.DEVNULL) as child:
        assert child.stdin is not None
        assert child.stderr is not None
        child.stdin.write(told(placed(tmp_path)))
        child.stdin.flush()
        assert (child.wait(), child.stderr.read()) == (0, b"")


def placed(folder: Path) -> ServeSettings:
    """The only worker, whose Redis is gone."""
    place = WorkerPlace(number=0, of=1, group="ab", folder=folder)
    settings = ServeSettings(redis=RedisSettings(nodes=(("127.0.0.1", 1),)))
    return replace(settings, listen=("127.0.0.1", 0), pages=UnixSocket(folder / "0"), worker=place)


def orphan(words: bytes) -> tuple[int, str]:
    """Status and log of a worker whose parent ends when it has said that, and heard nothing."""
    heard, door = os.pipe()
    os.close(heard)
    try:
        child = worker(stdout=door)
    finally:
        os.close(door)
    _, log = child.communicate(words)
    return child.returncode, log.decode()


def worker(first: str = "", *, stdout: int) -> subprocess.Popen[bytes]:
    """A worker that hears us by its stdin. `first`: code that it runs before all else."""
    code = f"{first}import sys; from extproc.server.worker import main; sys.exit(main())"
    command = (sys.executable, "-c", code)
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=stdout, stderr=subprocess.PIPE)


def test_a_worker_that_cannot_start_at_all_ends_the_others_with_one_line(tmp_path: Path) -> None:
    """As with one worker: the status is 2, and the line says what is in the way."""
    (tmp_path / "door.1").write_text("no socket")
    flags = ("--metrics-listen", ANYWHERE, "--workers", "2", "--drain-s", "0", "--redis-url", "redis://127.0.0.1:1/0")
    done = extproc("serve", "--listen", f"unix:{tmp_path}/door", *flags)
    assert done.returncode == 2
    why = f"cannot listen on unix:{tmp_path}/door.1: a file that is no socket lies there"
    assert done.stderr.strip().splitlines() == [f"extproc serve: {why}"]
    assert not (tmp_path / "door.0").exists()


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("flag", ["--listen", "--metrics-listen"])
def test_a_port_in_use_is_one_line_and_nothing_was_begun(tmp_path: Path, workers: int, flag: str) -> None:
    """Not even of what serves for a moment and drains again; nor does a configuration file tell anything before."""
    (tmp_path / "extproc.yaml").write_text("serve: {max_streams: 7}")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        places = {"--listen": ANYWHERE, "--metrics-listen": ANYWHERE} | {flag: f"127.0.0.1:{port}"}
        flags = [text for pair in places.items() for text in pair]
        done = extproc(
            "serve", *flags, "--workers", str(workers), "--config", str(tmp_path / "extproc.yaml"), "--redis-url",
            "redis://127.0.0.1:1/0",
        )  # fmt: skip
    assert done.returncode == 2
    why = f"extproc serve: cannot listen on 127.0.0.1:{port}: Address already in use"
    if flag == "--metrics-listen":
        why += "; --metrics-listen names another"
    assert done.stderr.strip().splitlines() == [why]
