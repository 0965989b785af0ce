"""Settings that change while a command runs: read again on SIGHUP, and when the file has changed.

What cannot be changed in a running process is told, and stays as it is. Wrong settings leave the old ones in force.
Without a file there is nothing to read again, and a SIGHUP ends the process, as when a terminal is closed.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, NoReturn, TypeVar

from extproc.errors import ExtprocError
from extproc.named_files import stamp_of

WATCH_S = 1.0
DONE, FAILED = "done", "failed"

Settings = TypeVar("Settings")


@dataclass(slots=True)
class ReloadCounts:
    """What became of attempts, read at the moment of a scrape."""

    loaded_at_s: float  # Unix time at which the settings in force were taken
    reloads: Counter[str] = field(default_factory=Counter)  # by what became of them


def changed(old: Mapping[str, str], new: Mapping[str, str]) -> list[str]:
    """Keys of the file that say something else than before."""
    return [key for key in sorted(old.keys() | new.keys()) if old.get(key) != new.get(key)]


class Reload(Generic[Settings]):
    """Keeps the settings of one command up to date."""

    def __init__(
        self,
        settings: Settings,
        again: Callable[[], Settings],
        in_force: Callable[[Settings, Settings], tuple[Settings, tuple[str, ...]]],
        path: Path,
        log: logging.Logger,
    ) -> None:
        """`settings` are in force; `again` reads them anew and raises ConfigError; `path` is the file.

        `in_force` tells what of new ones can be taken beside the old, and the keys of what cannot.
        """
        self._settings, self._again, self._in_force = settings, again, in_force
        self._path, self._log = path, log
        self._asked = asyncio.Event()
        self._counts = ReloadCounts(time.time())

    @property
    def counts(self) -> ReloadCounts:
        """What became of attempts."""
        return self._counts

    async def run(self, take: Callable[[Settings], None]) -> NoReturn:
        """Watch, and hand over what is to be in force, until cancelled."""
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self._asked.set)
        taken = seen = stamp_of(self._path)
        await self._reload(take, quietly=True)  # it may have changed since it was read
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(WATCH_S):
                    await self._asked.wait()
            asked = self._asked.is_set()
            self._asked.clear()
            before, seen = seen, stamp_of(self._path)
            # A file that is still being written changes again by the next look: an empty one would be all defaults.
            if asked or (seen != taken and seen == before):
                taken = seen
                await self._reload(take)

    async def _reload(self, take: Callable[[Settings], None], *, quietly: bool = False) -> None:
        try:
            new = await asyncio.to_thread(self._again)
            taken, later = self._in_force(self._settings, new)
            if quietly and taken == self._settings and not later:
                return
            take(taken)
        except Exception as error:
            self._counts.reloads[FAILED] += 1
            if isinstance(error, (ExtprocError, ValueError)):
                self._log.warning("%s; the settings before stay in force", error)
            else:  # nor does a fault of ours end the watch: the next file may be taken
                self._log.exception("other settings cannot be taken; those before stay in force")
            return
        changed = taken != self._settings
        self._settings = taken
        self._counts.reloads[DONE] += 1
        self._counts.loaded_at_s = time.time()
        self._log.info(
            "the settings were read again; %s", "the new ones are in force" if changed else "nothing is changed"
        )
        if later:
            self._log.warning("needs a restart: %s", ", ".join(later))
