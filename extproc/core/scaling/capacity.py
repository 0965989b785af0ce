"""How many requests a second instances carry within their SLO, from their speed and the sizes of requests.

Let F be the fixed seconds of a step, g those that each running sequence adds, w those of computing one prompt, O the
tokens of an answer. At L requests a second an instance computes prompts for L * w of each second, so that a step with
x running sequences takes in the mean

    tau(x) = (F + g * x) / (1 - L * w)

which is the TPOT of each of them. Sequences come with L a second and go with x / (O * tau(x)): processor sharing, of
which the stationary distribution is known, whatever the distribution of the lengths of answers (insensitivity; F. P.
Kelly, Reversibility and Stochastic Networks, 1979, chapter 3):

    p(n) ~ product over k <= n of L * O * tau(k) / k

m instances between which a router keeps the balance are one such system with m times the requests and n / m sequences
on each: the more there are, the less their load varies and the nearer they can be driven to the limit. Requests that
come in bursts (variance over mean z) are worth m / z instances. From p follows which share of answers is slower than
the SLO's TPOT. The first token waits for the step that runs, for a place in the batch if all are taken (Little), and for
the prompts before it (M/G/m: Erlang's C, tail as in the heavy-traffic limit).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median

import numpy as np

from extproc.core.pricing.classes import ClassPolicy
from extproc.core.pricing.slo import Slo
from extproc.core.scaling.demand import Demand
from extproc.core.speeds.speed import Speed
from extproc.core.values.arrays import Floats
from extproc.core.values.instance import Instance

GOOD = 0.99  # share of answers that are within their SLO at capacity
_MAX_NUM_SEQS = 256  # vLLM's default
_STEP_TOKENS = 2048  # its least default of a server
_POINTS = 400
_HALVINGS = 26


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What an instance's engine allows."""

    max_num_seqs: int = _MAX_NUM_SEQS
    kv_tokens: float | None = None  # None: not known, taken to be enough
    step_tokens: int = _STEP_TOKENS  # that one step computes at the most


def limits_of(instances: Iterable[Instance]) -> Limits:
    """Return the usual limits of instances alike: of each, the median of those that are known."""
    those = list(instances)
    seqs = [each.max_num_seqs for each in those if each.max_num_seqs]
    steps = [each.step_tokens for each in those if each.step_tokens]
    rooms = [each.kv_blocks * each.block_size_tokens for each in those if each.kv_blocks and each.block_size_tokens]
    return Limits(
        max_num_seqs=int(median(seqs)) if seqs else _MAX_NUM_SEQS,
        kv_tokens=float(median(rooms)) if rooms else None,
        step_tokens=int(median(steps)) if steps else _STEP_TOKENS,
    )


def tightest(classes: ClassPolicy) -> Slo:
    """Return the least TTFT and the least TPOT that any class promises, None where none does."""
    slos = [weights.slo for weights in classes.classes.values()]
    return Slo(
        ttft_s=min((slo.ttft_s for slo in slos if slo.ttft_s is not None), default=None),
        tpot_s=min((slo.tpot_s for slo in slos if slo.tpot_s is not None), default=None),
    )


def capacity_rps(
    speed: Speed, demand: Demand, limits: Limits, slo: Slo, *, instances: float = 1.0, good: float = GOOD
) -> float:
    """Return the most requests a second that each of `instances` alike carries with `good` of them within the SLO.

    Of `demand` only sizes and burstiness count. 0 if a request alone is beyond the SLO.
    """
    work = _Work.of(speed, demand, limits)
    least, most = 0.0, work.most_rps
    for _ in range(_HALVINGS):
        middle = (least + most) / 2
        least, most = (middle, most) if work.good_share(middle, instances, slo) >= good else (least, middle)
    return least


def load_of(speed: Speed, demand: Demand, limits: Limits, slo: Slo, *, good: float = GOOD) -> float:
    """Return how many such instances `demand` fills within the SLO; with more of them, each carries more.

    Infinite where none is enough: a request alone is beyond the SLO. Rounded up, it is how many are needed.
    """
    if demand.requests_s <= 0.0:
        return 0.0
    work = _Work.of(speed, demand, limits)
    if work.good_share(0.0, 1.0, slo) < good:
        return math.inf
    alone = capacity_rps(speed, demand, limits, slo, good=good)
    if demand.requests_s <= alone:
        return demand.requests_s / alone
    least, most = max(1.0, demand.requests_s / work.most_rps), 2.0 * max(1.0, demand.requests_s / alone)
    for _ in range(_HALVINGS):
        middle = (least + most) / 2
        enough = work.good_share(demand.requests_s / middle, middle, slo) >= good
        least, most = (least, middle) if enough else (middle, most)
    return most


