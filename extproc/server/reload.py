"""Settings that change while the service runs: read again on SIGHUP, and when the file has changed.

What cannot be changed in a running service is told, and stays as it is. Wrong settings leave the old ones in force.
Without a file there is nothing to read again, and a SIGHUP ends the service, as when a terminal is closed.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import NoReturn, Protocol

from extproc.config import ServeSettings
from extproc.errors import ExtprocError
from extproc.observe.config_metrics import DONE, FAILED, ReloadCounts

WATCH_S = 1.0
_LIVE = frozenset(
    "stale_after_s max_in_flight max_queued max_kv_share zone admission max_hold_s drain_s max_streams no_instance "
    "body_limit_bytes answer_models rollout_share tenants_share_prefixes trust_body_priority".split()
)
_NOT_LIVE_HEADER = "cluster_header"  # all other headers are of requests, and are read anew

log = logging.getLogger("extproc.serve")

Stamp = tuple[int, int, int] | None


def stamp_of(path: Path) -> Stamp:
    """What changes with a file, also where a link is set to another one, as of a ConfigMap; None while it is gone."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def in_force(old: ServeSettings, new: ServeSettings) -> tuple[ServeSettings, tuple[str, ...]]:
    """What of new settings a running service can take, and the keys of what it cannot."""
    later = [key for key in sorted(old.said.keys() | new.said.keys()) if _differ(old, new, key) and not _is_live(key)]
    policy = replace(new.policy, hand_over=old.policy.hand_over, max_prefix_entries=old.policy.max_prefix_entries)
    if (policy.cold is None) != (old.policy.cold is None):  # who keeps load intents is there from the start, or not
        later.append("cold")
        policy = replace(policy, cold=old.policy.cold)
    rules = replace(new.rules, strict=old.rules.strict, destination=old.rules.destination, traces=old.rules.traces)
    said = {**new.said, **{key: old.said[key] for key in later if key in old.said}}
    taken = replace(old, policy=policy, rules=rules, max_streams=new.max_streams, drain_s=new.drain_s, said=said)
    return taken, tuple(later)


def _differ(old: ServeSettings, new: ServeSettings, key: str) -> bool:
    return old.said.get(key) != new.said.get(key)


def _is_live(key: str) -> bool:
    section, _, name = key.rpartition(".")
    return section == "serve" and (name in _LIVE or (name.endswith("_header") and name != _NOT_LIVE_HEADER))


class News(Protocol):
    """Where a service has its next settings from."""

    @property
    def counts(self) -> ReloadCounts | None:
        """What became of them, None if somebody else tells."""

    async def run(self, take: Callable[[ServeSettings], None]) -> NoReturn:
        """Hand over what is to be in force, until cancelled."""


class Reload:
    """Keeps the settings of a service up to date."""

    def __init__(self, settings: ServeSettings, again: Callable[[], ServeSettings], path: Path) -> None:
        """`settings` are in force; `again` reads them anew and raises ConfigError; `path` is the file."""
        self._settings, self._again, self._path = settings, again, path
        self._asked = asyncio.Event()
        self._counts = ReloadCounts(time.time())

    @property
    def counts(self) -> ReloadCounts:
        """What became of attempts."""
        return self._counts

    async def run(self, take: Callable[[ServeSettings], None]) -> NoReturn:
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

    async def _reload(self, take: Callable[[ServeSettings], None], *, quietly: bool = False) -> None:
        try:
            new = await asyncio.to_thread(self._again)
            taken, later = in_force(self._settings, new)
            if quietly and taken == self._settings and not later:
                return
            take(taken)
        except (ExtprocError, ValueError) as error:
            self._counts.reloads[FAILED] += 1
            log.warning("%s; the settings before stay in force", error)
            return
        changed = taken != self._settings
        self._settings = taken
        self._counts.reloads[DONE] += 1
        self._counts.loaded_at_s = time.time()
        log.info("the settings were read again; %s", "the new ones are in force" if changed else "nothing is changed")
        if later:
            log.warning("needs a restart: %s", ", ".join(later))
