"""Keeps what was learned about cold starts in a small JSON file, across restarts of the agent."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING

import msgspec

from extproc.agent.cold_starts import ColdStarts, Kind
from extproc.errors import UNREADABLE

if TYPE_CHECKING:
    from pathlib import Path

log = logging.getLogger("extproc.agent")


class _Line(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    model: str = ""
    hardware: str = ""
    storage: str = ""
    durations_s: list[float]


class StartsFile:
    """The file at `path`; without one nothing is kept. Trouble with it is logged and never stops the agent."""

    def __init__(self, path: Path | None) -> None:
        self._path = path

    def load(self) -> ColdStarts:
        """Return what the file holds; nothing if it is missing or cannot be read."""
        starts = ColdStarts()
        if self._path is None:
            return starts
        try:
            lines = msgspec.json.decode(self._path.read_bytes(), type=list[_Line])
        except FileNotFoundError:
            return starts
        except (OSError, *UNREADABLE) as error:
            log.warning("cannot use what %s holds of cold starts: %s; beginning anew", self._path, error)
            return starts
        starts.load([(Kind(line.model, line.hardware, line.storage), line.durations_s) for line in lines])
        return starts

    def save(self, starts: ColdStarts) -> None:
        """Write everything, in one step as others see it."""
        if self._path is None:
            return
        lines = [
            _Line(model=kind.model, hardware=kind.hardware, storage=kind.storage, durations_s=durations_s)
            for kind, durations_s in starts.dump()
        ]
        beside = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        try:
            beside.write_bytes(msgspec.json.format(msgspec.json.encode(lines), indent=1) + b"\n")
            beside.replace(self._path)
        except OSError as error:
            log.warning("cannot write cold starts to %s: %s", self._path, error.strerror or error)