@dataclass(frozen=True, slots=True)
class _Work:
    """Seconds that requests of mean sizes take on one instance."""

    fixed_s: float  # F
    sequence_s: float  # g
    prompt_s: float  # w
    output_tokens: float  # O
    new_tokens: float  # of a prompt, that are computed
    seats: float  # sequences at once
    step_tokens: float
    burst: float

    @classmethod
    def of(cls, speed: Speed, demand: Demand, limits: Limits) -> _Work:
        a_s, b_s, c_s, d_s, e_s, f_s = speed.coefficients()
        prompt = max(1.0, demand.prompt_tokens)
        new = max(1.0, prompt - demand.cached_tokens)
        output = max(1.0, demand.output_tokens)
        held = prompt + output  # whose answers are long are there for longer: with cv 1, twice half the mean
        seats = float(limits.max_num_seqs)
        if limits.kv_tokens is not None:
            seats = max(1.0, min(seats, limits.kv_tokens / held))
        return cls(
            fixed_s=max(a_s, d_s),
            sequence_s=e_s + f_s * held,
            prompt_s=new * (b_s + c_s * (prompt - new / 2)),
            output_tokens=output,
            new_tokens=new,
            seats=min(seats, max(1.0, limits.step_tokens - 1.0)),
            step_tokens=limits.step_tokens,
            burst=demand.burst,
        )

    @property
    def most_rps(self) -> float:
        """Requests a second beyond which the batch is always full."""
        full_s = self.output_tokens * (self.fixed_s + self.sequence_s * self.seats) / self.seats
        return 1.0 / (full_s + self.prompt_s)

    def good_share(self, rps: float, instances: float, slo: Slo) -> float:
        """Share of answers within the SLO at so many requests a second on each instance."""
        busy = rps * self.prompt_s
        if rps >= self.most_rps or busy >= 1.0:
            return 0.0
        x, weights = self._batch(rps, instances)
        tau_s = (self.fixed_s + self.sequence_s * np.minimum(x, self.seats)) / (1.0 - busy)
        bad = np.zeros_like(x)
        if slo.tpot_s is not None:
            # Prompts that come while an answer is written: compound Poisson, their works with a cv of 1.
            spread_s = np.sqrt(2.0 * rps * self.prompt_s**2 * tau_s / self.output_tokens) + 1e-9
            bad += _normal_tail((slo.tpot_s - tau_s) / spread_s)
        if slo.ttft_s is not None:
            bad += self._late(rps, instances, x, tau_s, slo.ttft_s)
        return float(1.0 - weights @ np.minimum(bad, 1.0))

    def _batch(self, rps: float, instances: float) -> tuple[Floats, Floats]:
        """Running and waiting sequences of an instance as an arriving request finds them: points, probabilities."""
        free = 1.0 - rps * self.prompt_s
        per_s = rps * self.output_tokens
        own = free - per_s * self.sequence_s
        mean = min(self.seats, per_s * self.fixed_s / own) if own > 0.0 else self.seats
        independent = instances / self.burst
        most = mean + 8.0 * math.sqrt((mean + 1.0) / independent) * math.sqrt(free / max(own, 0.05 * free)) + 8.0
        x = (np.arange(_POINTS) + 0.5) * (most / _POINTS)
        tau_s = (self.fixed_s + self.sequence_s * np.minimum(x, self.seats)) / free
        served = np.minimum(x, self.seats)
        log_ratio = np.log(per_s * tau_s + 1e-300) + np.where(x > self.seats, -np.log(served), 0.0)
        n = independent * x
        at_seats = np.minimum(n, independent * self.seats)
        summed = np.cumsum(log_ratio) * (most / _POINTS) * independent
        # ln n! by Stirling as R. W. Gosper mended it, each factor k of it over the independent instances
        factorial = at_seats * (np.log(at_seats / independent) - 1.0) + 0.5 * np.log(at_seats + 1.0 / 6.0)
        log_p = summed - factorial
        p = np.exp(log_p - log_p.max())
        return x, p / p.sum()

    def _late(self, rps: float, instances: float, x: Floats, tau_s: Floats, ttft_s: float) -> Floats:
        """Chance that the first token comes too late, for a request that finds so many."""
        running = np.minimum(x, self.seats)
        step_s = self.fixed_s + self.sequence_s * running
        room = np.maximum(1.0, self.step_tokens - running)
        steps = self.new_tokens / room
        compute_s = self.prompt_s + steps * step_s  # of the engine, until it can go on with the next prompt
        own_s = self.prompt_s + np.maximum(1.0, steps) * step_s + 0.5 * tau_s
        seat_s = np.maximum(0.0, x + 1.0 - self.seats) * tau_s * self.output_tokens / self.seats
        used = np.minimum(rps * compute_s, 1.0)
        waits = _waits(used, instances)
        rate = 2.0 * instances * (1.0 - used) / ((self.burst + 1.0) * compute_s)
        left_s = ttft_s - own_s - seat_s
        return np.where(left_s > 0.0, waits * np.exp(-rate * np.maximum(left_s, 0.0)), 1.0)


def _waits(used: Floats, servers: float) -> Floats:
    """Chance that all servers are busy (Erlang's C, as H. Sakasegawa approximated it for any number of them)."""
    return used ** (math.sqrt(2.0 * (servers + 1.0)) - 1.0)


def _normal_tail(deviations: Floats) -> Floats:
    return np.array([0.5 * math.erfc(each / math.sqrt(2.0)) for each in deviations.tolist()])
