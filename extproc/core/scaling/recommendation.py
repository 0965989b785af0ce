"""What is recommended for a pool, and why."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum


class Signal(StrEnum):
    """What can call for instances, or keep them."""

    LOAD = "load"  # what comes now
    FORECAST = "forecast"  # what is expected one cold start ahead
    BACKLOG = "backlog"  # requests that wait in engines and routers
    KV_PRESSURE = "kv_pressure"
    SLO = "slo"  # answers come later than their class allows, though there should be room
    SPARE = "spare"  # instances that may fail
    WANTED = "wanted"  # a model is asked for that nobody serves
    LEAST = "least"  # the operator's lower bound
    MOST = "most"  # and the upper one
    DWELL = "dwell"  # enough for now, but not for long enough yet
    IDLE = "idle"  # nobody has asked for long: none is needed


@dataclass(frozen=True, slots=True)
class Driver:
    """One signal, the instances that it calls for, and why in a few words with numbers."""

    signal: Signal
    instances: int
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """Load of a pool's models, in instances of this pool that it would fill within their SLOs."""

    now: float  # what comes now
    horizon_s: float
    expected: float  # at the horizon: the median
    planned: float  # the quantile that the rules ask for: at the horizon and until then, the most

    def times(self, factor: float) -> Forecast:
        """The same in other instances, of which it fills so many times as many."""
        if factor == 1.0:
            return self
        return replace(
            self,
            now=self.now * factor,
            expected=self.expected * factor,
            planned=self.planned * factor,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What a recommendation rests on, of all that its group serves: the models, over its pools. None: not known."""

    requests_s: float | None = None  # those that routers have shed included
    prompt_tokens_s: float | None = None
    uncached_tokens_s: float | None = None  # of these
    output_tokens_s: float | None = None
    waiting: int = 0  # requests, in engines and routers
    kv_usage: float | None = None  # mean over the Ready ones
    judged: float | None = None  # answers of late that were held against an SLO
    bad_share: float | None = None  # of these, late or slow
    cold_start_s: float  # that is planned for, the longest of the group's pools


@dataclass(frozen=True, slots=True, kw_only=True)
class Recommendation:
    """How many instances a pool should have. `desired` counts those that are Ready and those that start."""

    pool: str
    at_s: float
    desired: int
    ready: int  # those that have been Unhealthy for a moment only included
    coming: int  # Starting or Loading
    leaving: int  # Draining
    drivers: tuple[Driver, ...]  # of all signals, the one that decided first
    without: int  # what would be desired if that one had said nothing
    broken: int = 0  # Unhealthy, or on their way for far too long: nobody counts on them
    most: int | None = None  # that the pool may have; None: by a leader that does not tell it
    forecast: Forecast | None = None  # None: it is not known what comes
    measured: Measured | None = None
    drain: tuple[str, ...] = ()  # ids of instances that should take nothing new from now on
    resume: tuple[str, ...] = ()  # that are draining and are needed again: sooner there than any start
    stop: tuple[str, ...] = ()  # that have finished what they had, or had their time for it
