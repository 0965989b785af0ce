"""One instance on the virtual clock: its lifecycle, its engine, and the step that it is computing."""

from __future__ import annotations

from collections.abc import Sequence

from extproc.core.values.instance import Instance, Lifecycle, Load
from extproc.sim.fleet.spec import InstanceSpec
from extproc.sim.physics.blocks import BlockPool
from extproc.sim.physics.request import EngineRequest, Progress
from extproc.sim.physics.scheduler import Scheduler
from extproc.sim.policies.policy import Probe

_NO_END = float("inf")
_WHOLE_STRETCH = 1 << 30  # iterations that one step may stand for


class CacheLog:
    """What entered and left a block pool since it was last taken."""

    def __init__(self) -> None:
        self._held: set[int] = set()
        self._changed: dict[int, bool] = {}  # block -> whether it is cached now

    def stored(self, chain: Sequence[int], index: int) -> None:
        """The block at `index` of a chain was cached."""
        self._changed[chain[index]] = True

    def removed(self, block: int) -> None:
        """A block was evicted."""
        self._changed[block] = False

    def cleared(self) -> None:
        """All blocks were forgotten."""
        self._changed = dict.fromkeys(self._held, False)

    def take(self) -> tuple[list[int], list[int]]:
        """Blocks that are cached now and were not when this was last asked, and those of which the reverse is true."""
        changed, self._changed = self._changed, {}
        held = self._held
        stored = [block for block, is_cached in changed.items() if is_cached and block not in held]
        removed = [block for block, is_cached in changed.items() if not is_cached and block in held]
        held.update(stored)
        held.difference_update(removed)
        return stored, removed


