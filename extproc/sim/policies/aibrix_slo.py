"""AIBrix's SLO rule: the deployment that can best keep the promise, and in it the instance with the most room.

Source: vllm-project/aibrix `pkg/plugins/gateway/queue/slo_queue.go` (rank of a deployment = waited + expected latency -
target; deployments by rank, none with a positive rank after the first), `pkg/plugins/gateway/algorithms/slo.go` and
`least_load.go` (its default `slo-least-load-pulling`: the least utilisation of which utilisation + consumption <= 1),
`pkg/cache/pending_load_provider.go` (consumption = 1 / (throughput x latency) of the request's shape, which is one
over the requests that an instance can hold at its SLO by Little's law; utilisation = their sum over its requests).
Target: 50 ms a token + 2 s for the first, the goodput limits of the comparison; AIBrix leaves it to the profile.

A deployment is all instances of one model, hardware, parallelism and engine limits. AIBrix profiles each offline on a
grid of powers of two of output and input length; ours are worked out from the step times of a sound engine of that
kind, what it spends beside its kernels included. Output length is predicted as the mean of answers to prompts of the
same power of two (128 before there are any). AIBrix holds a request in its gateway while nobody has room; a simulated
router cannot, so it goes to the least utilised (its push mode does so).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import log2
from random import Random

from extproc.core.speeds.profile import Profile
from extproc.sim.fleet.spec import InstanceSpec
from extproc.sim.policies.desk import Desk, Seen, Trip
from extproc.sim.policies.policy import Ask, Ending, Policy, Setting

TARGET_TPOT_S = 0.05
TARGET_TTFT_S = 2.0
FIRST_OUTPUT_TOKENS = 128.0


@dataclass(frozen=True, slots=True)
class Deployment:
    """Instances that one offline profile stands for."""

    profile: Profile
    step_overhead_s: float
    max_num_seqs: int
    max_num_batched_tokens: int

    def latency_s(self, prompt_tokens: int, output_tokens: int, at_once: int) -> float:
        """Seconds of each of `at_once` requests: while one lives, each of them is prefilled once.

        Prompt chunks ride in the steps that decode, of which there are as many as the answer has tokens, or more if
        the prompts do not fit into those.
        """
        profile = self.profile
        steps = max(output_tokens, at_once * (prompt_tokens + output_tokens) / self.max_num_batched_tokens)
        fixed_s = max(profile.a_ms, profile.d_ms) * 1e-3 + self.step_overhead_s
        prefill_s = profile.prefill_s(prompt_tokens, 0) - profile.a_ms * 1e-3
        context_tokens = at_once * (prompt_tokens + output_tokens / 2)
        decode_s = profile.decode_step_s(at_once, context_tokens) - profile.d_ms * 1e-3
        return steps * fixed_s + at_once * prefill_s + output_tokens * decode_s


@dataclass(frozen=True, slots=True)
class _Shape:
    """What a deployment can do with requests of one shape."""

    latency_s: float  # of each, at the most requests that keep the target; of one alone if not even that does
    at_once: int  # requests that keep the target side by side; 0: none does


class AibrixSlo:
    """Predicted lengths, shapes and utilisations, and the rule on them."""

    def __init__(self, specs: Mapping[str, InstanceSpec]) -> None:
        self._deployments = {name: _deployment(spec) for name, spec in specs.items()}
        self._shapes: dict[tuple[Deployment, int, int], _Shape] = {}
        self._answers: dict[int, tuple[int, int]] = {}  # by log2 of the prompt: answers, and their tokens
        self._utilisation: dict[int, float] = {}  # by number
        self._consumed: dict[tuple[str, int], float] = {}  # by request and number

    def __call__(self, ask: Ask, candidates: Sequence[Seen], random: Random, now: float) -> Seen:
        """The least utilised with room, in the deployments by rank."""
        groups: dict[Deployment, list[Seen]] = {}
        for seen in candidates:
            groups.setdefault(self._deployments[seen.id], []).append(seen)
        ranked = sorted(((self.rank_s(ask, deployment), deployment) for deployment in groups), key=lambda at: at[0])
        for place, (rank_s, deployment) in enumerate(ranked):
            if place > 0 and rank_s > 0:
                break
            at_once = self.shape(ask, deployment).at_once
            if at_once == 0:
                continue
            best = self._least(groups[deployment], random)
            if self.utilisation(best) + 1 / at_once <= 1.0:
                return best
        return self._least(candidates, random)

    def rank_s(self, ask: Ask, deployment: Deployment) -> float:
        """Seconds by which a deployment is expected to miss the target; a request is ranked when it comes."""
        target_s = TARGET_TPOT_S * self.output_tokens(ask) + TARGET_TTFT_S
        return self.shape(ask, deployment).latency_s - target_s

    def shape(self, ask: Ask, deployment: Deployment) -> _Shape:
        """Entry of the deployment's profile that the request falls under."""
        prompt, output = _power(ask.arrival.prompt_tokens), _power(self.output_tokens(ask))
        key = (deployment, prompt, output)
        found = self._shapes.get(key)
        if found is None:
            found = self._shapes[key] = _measure(deployment, 2**prompt, 2**output)
        return found

    def output_tokens(self, ask: Ask) -> float:
        """Predicted length of an answer."""
        count, tokens = self._answers.get(_power(ask.arrival.prompt_tokens), (0, 0))
        mean = tokens / count if count else FIRST_OUTPUT_TOKENS
        return min(mean, ask.arrival.max_output_tokens or mean)

    def utilisation(self, seen: Seen) -> float:
        """Share of an instance's room that its requests take."""
        return self._utilisation.get(seen.number, 0.0)

    def sent(self, trip: Trip, now: float) -> None:
        """Book a request's consumption."""
        number = trip.seen.number
        at_once = self.shape(trip.ask, self._deployments[trip.seen.id]).at_once
        consumed = self._consumed[trip.ask.id, number] = 1 / max(1, at_once)
        self._utilisation[number] = self._utilisation.get(number, 0.0) + consumed

    def over(self, trip: Trip, ending: Ending | None, now: float) -> None:
        """Release it, and learn the length of the answer."""
        number = trip.seen.number
        left = self._utilisation[number] - self._consumed.pop((trip.ask.id, number))
        self._utilisation[number] = left if trip.seen.in_flight else 0.0  # no dust of rounding
        if ending is not None and ending.status == 200:
            power = _power(trip.ask.arrival.prompt_tokens)
            count, tokens = self._answers.get(power, (0, 0))
            self._answers[power] = (count + 1, tokens + ending.completion_tokens)

    def _least(self, group: Sequence[Seen], random: Random) -> Seen:
        lowest = min(self.utilisation(seen) for seen in group)
        return random.choice([seen for seen in group if self.utilisation(seen) == lowest])


