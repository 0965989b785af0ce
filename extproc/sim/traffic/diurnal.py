"""Load as an autoscaler meets it: days with noise, nights, and bursts that come at no hour of their own.

Requests are alone, each with a question of its own behind the prompt of one of a few applications: nobody waits for an
answer before asking again, so that a fleet that is too small does not slow down who asks.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from itertools import accumulate
from random import Random

from extproc.sim.traffic.arrival import Arrival, Traffic
from extproc.sim.traffic.texts import BLOCK_TOKENS, Lengths, Text, Writer, pick, zipf

SYSTEM_TOKENS = (800, 3000)
APPS = 8
QUESTION_TOKENS = Lengths(4000, 0.5, 200, 12_000)
ANSWER_TOKENS = Lengths(500, 0.5, 20, 2000)
STEP_S = 10.0  # in which load is the same
NOISE_S = 300.0  # time constant of the noise: a slow rise and fall of some minutes
DAY_SIGMA = 0.1  # by how much one day is busier than another
BURST_S = (90.0, 300.0)  # shortest and longest
RAMP_S = 30.0  # in which one reaches its height


def diurnal(
    requests: int = 2000,
    seed: int = 0,
    requests_s: float = 5.0,
    days: int = 3,
    peak_to_trough: float = 4.0,
    noise: float = 0.1,
    bursts: float = 0.0,
    burst_factor: float = 2.0,
    night: float = 0.0,
) -> Traffic:
    """`requests` in so many days, at `requests_s` a second on the average; a day begins at its quietest.

    `noise`: standard deviation of the load's logarithm around the day's course. `bursts`: in a day, at random moments,
    each `burst_factor` times what would come anyway. `night`: share of a day, half at its beginning and half at its
    end, in which nobody asks.
    """
    random = Random(f"diurnal {seed}")
    span_s = requests / requests_s
    shape = _Shape(span_s / days, peak_to_trough, night)
    steps = max(days, round(span_s / STEP_S))
    day_levels = [random.lognormvariate(0.0, DAY_SIGMA) for _ in range(days)]
    noises = _noises(steps, span_s / steps, noise, random)
    raised = _bursts(steps, span_s, round(bursts * days), burst_factor, random)
    load = [
        shape.at((step + 0.5) * span_s / steps) * day_levels[min(days - 1, step * days // steps)] * factor * burst
        for step, factor, burst in zip(range(steps), noises, raised, strict=True)
    ]
    moments = _moments(requests, load, span_s, random)
    return Traffic(name="diurnal", arrivals=_asked(moments, random), block_size_tokens=BLOCK_TOKENS)


class _Shape:
    """The day's course, 1 at its busiest."""

    def __init__(self, day_s: float, peak_to_trough: float, night: float) -> None:
        self._day_s, self._trough, self._night = day_s, 1.0 / peak_to_trough, night

    def at(self, at_s: float) -> float:
        part = at_s / self._day_s % 1.0
        if not self._night / 2 <= part < 1.0 - self._night / 2:
            return 0.0
        return self._trough + (1.0 - self._trough) * (1.0 - math.cos(2 * math.pi * part)) / 2


def _noises(steps: int, step_s: float, sigma: float, random: Random) -> list[float]:
    """Factors of a log-normal process whose memory fades over `NOISE_S`."""
    kept = math.exp(-step_s / NOISE_S)
    value, values = random.gauss(0.0, sigma), []
    for _ in range(steps):
        values.append(math.exp(value))
        value = kept * value + random.gauss(0.0, sigma * math.sqrt(1.0 - kept * kept))
    return values


def _bursts(steps: int, span_s: float, bursts: int, factor: float, random: Random) -> list[float]:
    """Factors that are 1 outside of all bursts; each rises and falls within `RAMP_S`."""
    factors = [1.0] * steps
    for _ in range(bursts):
        begins_s, lasts_s = random.random() * span_s, random.uniform(*BURST_S)
        for step in range(steps):
            inside_s = (step + 0.5) * span_s / steps - begins_s
            if 0.0 <= inside_s <= lasts_s:
                height = min(1.0, inside_s / RAMP_S, (lasts_s - inside_s) / RAMP_S)
                factors[step] = max(factors[step], 1.0 + (factor - 1.0) * height)
    return factors


def _moments(requests: int, load: list[float], span_s: float, random: Random) -> list[float]:
    """A Poisson process with such a course, so long that as many requests as wanted fall into it."""
    passed = list(accumulate(random.expovariate(1.0) for _ in range(requests + 1)))
    reached = [0.0, *accumulate(load)]
    step_s, moments = span_s / len(load), []
    for each in passed[:-1]:
        at = reached[-1] * each / passed[-1]
        step = min(bisect_right(reached, at) - 1, len(load) - 1)
        moments.append(step_s * (step + (at - reached[step]) / (reached[step + 1] - reached[step])))
    return moments


def _asked(moments: list[float], random: Random) -> tuple[Arrival, ...]:
    writer = Writer()
    prompts = [writer.after(Text(), random.randint(*SYSTEM_TOKENS)) for _ in range(APPS)]
    weights = zipf(APPS)
    arrivals = []
    for at_s in moments:
        prompt = writer.after(prompts[pick(random, weights)], QUESTION_TOKENS.whole(random))
        arrivals.append(writer.asked(prompt, ANSWER_TOKENS.whole(random), at_s=at_s)[0])
    return tuple(arrivals)
