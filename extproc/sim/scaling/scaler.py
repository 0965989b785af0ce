"""The one interface of all autoscalers of the simulator: what one gets to see, and what it may want."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from extproc.core.scaling.sight import Sight


@dataclass(frozen=True, slots=True, kw_only=True)
class Autoscaling:
    """How a fleet is scaled; plain values. `scaler` is a text as `hpa_queue?target=3`."""

    scaler: str
    least: int = 1  # instances of each pool
    drain_s: float = 600.0  # that an instance may take to finish what it has: the termination grace
    period_s: float = 86_400.0  # after which its operator expects load to come again
    scrape_s: float = 15.0  # between two readings of all gauges, as Prometheus makes them


@dataclass(frozen=True, slots=True)
class Bounds:
    """How many instances a pool may have, and what one costs."""

    least: int
    most: int
    price_per_hour: float | None = None


@dataclass(frozen=True, slots=True)
class Gauges:
    """What one instance's exporters tell; of a window of time the means."""

    running: float  # requests
    waiting: float
    kv_usage: float  # 0 to 1
    gpu_busy: float  # share of time in which a kernel ran: DCGM_FI_DEV_GPU_UTIL / 100


@dataclass(frozen=True, slots=True)
class Pod:
    """An instance that is wanted: one that drains is none of the pool's any more."""

    id: str
    ready: bool
    gauges: Gauges | None  # None: not scraped yet, or not Ready


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """What can be known of the fleet at one look."""

    now_s: float
    pools: Mapping[str, tuple[Pod, ...]]
    asked: int  # requests that routers had seen at the latest scrape, and
    asked_before: int  # at the one before
    sight: Callable[[], Sight]  # what our routers and agents tell


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Instances of each pool; a pool that is not named stays as it is.

    A scaler that says in `drain` whom to drain also says whom to `resume` and to `stop`. Of one that says None the
    cluster drains the newest, as a ReplicaSet does, and stops each as soon as it is empty or its grace is over.
    """

    counts: Mapping[str, int]
    drain: tuple[str, ...] | None = None
    resume: tuple[str, ...] = ()
    stop: tuple[str, ...] = ()


class Scaler(Protocol):
    """A rule with its memory."""

    @property
    def tick_s(self) -> float:
        """Between two looks."""

    @property
    def window_s(self) -> float:
        """Gauges are means over so many seconds; 0: those of the latest scrape."""

    def look(self, view: View) -> Wanted:
        """How many instances there shall be."""


ScalerFactory = Callable[..., Scaler]
"""`factory(autoscaling, pools, **options)`, `pools` being their `Bounds` by name."""
