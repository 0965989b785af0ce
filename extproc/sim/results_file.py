"""Results on file, one JSON object a line, so that a run that was interrupted goes on where it stopped.

Each line says what it is a result of: a digest of all that was simulated, and one of the code that did it. A line is
written whole as soon as its result is there; what a kill leaves of a half-written one is cut off when the file is
opened again. Nothing else in it is ever changed, and of two lines on the same the later counts.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from pathlib import Path
from typing import BinaryIO

import msgspec

from extproc import __version__
from extproc.errors import UNREADABLE, ConfigError
from extproc.sim.code_digest import digest_of
from extproc.sim.report.figures import Figures
from extproc.sim.report.slo import Slos
from extproc.sim.setup import Setup
from extproc.sim.traffic.sources import files_of

_FORMAT = 2  # of these lines; part of every digest of inputs
_HEAD = b'{"extproc_result":'


class _Line(msgspec.Struct, frozen=True, kw_only=True):
    """One result. What was simulated is told in words, too, for people."""

    extproc_result: int = _FORMAT
    inputs: str
    code: str
    version: str
    cell: str
    policy: str
    cpu_s: float
    figures: Figures


class ResultsFile:
    """The results of a file by what they are of; new ones are added to its end."""

    def __init__(self, path: Path) -> None:
        """Read a file, or begin one. Raises ConfigError if it cannot be, or holds anything else."""
        self._path = path
        self._kept: dict[tuple[str, str], _Line] = {}
        try:
            with path.open("a+b") as file:
                self._read(file)
        except OSError as error:
            raise ConfigError(f"cannot write {path}: {error.strerror or error}") from error

    def find(self, setup: Setup, slos: Slos, policy: str) -> tuple[Figures, float] | None:
        """Figures and seconds of computing, if there are any of the same inputs by the code as it is now."""
        code = digest_of(policy, _scaler(setup))
        line = self._kept.get((inputs_digest(setup, slos, policy), code)) if code else None
        return (line.figures, line.cpu_s) if line else None

    def add(self, setup: Setup, slos: Slos, policy: str, figures: Figures, cpu_s: float) -> None:
        """Write a result down; one of a policy from outside is not, since nobody can tell when it is out of date.

        Raises ConfigError if that fails.
        """
        code = digest_of(policy, _scaler(setup))
        if code is None:
            return
        conditions = setup.conditions
        line = _Line(
            inputs=inputs_digest(setup, slos, policy),
            code=code,
            version=__version__,
            cell=f"{setup.trace} {setup.fleet.name} load {setup.load} delay {conditions.state_delay_s:g} "
            f"routers {conditions.replicas} seed {conditions.seed}"
            + (f" {setup.autoscaling.scaler}" if setup.autoscaling else ""),
            policy=policy,
            cpu_s=cpu_s,
            figures=figures,
        )
        try:
            with self._path.open("ab", buffering=0) as file:
                file.write(msgspec.json.encode(line) + b"\n")
        except OSError as error:
            raise ConfigError(f"cannot write {self._path}: {error.strerror or error}") from error

    def _read(self, file: BinaryIO) -> None:
        file.seek(0)
        whole_bytes = 0
        for number, text in enumerate(file, start=1):
            if not text.endswith(b"\n") and (text.startswith(_HEAD) or _HEAD.startswith(text)):
                file.truncate(whole_bytes)
                return
            whole_bytes += len(text)
            try:
                line = msgspec.json.decode(text, type=_Line)
            except UNREADABLE as error:
                if text.startswith(_HEAD):
                    continue  # a line of another version of this program
                raise ConfigError(f"{self._path}, line {number}: no result of extproc simulate --resume") from error
            if line.extproc_result == _FORMAT:
                self._kept[line.inputs, line.code] = line


def inputs_digest(setup: Setup, slos: Slos, policy: str) -> str:
    """Of all that a result depends on but the code, in 16 hexadecimal digits; files count by what is in them."""
    traffic = setup.traffic
    for path in files_of(traffic):
        content = _file_digest(path, path.stat().st_mtime_ns)
        named = traffic.replace(str(path), content)
        traffic = named if named != traffic else f"{traffic} {content}"  # written as `Path` does not, such as a//b
    parts: tuple[object, ...] = (
        traffic,
        setup.fleet,
        setup.conditions,
        setup.load,
        setup.rate_rps,
        setup.requests,
        setup.window_s,
    )
    if setup.autoscaling is not None:
        parts = (*parts, setup.autoscaling)
    limits = sorted((name.value, repr(slo)) for name, slo in slos.items())
    return hashlib.sha256(repr((_FORMAT, policy, parts, limits)).encode()).hexdigest()[:16]


def _scaler(setup: Setup) -> str:
    return setup.autoscaling.scaler.partition("?")[0] if setup.autoscaling else ""


@lru_cache(maxsize=64)
def _file_digest(path: Path, changed_ns: int) -> str:
    """Of a file's content as of that moment."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
