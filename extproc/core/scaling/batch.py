"""Which share of answers is beyond its SLO on instances that serve so many requests a second.

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
come in bursts (variance over mean z) are worth m / z instances.

An answer is slower the more prompts are computed while it is written: a compound Poisson sum within a busy period,
whose variance is L * E(w^2) * T / (1 - L * w)^3 for T seconds of its own steps. The first token waits for a place in
the batch if all are taken (Little), and for the prompts before it (M/G/1 with an exponential tail).

A router that keeps the balance of requests in flight hands an instance the next one when one of its own is over, but
for the share 1 / m that an instance has in the chance of all. Within a small part r of the time that an answer takes,
hardly any sequence is over twice, so that the variance of what ends, and of what comes, is less by r (the binomial
distribution's; D. R. Cox, Renewal theory, 1962, chapter 4, has it for longer times). While an instance computes a
prompt its answers stand still, but for one token a step: it is handed little to wait behind that.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from statistics import NormalDist

import numpy as np

from extproc.core.pricing.slo import Slo
from extproc.core.scaling.demand import Demand
from extproc.core.speeds.speed import Speed
from extproc.core.values.arrays import Floats

_POINTS = 64
_QUANTILES = -np.log((np.arange(32) + 0.5) / 32)  # of the exponential distribution, as likely each
_MIDDLES: Floats = np.arange(0.5, _POINTS, dtype=np.float64)
_NEVER = 1e-8  # chance over the greatest: such points need no look
_FEW_HITS = 6.0
_TERMS = 20  # of so many hits or fewer
_INVERSE: Floats = 1.0 / np.array([math.factorial(number) for number in range(_TERMS)], dtype=np.float64)
_FEWER: Floats = np.tril(np.outer(_INVERSE, _INVERSE), -1)  # of [hits, jumps] those where there are fewer jumps
_FAR = 200.0  # jumps that few hits never make
_LEAST_APART = 0.5
# Normal quantiles at the middle of each share: short answers, of which one prompt spoils the TPOT, are told apart.
_SHARES = np.array((0.02, 0.04, 0.08, 0.16, 0.2, 0.2, 0.2, 0.1))
_DEVIATES = np.array((-2.326, -1.751, -1.282, -0.772, -0.253, 0.253, 0.842, 1.645))[:, None]
_NORMAL = NormalDist()
_BELOW = [_NORMAL.cdf(-each) for each in _DEVIATES[:, 0].tolist()]  # shares below those of prompts, the largest first
_REGULAR_MOST = 0.5  # of the variance, that a balance takes away; seen in the simulator for answers of mean length
_FEW = 1e-4  # share of prompts that tells nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What an instance's engine allows."""

    max_num_seqs: int = 256  # vLLM's default
    kv_tokens: float | None = None  # None: not known, taken to be enough
    step_tokens: int = 2048  # that one step computes at the most; vLLM's least default of a server


@dataclass(frozen=True, slots=True)
class Part:
    """Those of the requests that are judged alike."""

    share: float  # of all
    prompts: Floats  # what is computed of each, over the mean of all, in rows, each as likely as its share in `_SHARES`
    prompts_s: Floats  # seconds that computing each takes


