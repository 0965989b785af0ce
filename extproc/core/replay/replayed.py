"""Makes a decision again from what was seen: by the very `decide`, upon parts that answer from the record.

Each part is the real one with its reads answered from plain values; the columns are worked out anew from them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec

from extproc.core.admission.bounds import Bounds
from extproc.core.columns import Columns
from extproc.core.decide import decide
from extproc.core.fleet.fleet import Member
from extproc.core.flight.ledger import Ledger
from extproc.core.flight.pace import Pace
from extproc.core.flight.work import IDLE, OURS, Place, Reservation, Work
from extproc.core.health.backpressure import Backpressure
from extproc.core.health.cooldown import Cooldowns
from extproc.core.health.slow_start import WINDOW_S, WarmUps
from extproc.core.models.joint import choose_option
from extproc.core.pairs.paired import paired
from extproc.core.prefixes.kv_index import KvIndex, in_any_tier, on_gpu
from extproc.core.prefixes.prefix import PrefixIndex
from extproc.core.prefixes.prefix_trust import PrefixTrust
from extproc.core.prefixes.recent_prefixes import Chain, RecentPrefixes
from extproc.core.pricing.loading import Adapters
from extproc.core.pricing.tail import TtftTail
from extproc.core.reasons.explanation import Material, material
from extproc.core.replay.seen import InstanceSeen, OptionSeen, PolicySeen, Seen, Sent, WorkSeen
from extproc.core.snapshot import Policy, Snapshot
from extproc.core.speeds.speed import Speed
from extproc.core.tokens.beliefs import Beliefs
from extproc.core.values.decision import Decision
from extproc.core.values.instance import Instance, Lifecycle
from extproc.core.values.option import Choice, Option
from extproc.core.values.request import KvLayout


@dataclass(frozen=True, slots=True)
class Replayed:
    """A decision that was made again, and what explains it."""

    choice: Choice
    material: Material


def policy_of(seen: PolicySeen) -> Policy:
    """The operator's rules as they were."""
    crossings = {(here, there): way for here, there, way in seen.crossings}
    return replace(seen.policy, zones=replace(seen.policy.zones, crossings=crossings))


def replay(seen: Seen, policy: Policy) -> Replayed:
    """Decide again, by the policy of then or by another one. `seen` has at least one option."""
    asked = [_asked(each) for each in seen.options]
    snapshots = [snapshot_of(seen, each, policy) for each in seen.options]
    bounds = None if seen.bounds is None else msgspec.convert(seen.bounds, Bounds, strict=False)
    full = frozenset(seen.full)
    by_request = {id(option): snapshot for option, snapshot in zip(asked, snapshots, strict=True)}

    def decided(option: Option) -> Decision:
        request, snapshot = option.request, by_request[id(option)]
        decision = decide(request, snapshot, seen.now, seen.draw, full, bounds)
        return paired(decision, request, snapshot, seen.now, seen.draw, full, bounds)

    choice = choose_option(asked, decided, policy, seen.draw)
    snapshot = by_request[id(choice.option)]
    return Replayed(choice, material(choice.option.request, choice.decision, snapshot, seen.now))


def snapshot_of(seen: Seen, option: OptionSeen, policy: Policy) -> Snapshot:
    """What was looked at for one of the models; it answers for that one's request alone."""
    instances = {each.instance.key: each for each in seen.instances}
    return Snapshot(
        tuple(map(_member, seen.instances)),
        _long_ago(seen.heard_at_s),
        _Ledger(instances),
        _Learned(option),
        _Recent(option),
        _Told(instances, option),
        _Trust(option),
        _Beliefs(option),
        TtftTail(seen.tail_begins_s),
        _Cooldowns(instances),
        _Backpressure(instances),
        _WarmUps(instances),
        _Adapters(instances, option),
        Columns(),
        policy,
    )


def _member(seen: InstanceSeen) -> Member:
    drains = seen.instance.lifecycle is Lifecycle.DRAINING
    draining_since_s = _long_ago(seen.draining_since_s) if drains else None
    return Member(seen.instance, seen.observed_at_s, _long_ago(seen.ready_since_s), draining_since_s)


def _long_ago(at_s: float | None) -> float:
    return float("-inf") if at_s is None else at_s


def _asked(seen: OptionSeen) -> Option:
    chains: dict[KvLayout, tuple[int, ...]] = {KvLayout(size, model): () for size, model in seen.layouts}
    return msgspec.structs.replace(seen.option, request=msgspec.structs.replace(seen.option.request, chains=chains))


def _work_of(seen: WorkSeen) -> Work:
    sent = {(OURS, str(number)): each for number, each in enumerate(seen.sent)}
    return Work(
        active={place: _reservation(place, each) for place, each in sent.items()},
        prefilled_at_s={place: each.prefilled_at_s for place, each in sent.items()},
        pace=Pace(seen.pace_requests, seen.pace_prefill_s, _long_ago(seen.pace_at_s)),
        foreign_running=seen.foreign_running,
        foreign_waiting=seen.foreign_waiting,
        foreign_kv_tokens=seen.foreign_kv_tokens,
        booked_tokens=seen.booked_tokens,
        booked_prompt_tokens=seen.booked_prompt_tokens,
        held_tokens=seen.held_tokens,
        prefill_free_at_s=seen.prefill_free_at_s,
    )


