"""AIBrix's SLO rule: the deployment that can best keep the promise, and in it the instance with the most room.

Source: vllm-project/aibrix `pkg/plugins/gateway/queue/slo_queue.go` (rank of a deployment = waited + expected latency -
target; deployments by rank, none with a positive rank after the first), `pkg/plugins/gateway/algorithms/slo.go` and
`least_load.go` (its default `slo-least-load-pulling`: the least utilisation of which utilisation + consumption <= 1),
`pkg/cache/pending_load_provider.go` (consumption = 1 / (throughput x latency) of the request's shape, which is one
over the requests that an instance can hold at its SLO by Little's law; utilisation = their sum over its requests).
Target: 50 ms a token + 2 s for the first, the goodput limits of the comparison; AIBrix leaves it to the profile.

A deployment is all instances of one model, hardware and parallelism. AIBrix profiles each offline on a grid of powers
of two of output and input length; ours come from the same fits as the simulator's engines. Output length is predicted
as the mean of answers to prompts of the same power of two (128 before there are any). AIBrix holds a request in its
gateway while nobody has room; a simulated router cannot, so it goes to the least utilised (its push mode does so).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import log2
from random import Random

from extproc.core.profile import Profile, profile_for
from extproc.sim.policies.desk import Desk, Seen, Trip
from extproc.sim.policies.policy import Ask, Ending, Policy, Setting

TARGET_TPOT_S = 0.05
TARGET_TTFT_S = 2.0
FIRST_OUTPUT_TOKENS = 128.0
DEFAULT_MAX_NUM_SEQS = 256

Deployment = tuple[str, str, int, int]  # first model, hardware, tensor parallel, sequences in a batch at the most


@dataclass(frozen=True, slots=True)
class _Shape:
    """What a deployment can do with requests of one shape."""

    latency_s: float  # of each, at the most requests that keep the target; of one alone if not even that does
    at_once: int  # requests that keep the target side by side; 0: none does


class AibrixSlo:
    """Predicted lengths, shapes and utilisations, and the rule on them."""

    def __init__(self) -> None:
        self._shapes: dict[tuple[Deployment, int, int], _Shape] = {}
        self._answers: dict[int, tuple[int, int]] = {}  # by log2 of the prompt: answers, and their tokens
        self._utilisation: dict[int, float] = {}  # by number
        self._consumed: dict[tuple[str, int], float] = {}  # by request and number

    def __call__(self, ask: Ask, candidates: Sequence[Seen], random: Random, now: float) -> Seen:
        """The least utilised with room, in the deployments by rank."""
        groups: dict[Deployment, list[Seen]] = {}
        for seen in candidates:
            groups.setdefault(_deployment(seen), []).append(seen)
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
        at_once = self.shape(trip.ask, _deployment(trip.seen)).at_once
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
    rule = AibrixSlo()
    return Desk(setting, rule, on_sent=rule.sent, on_over=rule.over)


def _deployment(seen: Seen) -> Deployment:
    instance = seen.instance
    sequences = instance.max_num_seqs or DEFAULT_MAX_NUM_SEQS
    return instance.models[0], instance.hardware, instance.tensor_parallel, sequences


def _power(tokens: float) -> int:
    """The nearest power of two."""
    return round(log2(max(1.0, tokens)))


def _measure(deployment: Deployment, prompt_tokens: int, output_tokens: int) -> _Shape:
    """Find the most requests of one shape that keep the target side by side, by bisection."""
    model, hardware, tensor_parallel, sequences = deployment
    profile = profile_for(model, hardware, tensor_parallel)
    target_s = TARGET_TPOT_S * output_tokens + TARGET_TTFT_S
    alone_s = _latency_s(profile, prompt_tokens, output_tokens, 1)
    if alone_s > target_s:
        return _Shape(alone_s, 0)
    low, high = 1, sequences + 1
    while high - low > 1:
        middle = (low + high) // 2
        if _latency_s(profile, prompt_tokens, output_tokens, middle) <= target_s:
            low = middle
        else:
            high = middle
    return _Shape(_latency_s(profile, prompt_tokens, output_tokens, low), low)


def _latency_s(profile: Profile, prompt_tokens: int, output_tokens: int, at_once: int) -> float:
    """Seconds of each of `at_once` requests: while it lives, each of the others is prefilled once as well."""
    context = at_once * (prompt_tokens + output_tokens / 2)
    return at_once * profile.prefill_s(prompt_tokens, 0) + output_tokens * profile.decode_step_s(at_once, context)