@dataclass(frozen=True, slots=True)
class Work:
    """Seconds that requests of mean sizes take on one instance."""

    fixed_s: float  # F
    sequence_s: float  # g
    prompt_s: float  # w
    output_tokens: float  # O
    new_tokens: float  # of a prompt, that are computed
    seats: float  # sequences at once
    step_tokens: float
    burst: float
    prompt_cv2: float  # squared coefficient of variation of the seconds that computing a prompt takes
    lengths: Floats  # answers' tokens, in rows, each as likely as its share in `_SHARES`
    parts: tuple[Part, ...]

    @classmethod
    def of(cls, speed: Speed, demand: Demand, limits: Limits, *, long_tokens: float = math.inf) -> Work:
        """Return what requests of such sizes are on such an instance.

        Prompts of `long_tokens` or more are a part of their own, the last one: of one part where there are none. How
        what is cached varies is not known: it is the same of all, or in proportion, by which of the two fewer are long.
        """
        a_s, b_s, c_s, d_s, e_s, f_s = speed.coefficients()
        prompt = max(1.0, demand.prompt_tokens)
        new = max(1.0, prompt - demand.cached_tokens)
        output = max(1.0, demand.output_tokens)
        held = prompt + output * (1.0 + demand.output_cv2) / 2.0  # whose answers are long are there for longer
        cached = prompt - new
        linear_s, squared_s = new * (b_s + c_s * cached), c_s * new**2 / 2

        def taken_s(times: Floats) -> Floats:
            """Of prompts of which so many times the mean is to be computed, after what is cached."""
            return times * (linear_s + times * squared_s)

        usual = _spread(demand.computed_cv2, -_DEVIATES)
        longer = _scatter(taken_s(usual)) / _scatter(usual)
        seats = float(limits.max_num_seqs)
        if limits.kv_tokens is not None:
            seats = max(1.0, min(seats, limits.kv_tokens / held))
        return cls(
            fixed_s=max(a_s, d_s),
            sequence_s=e_s + f_s * held,
            prompt_s=linear_s + squared_s * (1.0 + demand.computed_cv2),
            output_tokens=output,
            new_tokens=new,
            seats=min(seats, max(1.0, limits.step_tokens - 1.0)),
            step_tokens=limits.step_tokens,
            burst=demand.burst,
            prompt_cv2=(1.0 + demand.computed_cv2) * longer - 1.0,
            lengths=output * _spread(demand.output_cv2, _DEVIATES),
            parts=tuple(
                Part(share, rows, taken_s(rows))
                for share, rows in _split(demand.computed_cv2, max((long_tokens - cached) / new, long_tokens / prompt))
            ),
        )

    @property
    def most_rps(self) -> float:
        """Requests a second beyond which the batch is always full."""
        full_s = self.output_tokens * (self.fixed_s + self.sequence_s * self.seats) / self.seats
        return 1.0 / (full_s + self.prompt_s)

    def only(self, part: Part) -> Work:
        """The same of which this part alone is judged."""
        return replace(self, parts=(replace(part, share=1.0),))

    def bad_share(self, rps: float, instances: float, *slos: Slo) -> float:
        """Share of answers beyond their SLO, each part's its own, at so many requests a second on each instance."""
        busy = rps * self.prompt_s
        if rps >= self.most_rps or busy >= 1.0:
            return 1.0
        x, weights = self._batch(rps, instances)
        tau_s = (self.fixed_s + self.sequence_s * np.minimum(x, self.seats)) / (1.0 - busy)
        seated = int(np.searchsorted(x, self.seats)) + 1  # who waits makes no batch slower
        total = 0.0
        for part, slo in zip(self.parts, slos, strict=True):
            bad = np.zeros(len(x))
            if slo.tpot_s is not None:
                bad[:seated] = self._slow(rps, tau_s[:seated], slo.tpot_s, instances)
                bad[seated:] = bad[min(seated, len(x)) - 1]
            if slo.ttft_s is not None:
                bad += self._late(rps, x, tau_s, slo.ttft_s, instances, part)
            total += part.share * float(weights @ np.minimum(bad, 1.0))
        return total

    def _batch(self, rps: float, instances: float) -> tuple[Floats, Floats]:
        """Running and waiting sequences of an instance as an arriving request finds them: points, probabilities."""
        free = 1.0 - rps * self.prompt_s
        per_s = rps * self.output_tokens
        own = free - per_s * self.sequence_s
        mean = min(self.seats, per_s * self.fixed_s / own) if own > 0.0 else self.seats
        independent = instances / self.burst
        spread = math.sqrt((mean + 1.0) / independent * free / max(own, 0.05 * free))
        least, most = max(0.0, mean - 6.0 * spread), mean + 8.0 * spread + 2.0
        most = min(most, self.seats)
        width = (most - least) / _POINTS
        if rps <= 0.0:
            return np.array([width / 2]), np.ones(1)
        x = least + width * _MIDDLES
        n = independent * x
        log_tau = np.log(x * (per_s * self.sequence_s / free) + (per_s * self.fixed_s / free + 1e-300))
        # ln n! by Stirling as R. W. Gosper mended it, each factor k of it over the independent instances
        factorial = n * (np.log(x) - 1.0) + 0.5 * np.log(n + 1.0 / 6.0)
        log_p = log_tau.cumsum() * (width * independent) - factorial
        likely: Floats = np.exp(log_p - log_p.max())
        if most >= self.seats:  # who finds no seat waits: beyond them each is less likely by one factor
            full = per_s * (self.fixed_s + self.sequence_s * self.seats) / (free * self.seats)
            mean_beyond = -1.0 / (independent * math.log(full))
            x = np.concatenate((x, self.seats + mean_beyond * _QUANTILES))
            beyond = likely[-1] * mean_beyond / width / len(_QUANTILES)
            likely = np.concatenate((likely, np.full(len(_QUANTILES), beyond)))
        there = likely > _NEVER
        x, likely = x[there], likely[there]
        return x, likely / float(likely.sum())

    def _slow(self, rps: float, tau_s: Floats, tpot_s: float, instances: float) -> Floats:
        """Chance that an answer is slower, if its instance's batch stays as it is. `tau_s` grows."""
        free = 1.0 - rps * self.prompt_s
        gaps = np.maximum(0.0, self.lengths - 1.0)
        some = self.lengths[:, 0] >= 2.0  # one token has no time between
        slow = np.full(len(tau_s), float(_SHARES @ some))
        hopeful = int(np.searchsorted(tau_s * free, tpot_s))  # the others are slow without any hit
        if rps <= 0.0 or not hopeful:
            slow[:hopeful] = 0.0
            return slow
        alone_s = tau_s[:hopeful] * free
        # As many hits of such a mean as give the variance; a busy period joins some of them, but never most.
        each = 2.0 * max(free, _LEAST_APART) / (self.prompt_cv2 + self.burst)
        hits = gaps[some] * (each * rps * alone_s)
        jumps = gaps[some] * ((tpot_s - alone_s) * (each * free / self.prompt_s))
        # A router's balance makes more and smaller ones of them, where there is more than one at all.
        balanced = (1.0 - 1.0 / max(1.0, instances)) * np.minimum(
            self.lengths[some] / self.output_tokens, _REGULAR_MOST
        )
        finer = 1.0 / (1.0 + balanced * np.expm1(-hits))
        hits, jumps = hits * finer, jumps * finer
        slow[:hopeful] = _SHARES[some] @ _hits_tail(jumps, hits)
        return slow

    def _late(self, rps: float, x: Floats, tau_s: Floats, ttft_s: float, instances: float, part: Part) -> Floats:
        """Chance that the first token comes too late, for a request that finds so many."""
        running = np.minimum(x, self.seats)
        step_s = self.fixed_s + self.sequence_s * running
        room = np.maximum(1.0, self.step_tokens - running)
        steps = self.new_tokens / room
        compute_s = self.prompt_s + steps * step_s  # of the engine, until it can go on with the next prompt
        seat_s = np.maximum(0.0, x + 1.0 - self.seats) * tau_s * self.output_tokens / self.seats
        used = np.minimum(rps * compute_s, 1.0)
        wait_s = (self.burst + self.prompt_cv2) / 2.0 * compute_s / np.maximum(1.0 - used, 1e-9)
        wait_s = wait_s * (1.0 + rps * self.prompt_s)  # and who comes while it waits shares its step
        own_s = part.prompts_s + np.maximum(1.0, part.prompts * steps) * step_s + 0.5 * tau_s
        left_s = ttft_s - own_s - seat_s
        chunk_s = step_s + self.prompt_s / np.maximum(1.0, steps)
        met = used * (step_s / chunk_s + (1.0 - step_s / chunk_s) / max(1.0, instances))
        late = np.where(left_s > 0.0, met * np.exp(-np.maximum(left_s, 0.0) / wait_s), 1.0)
        mean: Floats = _SHARES @ late
        return mean