class Engine:
    """An instance and all that is true of it. Every `now` is in seconds of the virtual clock."""

    def __init__(self, spec: InstanceSpec, number: int, blocks_per_name: int, *, logs_cache: bool) -> None:
        self.spec = spec
        self.lifecycle = Lifecycle.READY if spec.at_start else Lifecycle.STOPPED
        self.incarnation = 1
        self.slowness = spec.slowness
        self.network_s = spec.network_s
        self.busy_s = 0.0
        self.up_s = 0.0
        self.ends_s = _NO_END  # of the step that is being computed
        self.version = 0  # of `ends_s`: grows whenever that changes
        self.awaited_version = 0  # that somebody waits for
        self._number = number
        self._blocks_per_name = blocks_per_name
        self._logs_cache = logs_cache
        self._began_s = 0.0
        self._reset_pending = False
        self._up_since_s: float | None = 0.0 if spec.at_start else None
        self._boot()

    @property
    def id(self) -> str:
        """Its name in the fleet."""
        return self.spec.id

    @property
    def up(self) -> bool:
        """Whether its machine is there, whatever its engine does."""
        return self._up_since_s is not None

    @property
    def takes_requests(self) -> bool:
        """Whether its port is open; a draining engine still answers."""
        return self.lifecycle in (Lifecycle.READY, Lifecycle.DRAINING)

    def kv_usage(self, now: float) -> float:
        """Share of KV blocks that are held, in the iteration that runs now."""
        step = self.scheduler.planned
        if step is None or step.iterations == 1:
            return self.pool.usage
        return self.scheduler.used_blocks_after(step.iterations_until(now - self._began_s)) / self.pool.total_blocks

    def busy_until(self, now: float) -> float:
        """Seconds in which it has computed until now, the step that runs included."""
        return self.busy_s + (now - self._began_s if self.ends_s < _NO_END else 0.0)

    @property
    def empty(self) -> bool:
        """Whether it has no request, running or waiting."""
        return not (self.scheduler.running or self.scheduler.waiting)

    def load(self, now: float) -> Load:
        """Its gauges, as vLLM's metrics would tell them."""
        scheduler = self.scheduler
        return Load(running=scheduler.running, waiting=scheduler.waiting, kv_usage=self.kv_usage(now))

    def record(self, now: float) -> Instance:
        """What its agent reads right now."""
        load = self.load(now) if self.takes_requests else Load()
        scheduler = self.scheduler
        adapters = scheduler.adapters.running, scheduler.waiting_adapters
        return self.spec.record(self.incarnation, self._number, self.lifecycle, load, *adapters)

    def probe(self, now: float) -> Probe | None:
        """Its own answer to a question; None while its port is closed."""
        if not self.takes_requests:
            return None
        running, waiting = self.scheduler.running, self.scheduler.waiting
        return Probe(running + waiting, running, waiting, self.kv_usage(now))

    def add(self, request: EngineRequest, now: float) -> None:
        """Queue a request; a stretch of decode steps ends at its next boundary. ValueError if it can never run."""
        self.scheduler.add(request)
        self._interrupt(now)

    def received(self, request: EngineRequest, now: float) -> None:
        """The KV of a prompt that another engine computed is here."""
        self.scheduler.received(request)
        self._interrupt(now)

    def begin(self, now: float) -> None:
        """Plan the next step if none is being computed and there is anything to do."""
        if self.ends_s < _NO_END:
            return
        step = self.scheduler.plan(_WHOLE_STRETCH)
        if step is not None:
            self._began_s = now
            self._end_at(now + step.duration_s)

    def end(self) -> Progress:
        """The step is over: hand out what it brought."""
        self.busy_s += self.ends_s - self._began_s
        self.ends_s = _NO_END
        progress = self.scheduler.apply()
        if self._reset_pending:
            self.reset_cache()
        return progress

    def slow_down(self, factor: float, now: float) -> None:
        """Every step from the next one on takes so many times as long as its hardware's fit says."""
        self.slowness = self.spec.slowness * factor
        self.scheduler.slowness = self.slowness
        self._interrupt(now)

    def crash(self, now: float) -> None:
        """Lose everything at once."""
        self.down(now)
        self.lifecycle = Lifecycle.UNHEALTHY
        self.incarnation += 1
        self._boot()

    def stop(self, now: float) -> None:
        """End for good; a later start is another process, with an empty cache."""
        self.down(now)
        self.incarnation += 1
        self._boot()

    def load_model(self, now: float) -> None:
        """Begin to start; the machine is paid for from here on."""
        self.lifecycle = Lifecycle.LOADING
        if self._up_since_s is None:
            self._up_since_s = now

    def down(self, now: float) -> None:
        """Count the time for which it was there so far."""
        if self._up_since_s is not None:
            self.up_s += now - self._up_since_s
            self._up_since_s = None

    def cache_news(self) -> tuple[list[int], list[int]]:
        """Blocks cached and dropped since this was asked last."""
        return self._log.take() if self._log else ([], [])

    def reset_cache(self) -> None:
        """Forget all cached prefixes as soon as no request holds one: engines refuse it before."""
        self._reset_pending = not self.pool.reset_cache()

    def _boot(self) -> None:
        spec = self.spec
        self._log = CacheLog() if self._logs_cache else None
        self.pool = BlockPool(spec.kv_blocks, spec.block_size_tokens, self._blocks_per_name)
        self.pool.log = self._log
        self.scheduler = Scheduler(
            self.pool,
            spec.profile(),
            max_num_seqs=spec.max_num_seqs,
            max_num_batched_tokens=spec.max_num_batched_tokens,
            step_overhead_s=spec.step_overhead_s,
            max_loras=spec.max_loras,
            lora_load_s=spec.lora_load_s,
        )
        self.scheduler.slowness = self.slowness
        self._reset_pending = False
        self.ends_s = _NO_END
        self.version += 1

    def _interrupt(self, now: float) -> None:
        """End a stretch of several iterations where the running one ends."""
        step = self.scheduler.planned
        if step is None or step.iterations == 1:
            return
        iterations = step.iterations_until(now - self._began_s)
        if iterations < step.iterations:
            self._end_at(self._began_s + self.scheduler.cut(iterations))

    def _end_at(self, ends_s: float) -> None:
        self.ends_s = ends_s
        self.version += 1
