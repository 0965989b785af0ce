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
from collections.abc import Callable, Iterable, Sequence
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
_POINTS = 64
_STEPS, _EXACT = 24, 2e-3
_NONE, _FULL = 1e-6, 4.6  # logarithm of what all bad is over 1 % of them
_FEW_HITS, _TERMS = 6.0, 20
# Normal quantiles at the middle of each share: short answers, of which one prompt spoils the TPOT, are told apart.
_SHARES = np.array((0.02, 0.04, 0.08, 0.16, 0.2, 0.2, 0.2, 0.1))
_DEVIATES = (-2.326, -1.751, -1.282, -0.772, -0.253, 0.253, 0.842, 1.645)


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
    return _edge(lambda rps: work.bad_share(rps, instances, slo) / (1.0 - good), 0.0, work.most_rps)


def load_of(speed: Speed, demand: Demand, limits: Limits, slo: Slo, *, good: float = GOOD) -> float:
    """Return how many such instances `demand` fills within the SLO; with more of them, each carries more.

    Infinite where none is enough: a request alone is beyond the SLO. Rounded up, it is how many are needed.
    """
    if demand.requests_s <= 0.0:
        return 0.0
    work = _Work.of(speed, demand, limits)
    alone = _edge(lambda rps: work.bad_share(rps, 1.0, slo) / (1.0 - good), 0.0, work.most_rps)
    if alone <= 0.0:
        return math.inf
    if demand.requests_s <= alone:
        return demand.requests_s / alone

    def bad(each_rps: float) -> float:
        return work.bad_share(each_rps, demand.requests_s / each_rps, slo) / (1.0 - good)

    return demand.requests_s / _edge(bad, alone, work.most_rps)


def _edge(bad: Callable[[float], float], least: float, most: float) -> float:
    """Where a growing function passes 1, `least` if it is there already; on its logarithm by the Illinois method."""
    low, high = math.log(max(bad(least), _NONE)), _FULL
    if low >= 0.0:
        return least
    side = 0
    for _ in range(_STEPS):
        if most - least <= _EXACT * most:
            break
        middle = (least * high - most * low) / (high - low)
        middle = min(max(middle, least + 0.1 * (most - least)), most - 0.1 * (most - least))
        value = math.log(max(bad(middle), _NONE))
        if value < 0.0:
            least, low, high = middle, value, high / 2.0 if side < 0 else high
            side = -1
        else:
            most, high, low = middle, value, low / 2.0 if side > 0 else low
            side = 1
    return least


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
    computed_cv2: float
    lengths: Floats  # answers' tokens, in rows, each as likely as its share in `_SHARES`
    prompts: Floats  # what is computed of each prompt, over the mean, in rows as likely

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
            computed_cv2=demand.computed_cv2,
            lengths=output * _spread(demand.output_cv2, _DEVIATES),
            prompts=_spread(demand.computed_cv2, [-each for each in _DEVIATES]),
        )

    @property
    def most_rps(self) -> float:
        """Requests a second beyond which the batch is always full."""
        full_s = self.output_tokens * (self.fixed_s + self.sequence_s * self.seats) / self.seats
        return 1.0 / (full_s + self.prompt_s)

    def bad_share(self, rps: float, instances: float, slo: Slo) -> float:
        """Share of answers beyond the SLO at so many requests a second on each instance."""
        busy = rps * self.prompt_s
        if rps >= self.most_rps or busy >= 1.0:
            return 1.0
        x, weights = self._batch(rps, instances)
        tau_s = (self.fixed_s + self.sequence_s * np.minimum(x, self.seats)) / (1.0 - busy)
        bad = np.zeros_like(x)
        if slo.tpot_s is not None:
            bad += self._slow(rps, tau_s, slo.tpot_s)
        if slo.ttft_s is not None:
            bad += self._late(rps, instances, x, tau_s, slo.ttft_s)
        return float(weights @ np.minimum(bad, 1.0))

    def _batch(self, rps: float, instances: float) -> tuple[Floats, Floats]:
        """Running and waiting sequences of an instance as an arriving request finds them: points, probabilities."""
        free = 1.0 - rps * self.prompt_s
        per_s = rps * self.output_tokens
        own = free - per_s * self.sequence_s
        mean = min(self.seats, per_s * self.fixed_s / own) if own > 0.0 else self.seats
        independent = instances / self.burst
        spread = math.sqrt((mean + 1.0) / independent * free / max(own, 0.05 * free))
        least, most = max(0.0, mean - 6.0 * spread), mean + 8.0 * spread + 2.0
        if most > self.seats:  # who finds no seat waits: the tail of that is longer
            full = min(0.999, per_s * (self.fixed_s + self.sequence_s * self.seats) / (free * self.seats))
            most = max(most, self.seats - 8.0 / (independent * math.log(full)))
        width = (most - least) / _POINTS
        x = least + (np.arange(_POINTS) + 0.5) * width
        tau_s = (self.fixed_s + self.sequence_s * np.minimum(x, self.seats)) / free
        served = np.minimum(x, self.seats)
        log_ratio = np.log(per_s * tau_s + 1e-300) + np.where(x > self.seats, -np.log(served), 0.0)
        n = independent * x
        at_seats = np.minimum(n, independent * self.seats)
        summed = np.cumsum(log_ratio) * width * independent
        # ln n! by Stirling as R. W. Gosper mended it, each factor k of it over the independent instances
        factorial = at_seats * (np.log(at_seats / independent) - 1.0) + 0.5 * np.log(at_seats + 1.0 / 6.0)
        log_p = summed - factorial
        p = np.exp(log_p - log_p.max())
        return x, p / p.sum()

    def _slow(self, rps: float, tau_s: Floats, tpot_s: float) -> Floats:
        """Chance that an answer is slower, if its instance's batch stays as it is."""
        busy = rps * self.prompt_s
        spread = self.computed_cv2 + self.burst
        gaps = np.maximum(0.0, self.lengths - 1.0)
        alone_s = gaps * tau_s * (1.0 - busy)
        hits = 2.0 * (1.0 - busy) * rps / spread * alone_s
        jumps = (gaps * tpot_s - alone_s) * (2.0 * (1.0 - busy) ** 2 / spread / self.prompt_s)
        return _mixed(np.where(gaps < 1.0, 0.0, _hits_tail(jumps, hits)))  # one token has no time between

    def _late(self, rps: float, instances: float, x: Floats, tau_s: Floats, ttft_s: float) -> Floats:
        """Chance that the first token comes too late, for a request that finds so many."""
        running = np.minimum(x, self.seats)
        step_s = self.fixed_s + self.sequence_s * running
        room = np.maximum(1.0, self.step_tokens - running)
        steps = self.new_tokens / room
        compute_s = self.prompt_s + steps * step_s  # of the engine, until it can go on with the next prompt
        seat_s = np.maximum(0.0, x + 1.0 - self.seats) * tau_s * self.output_tokens / self.seats
        used = np.minimum(rps * compute_s, 1.0)
        rate = 2.0 * instances * (1.0 - used) / ((self.burst + self.computed_cv2) * compute_s)
        own_s = self.prompts * self.prompt_s + np.maximum(1.0, self.prompts * steps) * step_s + 0.5 * tau_s
        left_s = ttft_s - own_s - seat_s
        late = np.where(left_s > 0.0, _waits(used, instances) * np.exp(-rate * np.maximum(left_s, 0.0)), 1.0)
        return _mixed(late)


