"""Loads as an autoscaler sees them, look by look: made-up days with chance arrivals, and the hours of real traces."""

from __future__ import annotations

import csv
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from math import cos, pi
from pathlib import Path
from random import Random

import numpy as np

from extproc.sim.traffic.day import DayShape

TRACES = Path("/work/shared/traces")


@dataclass(frozen=True)
class Looks:
    """Loads of one look after the other, each of the `tick_s` seconds before it."""

    tick_s: float
    loads: np.ndarray  # [look]
    period_s: float


Rate = Callable[[float], float]  # requests/s at a time


def by_chance(rate: Rate, until_s: float, period_s: float, seed: int = 1, tick_s: float = 10.0) -> Looks:
    """Requests that come by chance (Poisson) at this rate; each is a load of 1/s."""
    chance = np.random.default_rng(seed)
    rates = np.array([rate(tick * tick_s + tick_s / 2) for tick in range(round(until_s / tick_s))])
    return Looks(tick_s, chance.poisson(rates * tick_s) / tick_s, period_s)


def day(mean: float, period_s: float, peak_to_trough: float = 4.0) -> Rate:
    """A quiet night and a busy day, smooth."""
    middle, swing = (peak_to_trough + 1) / 2, (peak_to_trough - 1) / 2
    return lambda at_s: mean * (middle - swing * cos(2 * pi * at_s / period_s)) / middle


def bursts(mean: float, period_s: float, days: int, seed: int = 1) -> Rate:
    """Days of the simulator (`extproc.sim.traffic.day`), each with four bursts of its own: no day announces them."""
    chance = Random(seed)
    shape = DayShape()
    minutes = np.array([load for _ in range(days) for load in shape.load(chance)])
    minutes *= mean / minutes.mean()
    return lambda at_s: float(minutes[min(len(minutes) - 1, int(at_s / period_s * len(minutes) / days))])


def steady(mean: float) -> Rate:
    """Always the same."""
    return lambda _at_s: mean


def azure(name: str, period_s: float, times: int = 1, tick_s: float = 10.0) -> Looks:
    """Arrivals of an hour of Azure's 2023 trace, as often as told in a row."""
    with (TRACES / f"azure-2023-{name}.csv").open() as file:
        arrivals = [datetime.fromisoformat(row["TIMESTAMP"][:26]).timestamp() for row in csv.DictReader(file)]
    since = np.array(arrivals) - arrivals[0]
    counts, _ = np.histogram(since, bins=np.arange(0.0, since[-1], tick_s))
    return Looks(tick_s, np.tile(counts / tick_s, times), period_s)
