"""Runs beside backends and publishes their state: one task each, a probe and a record every period."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from extproc.adapters.engines.known import ENGINES
from extproc.adapters.engines.reading import Reading
from extproc.adapters.http_client import HttpClient
from extproc.agent.lifecycle import LifecycleTracker, Standing
from extproc.agent.probe import Look, look
from extproc.core.events import DEFAULT_TTL_S
from extproc.core.model import Instance, Lifecycle
from extproc.errors import RegistryError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from extproc.adapters.registry import Registry
    from extproc.agent.backend import Backend

DEFAULT_PERIOD_S = 1.0
DEFAULT_GRACE_S = 10.0
_JITTER = 0.1  # share of the period, so that many agents do not fall into step

log = logging.getLogger("extproc.agent")


class Publisher:
    """Probes one backend and publishes what it found. Its errors are logged once each and never end it."""

    def __init__(
        self, backend: Backend, client: HttpClient, registry: Registry, *, period_s: float, ttl_s: float
    ) -> None:
        self._backend = backend
        self._engine = ENGINES[backend.engine]
        self._client = client
        self._registry = registry
        self._period_s = period_s
        self._ttl_s = ttl_s
        self._tracker = LifecycleTracker(born=f"seen-{time.time():.2f}")
        self._address = ""
        self._facts = Reading()  # what was told last; its `load` was read at `_load_at_s`
        self._load_at_s: float | None = None
        self._told: Standing | None = None
        self._trouble = ""

    async def run(self, stopping: asyncio.Event, grace_s: float) -> None:
        """Publish every period until `stopping`; then drain for at most `grace_s`, and publish the end."""
        while not stopping.is_set():
            began_s = time.monotonic()
            await self._probe()
            await self._publish()
            pause_s = self._period_s * random.uniform(1 - _JITTER, 1 + _JITTER)
            with suppress(TimeoutError):
                await asyncio.wait_for(stopping.wait(), max(0.0, began_s + pause_s - time.monotonic()))
        await self._drain(time.monotonic() + grace_s)
        await self._publish(Lifecycle.STOPPED)

    async def _drain(self, until_s: float) -> None:
        await self._publish(Lifecycle.DRAINING)  # before a probe, which may take long
        while (left_s := until_s - time.monotonic()) > 0:
            await asyncio.sleep(min(self._period_s, left_s))
            await self._probe()
            await self._publish(Lifecycle.DRAINING)
            load = self._facts.load
            standing = self._tracker.standing().lifecycle
            if standing is not Lifecycle.READY or (load.running == 0 and load.waiting == 0):
                return

    async def _probe(self) -> None:
        try:
            seen = await look(self._backend, self._engine, self._client)
        except Exception:
            log.exception("%s: the probe failed", self._backend.name)
            return
        before = self._tracker.standing().incarnation
        standing = self._tracker.observe(seen.probe)
        if standing.incarnation != before:
            self._facts, self._load_at_s = Reading(), None
        self._remember(seen)

    def _remember(self, seen: Look) -> None:
        """Keep what a page told before if it does not answer now; a load grows old then, and is never zero."""
        facts, reading = self._facts, seen.reading
        self._facts = Reading(
            models=reading.models or facts.models,
            version=reading.version or facts.version,
            max_model_len_tokens=reading.max_model_len_tokens or facts.max_model_len_tokens,
            block_size_tokens=reading.block_size_tokens or facts.block_size_tokens,
            kv_blocks=reading.kv_blocks or facts.kv_blocks,
            max_num_seqs=reading.max_num_seqs or facts.max_num_seqs,
            load=facts.load,
        )
        if seen.load_told:
            self._facts = replace(self._facts, load=reading.load)
            self._load_at_s = time.monotonic()

    async def _publish(self, leaving: Lifecycle | None = None) -> None:
        standing = self._tracker.standing()
        if leaving is Lifecycle.STOPPED or (leaving and standing.lifecycle is Lifecycle.READY):
            standing = replace(standing, lifecycle=leaving, reason="its agent was stopped")
        try:
            self._address = self._address or await self._backend.resolve()
            await self._registry.publish(self._instance(standing), self._ttl_s)
        except (RegistryError, OSError) as error:
            self._complain(f"cannot publish: {error}; trying on")
            if isinstance(error, OSError):
                return
        except Exception:
            log.exception("%s: publishing failed", self._backend.name)
        else:
            self._complain("")
        if standing.lifecycle is not Lifecycle.READY:
            self._address = ""  # a host name may lead elsewhere once it is back
        self._tell(standing)

    def _instance(self, standing: Standing) -> Instance:
        backend, facts = self._backend, self._facts
        return Instance(
            id=backend.name,
            incarnation=standing.incarnation,
            address=self._address,
            cluster=backend.cluster,
            models=facts.models,
            lifecycle=standing.lifecycle,
            lifecycle_reason=standing.reason,
            engine=backend.engine,
            engine_version=facts.version,
            hardware=backend.hardware,
            tensor_parallel=backend.tensor_parallel,
            zone=backend.zone,
            capabilities=backend.capabilities,
            max_model_len_tokens=facts.max_model_len_tokens,
            block_size_tokens=facts.block_size_tokens,
            kv_blocks=facts.kv_blocks,
            max_num_seqs=backend.max_num_seqs or facts.max_num_seqs,
            load=facts.load,
            age_s=0.0 if self._load_at_s is None else round(time.monotonic() - self._load_at_s, 3),
        )

    def _tell(self, standing: Standing) -> None:
        """Log a change of lifecycle or incarnation, once."""
        told, self._told = self._told, standing
        if told is None or (told.lifecycle, told.incarnation) != (standing.lifecycle, standing.incarnation):
            reason = f" ({standing.reason})" if standing.reason else ""
            log.info(
                "%s is %s%s, incarnation %s",
                self._backend.name,
                standing.lifecycle,
                reason,
                standing.incarnation,
            )

    def _complain(self, trouble: str) -> None:
        """Log a trouble when it begins and when it is over, not every period."""
        if trouble and not self._trouble:
            log.warning("%s: %s", self._backend.name, trouble)
        elif self._trouble and not trouble:
            log.info("%s: is published again", self._backend.name)
        self._trouble = trouble


async def run_agent(
    backends: Sequence[Backend],
    registry: Registry,
    stopping: asyncio.Event,
    *,
    period_s: float = DEFAULT_PERIOD_S,
    ttl_s: float = DEFAULT_TTL_S,
    grace_s: float = DEFAULT_GRACE_S,
) -> None:
    """Publish all `backends` until `stopping` is set and they have drained, or `grace_s` is over."""
    async with HttpClient(timeout_s=max(1.0, 2 * period_s)) as client, asyncio.TaskGroup() as group:
        for backend in backends:
            publisher = Publisher(backend, client, registry, period_s=period_s, ttl_s=ttl_s)
            group.create_task(publisher.run(stopping, grace_s))