def _mixed(rows: Floats) -> Floats:
    mean: Floats = _SHARES @ rows
    return mean


def _waits(used: Floats, servers: float) -> Floats:
    """Chance that all servers are busy (Erlang's C, as H. Sakasegawa approximated it for any number of them)."""
    return used ** (math.sqrt(2.0 * (servers + 1.0)) - 1.0)


def _spread(cv2: float, deviates: Sequence[float]) -> Floats:
    """Sizes over their mean, distributed log-normally, in rows of one."""
    log_variance = math.log1p(cv2)
    return np.exp(math.sqrt(log_variance) * np.array([[each] for each in deviates]) - log_variance / 2.0)


def _hits_tail(jumps: Floats, hits: Floats) -> Floats:
    """Chance that the sum of a Poisson number (mean `hits`) of exponential jumps is more than `jumps` mean ones.

    The sum over the number where it is small, else as a gamma distribution by E. B. Wilson and M. M. Hilferty (1931).
    """
    jumps = np.maximum(jumps, 0.0)
    ninth = 2.0 / (9.0 * np.maximum(hits, _FEW_HITS / 2))
    many = _normal_tail((np.cbrt(jumps / np.maximum(hits, 1e-9)) - 1.0 + ninth) / np.sqrt(ninth))
    few, more, number = np.zeros_like(jumps), np.zeros_like(jumps), np.exp(-hits)
    term = np.exp(-jumps)
    for count in range(1, _TERMS):
        more += term
        number = number * hits / count
        few += number * more
        term = term * jumps / count
    return np.where(jumps <= 0.0, 1.0, np.where(hits < _FEW_HITS, few, many))


def _normal_tail(deviations: Floats) -> Floats:
    """Abramowitz and Stegun, 7.1.26: off by 1e-7 at the most."""
    z = np.abs(deviations) / math.sqrt(2.0)
    t = 1.0 / (1.0 + 0.3275911 * z)
    series = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))))
    tail = 0.5 * series * np.exp(-z * z)
    return np.where(deviations >= 0.0, tail, 1.0 - tail)