def _spread(cv2: float, deviates: Floats) -> Floats:
    """Sizes over their mean, distributed log-normally, in rows of one."""
    log_variance = math.log1p(cv2)
    return np.exp(math.sqrt(log_variance) * deviates - log_variance / 2.0)


def _scatter(values: Floats) -> float:
    """Mean square over the square of the mean, of rows of one."""
    return float(_SHARES @ values[:, 0] ** 2) / float(_SHARES @ values[:, 0]) ** 2


def _split(cv2: float, least: float) -> list[tuple[float, Floats]]:
    """(share, rows as of `_spread`) of those below `least` means, and of those from there on; few are left out."""
    if least == math.inf or cv2 <= 0.0:
        below = float(least > 1.0)
    else:
        log_variance = math.log1p(cv2)
        below = _NORMAL.cdf((math.log(least) + log_variance / 2.0) / math.sqrt(log_variance))
    if not _FEW <= below <= 1.0 - _FEW:
        rows = _spread(cv2, -_DEVIATES)
        return [(1.0, rows)] if below > 0.5 else [(0.0, rows), (1.0, rows)]
    found = []
    for begin, end in ((0.0, below), (below, 1.0)):
        deviates = np.array([_NORMAL.inv_cdf(begin + (end - begin) * each) for each in _BELOW])[:, None]
        found.append((end - begin, _spread(cv2, deviates)))
    return found