def aibrix_slo(setting: Setting) -> Policy:
    """AIBrix's slo rule."""
    rule = AibrixSlo(setting.specs)
    return Desk(setting, rule, on_sent=rule.sent, on_over=rule.over)


def _deployment(spec: InstanceSpec) -> Deployment:
    """What is measured of its kind: how slow this one instance is has no part in it."""
    return Deployment(spec.profile(), spec.step_overhead_s, spec.max_num_seqs, spec.max_num_batched_tokens)


def _power(tokens: float) -> int:
    """The nearest power of two."""
    return round(log2(max(1.0, tokens)))


def _measure(deployment: Deployment, prompt_tokens: int, output_tokens: int) -> _Shape:
    """Find the most requests of one shape that keep the target side by side, by bisection."""
    target_s = TARGET_TPOT_S * output_tokens + TARGET_TTFT_S
    alone_s = deployment.latency_s(prompt_tokens, output_tokens, 1)
    if alone_s > target_s:
        return _Shape(alone_s, 0)
    low, high = 1, deployment.max_num_seqs + 1
    while high - low > 1:
        middle = (low + high) // 2
        if deployment.latency_s(prompt_tokens, output_tokens, middle) <= target_s:
            low = middle
        else:
            high = middle
    return _Shape(deployment.latency_s(prompt_tokens, output_tokens, low), low)
