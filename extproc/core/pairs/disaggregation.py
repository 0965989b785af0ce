"""Which pair of instances serves a request whose prompt one computes and whose answer another one produces.

The pair is priced as its two halves and the handing over of the KV blocks between them; whoever decides holds its cost
against that of the best instance that does all by itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from extproc.core.fleet.links import ETHERNET, between
from extproc.core.fleet.zones import Zones
from extproc.core.flight.work import block_size_tokens
from extproc.core.pricing.classes import ClassWeights
from extproc.core.pricing.money import money_s
from extproc.core.pricing.tail import counted_s
from extproc.core.speeds.shapes import kv_bytes_per_token
from extproc.core.values.decision import Candidate, Cost
from extproc.core.values.instance import Instance, Role

# What each KV block adds to a transfer: 7,500 tokens over NVLink took 20 ms in blocks of 16 tokens, and 8 ms in blocks
# of 128, which are 410 blocks less (LMCache, "Bringing State-Of-The-Art PD Speed to vLLM v1", 2025).
_BLOCK_S = 29e-6


@dataclass(frozen=True, slots=True)
class Half:
    """An instance priced for one half of a request.

    A prefill half is priced as a request that produces nothing, a decode half as one whose whole prompt is cached.
    """

    candidate: Candidate
    held_tokens: int = 0  # of the prompt, that a decode instance holds already: they need not be moved


@dataclass(frozen=True, slots=True)
class Pair:
    """Who computes the prompt, who answers, and what it takes to hand the prompt's KV blocks over."""

    prefill: Candidate
    decode: Candidate
    transfer_s: float
    worth_s: float  # of both halves and the transfer: what pairs are compared by
    money_s: float = 0.0  # of the transfer: waiting that would be worth what its bytes cost
    tail_s: float = 0.0  # what its long wait counts more than those of both halves do by themselves

    @property
    def ttft_s(self) -> float:
        """Predicted time to the first token that the client sees."""
        return self.prefill.cost.ttft_s + self.transfer_s + self.decode.cost.ttft_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """The handing over of one request's prompt, and what it is worth to its class."""

    model: str
    prompt_tokens: int
    zones: Zones = field(default_factory=Zones)
    weights: ClassWeights = field(default_factory=ClassWeights)
    tail_from_s: float = float("inf")  # from this TTFT on, a second counts `tail_weight` times more (`pricing.tail`)
    tail_weight: float = 0.0

    def seconds(self, source: Instance, target: Instance, held_tokens: int) -> float | None:
        """Seconds to move what `target` does not hold, None if the two cannot hand over or the size is not known.

        One round trip between their zones tells the target that the prompt is computed, then it fetches the blocks at
        the rate of the slowest of both ends and the way between them.
        """
        per_token_bytes = kv_bytes_per_token(target, self.model)
        if not hands_over(source, target) or per_token_bytes is None:
            return None
        tokens = max(0, self.prompt_tokens - held_tokens)
        crossing = self.zones.between(source.zone, target.zone)
        rates = [transfer_bytes_s(source), transfer_bytes_s(target)]
        if crossing.bytes_s:
            rates.append(crossing.bytes_s)
        blocks = -(-tokens // block_size_tokens(target))
        return crossing.rtt_s + tokens * per_token_bytes / min(rates) + blocks * _BLOCK_S

    def tail_s(self, prefill: Cost, decode: Cost, moved_s: float) -> float:
        """What the whole wait for the first token counts more, beyond what both halves count of theirs."""
        ttft_s = prefill.ttft_s + moved_s + decode.ttft_s
        beyond_s = max(0.0, ttft_s - self.tail_from_s)
        waited_s = min(beyond_s, ttft_s - prefill.prefill_s - decode.prefill_s)
        return counted_s(beyond_s, waited_s, self.tail_weight) - prefill.tail_s - decode.tail_s

    def money_s(self, source: Instance, target: Instance, held_tokens: int) -> float:
        """Seconds of waiting that are worth what its bytes cost between zones; 0 where nothing is known of either."""
        value_per_hour = self.weights.value_per_hour
        price_per_gb = self.zones.between(source.zone, target.zone).price_per_gb
        per_token_bytes = kv_bytes_per_token(target, self.model)
        if not value_per_hour or not price_per_gb or per_token_bytes is None:
            return 0.0
        moved_bytes = max(0, self.prompt_tokens - held_tokens) * per_token_bytes
        return money_s(price_per_gb * moved_bytes / 1e9, value_per_hour)


def takes_prefill(instance: Instance) -> bool:
    """Whether an instance computes prompts for others."""
    return bool(instance.kv_domain) and instance.role is not Role.DECODE


def takes_decode(instance: Instance) -> bool:
    """Whether an instance answers with prompts that others computed."""
    return bool(instance.kv_domain) and instance.role is not Role.PREFILL


def hands_over(source: Instance, target: Instance) -> bool:
    """Whether KV blocks can go from one instance to the other: they share a domain, as their operator says."""
    return (
        source.id != target.id
        and source.kv_domain == target.kv_domain
        and takes_prefill(source)
        and takes_decode(target)
    )


def transfer_bytes_s(instance: Instance) -> float:
    """Rate at which an instance moves KV blocks: what the operator says, else what its fabric's class has.

    Without a fabric it is Ethernet: NIXL falls back to TCP where there is no RDMA (llm-d, Disaggregated Serving).
    """
    if instance.kv_transfer_bytes_s:
        return instance.kv_transfer_bytes_s
    return (between(instance.fabric) or ETHERNET).bytes_s


def _total_s(candidate: Candidate) -> float:
    return candidate.cost.total_s


def rank_pairs(prefills: Iterable[Half], decodes: Sequence[Half], transfer: Transfer) -> list[Pair]:
    """Pairs of the least sums, the least first; none if no two of them can hand over.

    What a transfer takes depends on the source only by its zone, domain and rate. So the two cheapest sources of each
    such kind (two, for one of them may be the target itself) stand for all: n + m * kinds looks.
    That is exact but for the tail, in which of two sources the dearer may be the quicker.
    """
    sources = _cheapest_of_each_kind(prefills)
    found = []
    for decode in decodes:
        for source in sources:
            moved_s = transfer.seconds(source.instance, decode.candidate.instance, decode.held_tokens)
            if moved_s is not None:
                paid_s = transfer.money_s(source.instance, decode.candidate.instance, decode.held_tokens)
                tail_s = transfer.tail_s(source.cost, decode.candidate.cost, moved_s)
                worth_s = transfer.weights.weigh(ttft_s=moved_s + tail_s, completion_s=0.0, money_s=paid_s)
                sum_s = source.cost.total_s + worth_s + decode.candidate.cost.total_s
                found.append(Pair(source, decode.candidate, moved_s, sum_s, paid_s, tail_s))
    return sorted(found, key=lambda pair: pair.worth_s)


def _cheapest_of_each_kind(halves: Iterable[Half]) -> list[Candidate]:
    kinds: dict[tuple[str, str, float], list[Candidate]] = {}
    for half in halves:
        instance = half.candidate.instance
        if not takes_prefill(instance):
            continue
        kind = instance.kv_domain, instance.zone, transfer_bytes_s(instance)
        kinds.setdefault(kind, []).append(half.candidate)
    return [each for members in kinds.values() for each in _two_cheapest(members)]


def _two_cheapest(members: list[Candidate]) -> list[Candidate]:
    first = min(members, key=_total_s)
    others = [member for member in members if member is not first]
    return [first, min(others, key=_total_s)] if others else [first]