def _hits_tail(jumps: Floats, hits: Floats) -> Floats:
    """Chance that the sum of a Poisson number (mean `hits`) of exponential jumps is more than `jumps` mean ones.

    The sum over the number where it is small, else as a gamma distribution by E. B. Wilson and M. M. Hilferty (1931).
    """
    tail, few = np.empty(hits.shape), hits < _FEW_HITS
    tail[few] = _few_hits_tail(np.minimum(jumps[few], _FAR), hits[few])
    many = ~few
    hits = hits[many]
    ninth = 2.0 / (9.0 * hits)
    tail[many] = _normal_tail((np.cbrt(jumps[many] / hits) - 1.0 + ninth) / np.sqrt(ninth))
    return tail


def _few_hits_tail(jumps: Floats, hits: Floats) -> Floats:
    """The same as a sum over the number of hits: so many jumps are more if fewer Poisson events lie within `jumps`."""
    powers = _powers(np.concatenate((hits, jumps)))
    tail: Floats = np.exp(-hits - jumps) * np.einsum(
        "ij,ij->j", powers[:, : len(hits)], _FEWER @ powers[:, len(hits) :]
    )
    return tail


def _powers(values: Floats) -> Floats:
    """Powers of 0 to `_TERMS` - 1, in rows."""
    rows = np.empty((_TERMS, len(values)))
    rows[0] = 1.0
    done, power = 1, values  # the power of so many
    while done < _TERMS:
        more = min(done, _TERMS - done)
        np.multiply(rows[:more], power, out=rows[done : done + more])
        done, power = 2 * done, power * power
    return rows


def _normal_tail(deviations: Floats) -> Floats:
    """Abramowitz and Stegun, 7.1.26: off by 1e-7 at the most."""
    z = np.abs(deviations) / math.sqrt(2.0)
    t = 1.0 / (1.0 + 0.3275911 * z)
    series = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))))
    tail = 0.5 * series * np.exp(-z * z)
    return np.where(deviations >= 0.0, tail, 1.0 - tail)