def _reservation(place: Place, sent: Sent) -> Reservation:
    """What `core.reasons.retry_after` reads; sums of the rest stand beside it."""
    return Reservation(
        request_id=place[1],
        taken_s=0.0,
        prefill_s=0.0,
        prompt_tokens=sent.uncached_tokens,
        output_tokens=sent.output_tokens,
        uncached_tokens=sent.uncached_tokens,
    )


class _Ledger(Ledger):
    def __init__(self, instances: Mapping[str, InstanceSeen]) -> None:
        super().__init__()
        self._seen = {key: _work_of(each.work) for key, each in instances.items()}

    def work(self, key: str) -> Work:
        return self._seen.get(key, IDLE)


class _Learned(PrefixIndex):
    def __init__(self, option: OptionSeen) -> None:
        super().__init__()
        self._found: list[tuple[tuple[str, ...], int]] = [((key,), blocks) for key, blocks in option.learned]

    def depths(self, prefix: Sequence[int]) -> list[tuple[tuple[str, ...], int]]:
        return self._found


class _Recent(RecentPrefixes):
    def __init__(self, option: OptionSeen) -> None:
        super().__init__()
        self._found: list[tuple[tuple[str, ...], int]] = [((key,), blocks) for key, blocks in option.recent]

    def depths(self, prefix: Chain, now: float) -> list[tuple[tuple[str, ...], int]]:
        return self._found


class _Told(KvIndex):
    def __init__(self, instances: Mapping[str, InstanceSeen], option: OptionSeen) -> None:
        super().__init__()
        self._block_sizes_tokens = {
            key: each.kv_block_tokens for key, each in instances.items() if each.kv_block_tokens is not None
        }
        self._found: dict[KvLayout, list[tuple[tuple[str, ...], int]]] = {}
        for each in option.told:
            size = each.block_size_tokens
            found = self._found.setdefault(KvLayout(size, each.model), [])
            found.append(((on_gpu(each.key),), each.gpu_tokens // size))
            if each.lower_tokens:
                self._tiered.add(each.key)
                found.append(((in_any_tier(each.key),), (each.gpu_tokens + each.lower_tokens) // size))

    def depths(self, layout: KvLayout, chain: tuple[int, ...]) -> list[tuple[tuple[str, ...], int]]:
        return self._found.get(layout, [])


class _Trust(PrefixTrust):
    def __init__(self, option: OptionSeen) -> None:
        super().__init__()
        self._model = option.option.request.model
        self._shares = {self._model: dict(option.shares)} if option.shares else {}
        self._distrusted = {self._model: set(option.distrusted)}


class _Beliefs(Beliefs):
    def __init__(self, option: OptionSeen) -> None:
        super().__init__()
        self._model, self._known = option.option.request.model, option.speeds

    def speed(self, model: str, instance: Instance) -> Speed:
        known = self._known.get(instance.key) if model == self._model else None
        return known or super().speed(model, instance)


class _Cooldowns(Cooldowns):
    def __init__(self, instances: Mapping[str, InstanceSeen]) -> None:
        super().__init__(1.0, 1.0)
        self._left_s = {key: each.resting_s for key, each in instances.items() if each.resting_s}

    def remaining_s(self, key: str, now: float) -> float:
        return self._left_s.get(key, 0.0)

    def resting(self, now: float) -> list[str]:
        return list(self._left_s)


class _Backpressure(Backpressure):
    def __init__(self, instances: Mapping[str, InstanceSeen]) -> None:
        super().__init__()
        self._left_s = {key: each.paused_s for key, each in instances.items() if each.paused_s}

    def remaining_s(self, key: str, now: float) -> float:
        return self._left_s.get(key, 0.0)

    def paused(self, now: float) -> list[str]:
        return list(self._left_s)


class _WarmUps(WarmUps):
    def __init__(self, instances: Mapping[str, InstanceSeen]) -> None:
        super().__init__()
        self._warm = {key: each.warm for key, each in instances.items()}

    def progress(self, key: str, ready_since_s: float, now: float, window_s: float = WINDOW_S) -> float:
        return self._warm.get(key, 1.0)


class _Adapters(Adapters):
    def __init__(self, instances: Mapping[str, InstanceSeen], option: OptionSeen) -> None:
        super().__init__()
        self._rows = {key: each.slots for key, each in instances.items()}
        self._loaded = option.loaded

    def row(self, key: str) -> tuple[float, float, float]:
        return self._rows.get(key, (0.0, 0.0, 1.0))

    def loaded(self, adapter: str) -> Iterator[tuple[str, float]]:
        return iter(self._loaded)
