"""One backend's task: look at it, publish what was seen, wait, over and over until it is told how to end."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING

from extproc.adapters.engines.reading import Reading
from extproc.agent.batch_limit import BatchLimit
from extproc.agent.cold_starts import ColdStarts, Kind, Start, outlook
from extproc.agent.facts import Moment, merge, recalled, record
from extproc.agent.host import HostReader
from extproc.agent.kv_writer import KvWriter
from extproc.agent.lifecycle import LifecycleTracker, Standing
from extproc.agent.pace import Pace
from extproc.agent.probe import Look, look
from extproc.core.values.instance import Instance, Lifecycle
from extproc.errors import RegistryError

if TYPE_CHECKING:
    from extproc.adapters.http_client import HttpClient
    from extproc.adapters.kv_log import KvLog
    from extproc.adapters.registry import Registry
    from extproc.agent.backend import Backend
    from extproc.agent.host import HostReader
    from extproc.agent.recall import LastRecords
    from extproc.agent.settings import AgentSettings
    from extproc.agent.starts_file import StartsFile

_LOOKS = 3  # without a load that should be there, until that is told
_YEAR_2001_S = 1e9  # what is less is no time of day

log = logging.getLogger("extproc.agent")


class Ending(StrEnum):
    """How a publisher ends, and the reason that it publishes."""

    STAY = "stays as it is"  # the last record bridges a restart of the agent
    DRAIN = "its agent was stopped"  # Draining until it is idle, then Stopped
    STOP = "no longer among its agent's backends"  # Stopped at once


@dataclass(slots=True)
class Surroundings:
    """What all publishers of an agent share. `host` is None if the agent does not speak for its machine.

    `settings` may become others.
    """

    client: HttpClient
    registry: Registry
    records: LastRecords
    starts: ColdStarts
    starts_file: StartsFile
    host: HostReader | None
    kv_log: KvLog
    settings: AgentSettings

    def use(self, settings: AgentSettings) -> None:
        """Go by these from now on."""
        self.settings = settings
        self.client.allow(settings.patience_s)
        if settings.host_pressure != (self.host is not None):
            self.host = HostReader() if settings.host_pressure else None


class Publisher:
    """Probes one backend and publishes what it found. Its errors are logged once each and never end it."""

    def __init__(self, backend: Backend, around: Surroundings) -> None:
        self.backend = backend  # may be set to one with the same URL, engine and id
        self._around = around
        self._engine = backend.reader()
        kv_source = backend.kv_source()
        self._kv = KvWriter(kv_source, around.kv_log) if kv_source else None
        self._tracker = LifecycleTracker(born=f"seen-{time.time():.2f}")
        self._pace = Pace(around.settings.periods)
        self._limit = BatchLimit()
        self._start = Start()
        self._start_s: float | None = None  # that this incarnation's took
        self._recalled = False
        self._address = ""
        self._model = ""  # the one named last, for a start whose model is not listed yet
        self._facts = Reading()  # what was told last; its `load` was read at `_load_at_s`
        self._load_at_s: float | None = None
        self._told: Standing | None = None
        self._trouble = ""
        self._untold = ""  # why there is no load, as it was logged last
        self._untold_looks = 0  # in a row
        self._leaving = asyncio.Event()
        self._ending = Ending.STAY

    def end(self, ending: Ending) -> None:
        """Let `run` end soon."""
        self._ending = ending
        self._leaving.set()

    async def run(self) -> None:
        """Publish every period until `end` is called, and end in the way it says."""
        try:
            await self._run()
        finally:
            if self._kv is not None:
                await self._kv.stop()

    async def _run(self) -> None:
        while not self._leaving.is_set():
            began_s = time.monotonic()
            if await self._recall():
                await self._probe()
                if self._leaving.is_set():
                    break
                await self._publish()
            self._pace.use(self._around.settings.periods)
            period_s = self._pace.after(self._tracker.standing().lifecycle, self._facts.load)
            jitter = self._around.settings.jitter
            pause_s = period_s * random.uniform(1 - jitter, 1 + jitter)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._leaving.wait(), max(0.0, began_s + pause_s - time.monotonic()))
        if self._ending is Ending.STAY or not self._recalled:
            return
        if self._ending is Ending.DRAIN:
            await self._drain(time.monotonic() + self._around.settings.grace_s)
        await self._publish(Lifecycle.STOPPED)

    async def _drain(self, until_s: float) -> None:
        await self._publish(Lifecycle.DRAINING)  # before a probe, which may take long
        while (left_s := until_s - time.monotonic()) > 0:
            await asyncio.sleep(min(self._around.settings.periods.shortest_s, left_s))
            await self._probe()
            await self._publish(Lifecycle.DRAINING)
            load = self._facts.load
            standing = self._tracker.standing().lifecycle
            if standing is not Lifecycle.READY or (load.running == 0 and load.waiting == 0):
                return

    async def _recall(self) -> bool:
        """Read the last record once, before anything is published: else a restart would look like a new engine."""
        if self._recalled:
            return True
        try:
            self._address = self._address or await self.backend.resolve()
            last = await self._around.records.get(self.backend.name)
        except (RegistryError, OSError) as error:
            self._complain(f"cannot publish: {error}; trying on")
            return False
        except Exception as error:  # such as an answer of another program: it would end all publishers of this agent
            self._complain(f"its last record cannot be read: {type(error).__name__}: {error}; trying on")
            return False
        if last is not None and last.instance.address == self._address:
            self._tracker.recall(last.instance)
            self._model = next(iter(last.instance.models), "")
            self._facts = recalled(last.instance)
            self._load_at_s = time.monotonic() - last.age_s - last.instance.age_s
        self._recalled = True
        return True

    async def _probe(self) -> None:
        try:
            seen = await look(self.backend, self._engine, self._around.client)
        except Exception:
            log.exception("%s: the probe failed", self.backend.name)
            return
        before = self._tracker.standing().incarnation
        standing = self._tracker.observe(seen.probe)
        if standing.incarnation != before:
            self._start_s = None
            self._facts, self._load_at_s, self._limit = Reading(), None, BatchLimit()
        self._facts = merge(self._facts, seen.reading, load_told=seen.load_told)
        self._model = next(iter(self._facts.models), self._model)
        if seen.load_told:
            self._load_at_s = time.monotonic()
            self._limit.observe(self._facts.load)
        self._learn_start(seen, standing)
        self._tell_untold(seen.untold)

    def _learn_start(self, seen: Look, standing: Standing) -> None:
        around, now_s = self._around, time.time()
        duration_s = self._start.observe(
            seen.probe.sight, standing.lifecycle, _unix_s(seen.probe.started, now_s), now_s
        )
        if duration_s is not None:
            self._start_s = duration_s
            around.starts.learn(self._kind(), duration_s)
            around.starts_file.save(around.starts)
            log.info("%s: its start took %.1f s", self.backend.name, duration_s)

    async def _publish(self, leaving: Lifecycle | None = None) -> None:
        standing = self._tracker.standing()
        if leaving is Lifecycle.STOPPED or (leaving and standing.lifecycle is Lifecycle.READY):
            standing = replace(standing, lifecycle=leaving, reason=self._ending.value)
        try:
            self._address = self._address or await self.backend.resolve()
            instance = self._instance(standing)
            await self._around.registry.publish(instance, self._around.settings.ttl_s)
            if self._kv is not None and instance.kv_events:
                await self._kv.keep(instance)
        except (RegistryError, OSError) as error:
            self._complain(f"cannot publish: {error}; trying on")
            if isinstance(error, OSError):
                return
        except Exception:
            log.exception("%s: publishing failed", self.backend.name)
        else:
            self._complain("")
        if standing.lifecycle is not Lifecycle.READY:
            self._address = ""  # a host name may lead elsewhere once it is back
        self._tell(standing)

    def _instance(self, standing: Standing) -> Instance:
        around = self._around
        elapsed_s = self._start.elapsed_s(time.time())
        progress, ready_in_s = outlook(around.starts, self._kind(), elapsed_s)
        moment = Moment(
            engine=self._engine.name,
            address=self._address,
            age_s=0.0 if self._load_at_s is None else round(time.monotonic() - self._load_at_s, 3),
            learned_max_num_seqs=self._limit.limit,
            loading_progress=None if progress is None else round(progress, 3),
            ready_in_s=None if ready_in_s is None else round(ready_in_s, 1),
            host=around.host.read() if around.host is not None else None,
            start_s=None if self._start_s is None else round(self._start_s, 1),
            model=self.backend.model or self._model,
        )
        return record(self.backend, self._facts, standing, moment)

    def _kind(self) -> Kind:
        return Kind(self.backend.model or self._model, self.backend.hardware, self.backend.storage)

    def _tell(self, standing: Standing) -> None:
        """Log a change of lifecycle or incarnation, once."""
        told, self._told = self._told, standing
        if told is None or (told.lifecycle, told.incarnation) != (standing.lifecycle, standing.incarnation):
            reason = f" ({standing.reason})" if standing.reason else ""
            log.info("%s is %s%s, incarnation %s", self.backend.name, standing.lifecycle, reason, standing.incarnation)

    def _tell_untold(self, why: str) -> None:
        """Log why the load is not known, once it was so in several looks: an engine that starts may answer anything."""
        self._untold_looks = self._untold_looks + 1 if why else 0
        if self._untold_looks == _LOOKS and why != self._untold:
            log.warning("%s: its load is not known; routers see only what they send there: %s", self.backend.name, why)
            self._untold = why

    def _complain(self, trouble: str) -> None:
        """Log a trouble when it begins and when it is over, not every period."""
        if trouble and not self._trouble:
            log.warning("%s: %s", self.backend.name, trouble)
        elif self._trouble and not trouble:
            log.info("%s: is published again", self.backend.name)
        self._trouble = trouble


def _unix_s(started: str, now_s: float) -> float | None:
    """Return the Unix time that an engine's name for its start stands for, None if it is none."""
    try:
        value = float(started)
    except ValueError:
        return None
    return value if _YEAR_2001_S < value <= now_s else None
