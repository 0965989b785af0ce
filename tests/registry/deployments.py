"""Redis as operators deploy it, for tests: sentinels, a cluster, TLS, and a wire that can be made slow."""

from __future__ import annotations

import asyncio
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import redis
from extproc.demo.ports import free_port
from tests.redis_server import RedisServer

LONG_S = 60.0  # never reached by a machine that works


def ask(server: RedisServer, *words: object) -> Any:
    """Run one command on a server."""
    with redis.Redis(port=server.port, protocol=2) as client:
        client.response_callbacks.clear()
        return client.execute_command(*words)


async def until(condition: Callable[[], bool]) -> None:
    """Wait until something holds."""
    async with asyncio.timeout(LONG_S):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.02)


class Watched:
    """One primary, one replica, and sentinels that fail over half a second after the primary's death."""

    def __init__(self, primary: RedisServer, replica: RedisServer, sentinels: list[RedisServer]) -> None:
        self.primary, self.replica, self.sentinels = primary, replica, sentinels
        nodes = ",".join(f"127.0.0.1:{sentinel.port}" for sentinel in sentinels)
        self.url = f"redis+sentinel://{nodes}/mymaster"

    def told_primary(self) -> int:
        """The primary's port as the first living sentinel has it."""
        return int(ask(self.sentinels[-1], "SENTINEL", "GET-MASTER-ADDR-BY-NAME", "mymaster")[1])


@contextmanager
def watched_by_sentinels(kind: str, folder: Path, sentinels: int = 3) -> Iterator[Watched]:
    """Start primary, replica and sentinels, and wait until these know of each other."""
    with ExitStack() as stack:

        def server(name: str, *options: str) -> RedisServer:
            (folder / name).mkdir()
            return stack.enter_context(RedisServer(kind, folder / name, *options))

        primary = server("primary", "--repl-diskless-sync-delay", "0")
        replica = server("replica", "--replicaof", "127.0.0.1", str(primary.port), "--repl-diskless-sync-delay", "0")
        watching = []
        for number in range(sentinels):
            config = folder / f"sentinel-{number}.conf"
            config.write_text(
                f"sentinel monitor mymaster 127.0.0.1 {primary.port} {sentinels // 2 + 1}\n"
                "sentinel down-after-milliseconds mymaster 500\nsentinel failover-timeout mymaster 3000\n"
            )
            (folder / f"sentinel-{number}").mkdir()
            watching.append(stack.enter_context(SentinelServer(kind, folder / f"sentinel-{number}", str(config))))
        group = Watched(primary, replica, watching)
        while any(not knows_all(sentinel, sentinels) for sentinel in watching):
            time.sleep(0.05)
        yield group


class SentinelServer(RedisServer):
    """A sentinel: its configuration file comes first, and it keeps no data."""

    def __init__(self, kind: str, folder: Path, config: str) -> None:
        super().__init__(kind, folder)
        self._command = [self._command[0], config, "--port", str(self.port), "--bind", "127.0.0.1"]
        self._command += ["--dir", str(folder), "--sentinel"]


def knows_all(sentinel: RedisServer, sentinels: int) -> bool:
    """Whether a sentinel has seen the replica and the other sentinels."""
    flat = ask(sentinel, "SENTINEL", "MASTER", "mymaster")
    state = dict(zip(flat[::2], flat[1::2], strict=True))
    replicas = ask(sentinel, "SENTINEL", "REPLICAS", "mymaster")
    up = [dict(zip(flat[::2], flat[1::2], strict=True)) for flat in replicas]
    return int(state[b"num-other-sentinels"]) == sentinels - 1 and [
        replica[b"master-link-status"] for replica in up
    ] == [b"ok"]


