"""LoRA adapters in the GPUs of instances: which are there, when one that is not could be, and how long that takes.

An engine keeps adapters in `max_loras` slots. A request whose adapter is in one begins at once; where another has to
go for it, the whole batch waits while it is copied from the host's memory, or read from disk. The one that was used
least recently goes, and stays in its slot until then, whether requests use it or not (vLLM,
`vllm/lora/worker_manager.py`, LRUCacheWorkerLoRAManager; SGLang, "LoRA Serving", `--lora-eviction-policy`). One that
running requests use never goes: with all slots in use a request is passed over by others until a slot is free
(vLLM, `vllm/v1/core/sched/scheduler.py`, `scheduled_loras`).

Engines tell which adapters requests use, not which are idle in a slot; that follows from what was used last. Routers
that rank by the same report (Gateway API inference extension, `scorer/lora_affinity.go`: 1.0 in use, 0.8 with a free
slot, 0.6 waiting, 0 with none) know neither, nor what loading is worth beside a queue.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from statistics import median

import numpy as np

from extproc.core.flight.work import Place
from extproc.core.speeds.shapes import Shape, shape_of
from extproc.core.values.arrays import Floats, Numbers
from extproc.core.values.instance import Instance
from extproc.core.values.outcome import Outcome

# Bytes a second from the host's memory to a GPU: PCIe Gen4 x16, over which Punica took 2 ms for an adapter
# (arXiv 2310.18547, section 5.2). Engines take longer that copy tensor by tensor: LoRAX up to a second
# (predibase/lorax issue 433). So this is where learning begins, no more.
_HOST_BYTES_S = 25e9
_RANK = 64  # of an adapter whose rank nobody tells: the largest that is common
_USUAL = Shape(32, 4096, 0)  # of a base model that is not in the table: one of 8B
_MIN_LOADS, _MAX_LOADS = 4, 32  # timed loads that are believed, and that are remembered
_LEAST_S = 1e-4  # of a timed load: one of 0 s would not be told from none, and no other would be timed
_LITTLE_S = 0.05  # with a longer wait predicted, its error would pass for loading


@dataclass(slots=True)
class _Slots:
    """The slots of one instance that tells how many it has."""

    limit: int
    told_s: float | None  # by its operator
    prior_s: float
    loads_s: deque[float]  # as they were timed, on all instances alike
    requests: dict[str, int] = field(default_factory=dict)  # that routers sent and that have not ended, by adapter
    names: tuple[str, ...] = ()  # adapters that it answers to
    told: frozenset[str] = frozenset()  # adapters that requests used when it last reported
    resident: OrderedDict[str, float] = field(default_factory=OrderedDict)  # when loaded; used longest ago first

    @property
    def load_s(self) -> float:
        """Seconds to load an adapter."""
        if self.told_s is not None:
            return self.told_s
        return self.prior_s if len(self.loads_s) < _MIN_LOADS else median(self.loads_s)

    @property
    def in_use(self) -> frozenset[str]:
        """Adapters that requests use or wait for."""
        return self.told.union(self.requests)

    def use(self, adapter: str, loaded_s: float) -> None:
        """Requests use it from now on; if it is not there it is loaded in the place of an idle one."""
        self.resident.setdefault(adapter, loaded_s)
        self.resident.move_to_end(adapter)
        in_use = self.in_use
        for each in [each for each in self.resident if each not in in_use]:
            if len(self.resident) > self.limit:
                del self.resident[each]


class Adapters:
    """The adapters of all instances, by `Instance.key`; of those that do not tell their slots nothing is known."""

    def __init__(self) -> None:
        self.changed: set[str] = set()
        """Keys of which `row` has changed; emptied by the one reader that keeps columns of it (`core.columns`)."""
        self._slots: dict[str, _Slots] = {}
        self._loads_s: dict[tuple[str, int, str], deque[float]] = {}  # by hardware, its parallelism and base model
        self._where: dict[Place, tuple[str, str]] = {}  # instance key and adapter of each open request with one

    def report(self, instance: Instance, now: float) -> None:
        """Take what an instance tells of its adapters."""
        key, limit = instance.key, instance.max_loras
        if not limit or not instance.loras:
            if self._slots.pop(key, None) is not None:
                self.changed.add(key)
            return
        slots = self._slots.get(key)
        if slots is None:
            kind = instance.hardware, instance.tensor_parallel, _base(instance)
            loads_s = self._loads_s.setdefault(kind, deque(maxlen=_MAX_LOADS))
            slots = self._slots[key] = _Slots(limit, instance.lora_load_s, prior_s(instance), loads_s)
        slots.limit, slots.told_s, slots.names = limit, instance.lora_load_s, instance.loras
        slots.told = frozenset(instance.loras_active)
        for adapter in instance.loras_running or instance.loras_active:
            slots.use(adapter, now)
        while len(slots.resident) > limit:
            slots.resident.popitem(last=False)
        self.changed.add(key)

    def forget(self, key: str) -> None:
        """The instance is gone, or has restarted."""
        if self._slots.pop(key, None) is not None:
            self.changed.add(key)

    def note(self, place: Place, key: str, adapter: str, taken_s: float) -> None:
        """Whoever sent it, a request with an adapter is at this instance since then; "": it is over, or elsewhere."""
        if key:
            self._begin(place, key, adapter, taken_s)
        else:
            self._end(place)

    def _begin(self, place: Place, key: str, adapter: str, taken_s: float) -> None:
        slots = self._slots.get(key)
        if slots is None or adapter not in slots.names:
            return
        has_slot = adapter in slots.resident or len(slots.in_use - {adapter}) < slots.limit
        slots.requests[adapter] = slots.requests.get(adapter, 0) + 1
        if has_slot:
            slots.use(adapter, taken_s + slots.load_s)
        self._where[place] = key, adapter
        self.changed.add(key)

    def _end(self, place: Place) -> None:
        key, adapter = self._where.pop(place, ("", ""))
        slots = self._slots.get(key)
        if slots is None or adapter not in slots.requests:
            return
        slots.requests[adapter] -= 1
        if not slots.requests[adapter]:
            del slots.requests[adapter]
        self.changed.add(key)

    def row(self, key: str) -> tuple[float, float, float]:
        """What it takes to bring an adapter to an instance that does not have it.

        Seconds to load it, its turn among those that wait for one of the slots, 0 where one is free, and the requests
        that use one of them (both as `slot_wait_s` takes them).
        """
        slots = self._slots.get(key)
        if slots is None:
            return 0.0, 0.0, 1.0
        in_use = slots.in_use
        waiting = len(in_use) - slots.limit + 1
        if waiting <= 0:
            return slots.load_s, 0.0, 1.0
        requests = sum(max(1, slots.requests.get(adapter, 0)) for adapter in in_use)
        return slots.load_s, waiting / (slots.limit + 1), requests / len(in_use)

    def loaded(self, adapter: str) -> Iterator[tuple[str, float]]:
        """Instances that have an adapter, or are loading it, by key; and when they had or will have loaded it."""
        for key, slots in self._slots.items():
            if adapter in slots.resident and (adapter in (in_use := slots.in_use) or len(in_use) < slots.limit):
                yield key, slots.resident[adapter]

    def load_s(self, key: str) -> float:
        """Seconds to load an adapter, 0 where nothing is known of an instance's slots."""
        slots = self._slots.get(key)
        return slots.load_s if slots else 0.0

    def learn(self, outcome: Outcome) -> None:
        """Take the time of a load from a request that paid for one, and waited for little else."""
        features = outcome.features
        if features is None or not features.loading_s or outcome.ttft_s is None or outcome.attempts > 1:
            return
        slots = self._slots.get(features.instance_key)
        if slots is None or not features.stream or not 200 <= outcome.status < 300:
            return
        if features.queue_s - features.loading_s > _LITTLE_S:
            return
        without_s = features.ttft_s - features.loading_s
        slots.loads_s.append(max(_LEAST_S, outcome.ttft_s - (outcome.routing_s or 0.0) - without_s))
        self.changed.update(key for key, each in self._slots.items() if each.loads_s is slots.loads_s)


def slot_wait_s(turn: Numbers, crowd: Numbers, answer_s: Numbers) -> Floats:
    """Seconds until a slot is free.

    Of k slots, m requests each that are equally likely to be anywhere in answers of `answer_s`, one is free after t
    with a chance of (t/answer_s)^m, and the j-th of them where that is j/(k+1): `turn`. `crowd` is m.
    """
    share: Floats = np.where(turn < 1.0, turn ** (1.0 / crowd), turn)
    return share * answer_s


def prior_s(instance: Instance) -> float:
    """Seconds to load an adapter of rank 64 on the four attention projections, each GPU its part of it.

    Two matrices of rank x hidden size for each projection, in 16 bits: 134 MB and 5 ms for a model of 8B on one GPU.
    """
    shape = shape_of(_base(instance)) or _USUAL
    adapter_bytes = shape.layers * 4 * 2 * _RANK * shape.hidden * 2
    return adapter_bytes / max(1, instance.tensor_parallel) / _HOST_BYTES_S


def _base(instance: Instance) -> str:
    return next((name for name in instance.models if name not in instance.loras), "")