def cluster_node(kind: str, folder: Path) -> tuple[RedisServer, int]:
    """A server, not started yet, that is to be one of a cluster, and the port of its bus."""
    options = ("--cluster-enabled", "yes", "--cluster-node-timeout", "2000")
    if kind != "redis-6.2":
        bus = free_port()
        return RedisServer(kind, folder, *options, "--cluster-port", str(bus)), bus
    while (node := RedisServer(kind, folder, *options)).port > 55_535:  # there the bus is 10,000 above
        pass
    return node, node.port + 10_000


@contextmanager
def cluster_of_three(kind: str, folder: Path) -> Iterator[list[RedisServer]]:
    """Start three nodes that share the slots, and wait until all find the cluster whole."""
    with ExitStack() as stack:
        nodes, buses = [], []
        for number in range(3):
            (folder / str(number)).mkdir()
            node, bus = cluster_node(kind, folder / str(number))
            nodes.append(stack.enter_context(node))
            buses.append(bus)
        for node, first, last in zip(nodes, (0, 5461, 10923), (5461, 10923, 16384), strict=True):
            ask(node, "CLUSTER", "ADDSLOTS", *range(first, last))
        for number, node in enumerate(nodes):
            ask(node, "CLUSTER", "SET-CONFIG-EPOCH", number + 1)
        for node, bus in zip(nodes[1:], buses[1:], strict=True):
            ask(nodes[0], "CLUSTER", "MEET", "127.0.0.1", node.port, bus)
        while any(b"cluster_state:ok" not in ask(node, "CLUSTER", "INFO") for node in nodes) or any(
            len(ask(node, "CLUSTER", "SLOTS")) != 3 for node in nodes
        ):
            time.sleep(0.05)
        yield nodes


def node_id(node: RedisServer) -> str:
    """A node's name in its cluster."""
    return str(ask(node, "CLUSTER", "MYID").decode())


def certificates(folder: Path) -> None:
    """Write an authority, and certificates of a server for 127.0.0.1 and of a client, as .pem and .key files."""

    def openssl(*words: str) -> None:
        subprocess.run(["openssl", *words], check=True, capture_output=True, cwd=folder)

    new = ("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2")
    openssl(*new, "-x509", "-subj", "/CN=tests", "-keyout", "ca.key", "-out", "ca.pem")
    for name in ("server", "client"):
        (folder / f"{name}.ext").write_text("subjectAltName=IP:127.0.0.1\n")
        words = [word for word in new if word not in ("-days", "2")]
        openssl(*words, "-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.csr")
        signed = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2", "-extfile", f"{name}.ext")
        openssl("x509", "-req", "-in", f"{name}.csr", *signed, "-out", f"{name}.pem")


class Wire:
    """A TCP proxy to a server; what it carries in either direction waits `delay_s`."""

    def __init__(self, target_port: int) -> None:
        self.delay_s = 0.0
        self._target_port = target_port
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Wire:
        self._server = await asyncio.start_server(self._carry, "127.0.0.1", 0)
        self.url = f"redis://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/0"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there, back = await asyncio.open_connection("127.0.0.1", self._target_port)
        except OSError:
            writer.close()
            return
        for source, sink in ((reader, back), (there, writer)):
            task = asyncio.create_task(self._one_way(source, sink))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _one_way(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        try:
            while data := await source.read(65536):
                await asyncio.sleep(self.delay_s)
                sink.write(data)
                await sink.drain()
        except ConnectionError:
            pass
        finally:
            sink.close()


class CutWire(Wire):
    """A wire that breaks, once it is `armed`, between what the script of that digest does and its reply."""

    armed = ""
    cut = 0

    async def __aenter__(self) -> CutWire:
        await super().__aenter__()
        return self

    async def _one_way(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        async def read() -> bytes:
            data = await source.read(65536)
            if self.armed and self.armed.encode() in data:
                self.armed, self.cut = "", 1
            elif self.cut == 1 and data.startswith(b":"):  # an integer, as settle.lua replies
                self.cut = 2
                return b""
            return data

        try:
            with suppress(ConnectionError):
                while data := await read():
                    sink.write(data)
                    await sink.drain()
        finally:
            sink.close()
