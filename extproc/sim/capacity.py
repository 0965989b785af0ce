"""How many requests a second a fleet can serve of a workload, worked out from profiles alone.

A saturated engine computes in each step one token for each of B running answers and the prompt tokens that keep up
with them: with U uncached prompt tokens and O output tokens a request, B answers end every O steps, so that a step
brings n = B * U / O prompt tokens. B is what places, KV blocks and the token budget of a step allow. Then

    capacity = B / (O * step_s(n, B))

summed over the instances. U counts what one cache with the KV room of all of them would not hold, shared by all and
dropping the least recently used block first. Caches that each belong to one instance, and that share their room with
running requests, hold less. So no real policy quite reaches this; it is a common measure of load, not a promise.

Where different instances serve different models, that is worked out for the requests of each such group, and the fleet
is at its capacity as soon as one group is.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean

from extproc.core.values.instance import Role
from extproc.errors import ConfigError
from extproc.sim.capacity_halves import shared_rps
from extproc.sim.fleet.spec import FleetSpec, InstanceSpec
from extproc.sim.traffic.arrival import Arrival, Traffic


def capacity_rps(traffic: Traffic, fleet: FleetSpec) -> float:
    """Requests a second that the instances can serve that are there at the start.

    Raises ConfigError without arrivals, or if there is no instance for some of them.
    """
    if not traffic.arrivals:
        raise ConfigError(f"{traffic.name} has no requests: there is no load to speak of")
    groups = _groups(traffic, fleet)
    return min(_group_rps(part, instances) * len(traffic.arrivals) / len(part.arrivals) for instances, part in groups)


def instance_rps(spec: InstanceSpec, prompt_tokens: float, uncached_tokens: float, output_tokens: float) -> float:
    """Requests a second of such a mean size that one instance serves at the most; the formula above."""
    held_tokens = prompt_tokens + output_tokens / 2
    per_answer = 1.0 + uncached_tokens / output_tokens  # tokens that a step computes for each running answer
    answers = max(1.0, min(spec.max_num_seqs, spec.kv_tokens / held_tokens))
    answers = min(answers, spec.max_num_batched_tokens / per_answer)
    new_tokens = answers * uncached_tokens / output_tokens
    profile = spec.profile()
    step_ms = (
        max(profile.a_ms, profile.d_ms)
        + profile.b_ms * new_tokens
        + profile.c_ms * new_tokens * (prompt_tokens - uncached_tokens / 2)
        + profile.e_ms * answers
        + profile.f_ms * answers * held_tokens
    )
    return answers / (output_tokens * spec.slowness * (1e-3 * step_ms + spec.step_overhead_s))


def power_shares(fleet: FleetSpec, prompt_tokens: float, output_tokens: float) -> tuple[float, ...]:
    """Each instance's part of what all of them can serve of such requests, nothing cached; the parts add up to 1."""
    powers = [instance_rps(spec, prompt_tokens, prompt_tokens, output_tokens) for spec in fleet.instances]
    return tuple(power / sum(powers) for power in powers)


def _groups(traffic: Traffic, fleet: FleetSpec) -> list[tuple[list[InstanceSpec], Traffic]]:
    """Instances that serve the same requests, with these; models that the same instances serve are one group."""
    here = [spec for spec in fleet.instances if spec.at_start]
    by_model = {
        model: tuple(number for number, spec in enumerate(here) if fleet.serves(spec, model))
        for model in {arrival.model for arrival in traffic.arrivals}
    }
    members: dict[tuple[int, ...], list[Arrival]] = {}
    for arrival in traffic.arrivals:
        members.setdefault(by_model[arrival.model], []).append(arrival)
    if none := members.get(()):
        raise ConfigError(f"no instance that {fleet.name} begins with serves {none[0].model!r}")
    return [
        ([here[number] for number in numbers], replace(traffic, arrivals=tuple(arrivals)))
        for numbers, arrivals in members.items()
    ]


def _group_rps(traffic: Traffic, instances: Sequence[InstanceSpec]) -> float:
    output_tokens = max(1.0, fmean(arrival.output_tokens for arrival in traffic.arrivals))
    prompt_tokens = fmean(arrival.prompt_tokens for arrival in traffic.arrivals)
    room_tokens = sum(spec.kv_tokens for spec in instances)
    uncached_tokens = prompt_tokens - _repeated_tokens(traffic, room_tokens) / len(traffic.arrivals)

    def rate(spec: InstanceSpec, role: Role) -> float:
        if role is Role.PREFILL:
            profile, steps = spec.profile(), uncached_tokens / spec.max_num_batched_tokens
            alone_s = profile.prefill_s(uncached_tokens, prompt_tokens - uncached_tokens)
            return 1.0 / (
                spec.slowness * (alone_s + (steps - 1.0) * 1e-3 * profile.a_ms + steps * spec.step_overhead_s)
            )
        computed_tokens = 1.0 if role is Role.DECODE else uncached_tokens
        return instance_rps(spec, prompt_tokens, computed_tokens, output_tokens)

    return shared_rps(instances, rate)


def _repeated_tokens(traffic: Traffic, room_tokens: int) -> int:
    """Prompt tokens that such a cache holds when they come, in the order of the workload."""
    held: OrderedDict[int, None] = OrderedDict()
    room_blocks = room_tokens // traffic.block_size_tokens
    repeated_blocks = 0
    for arrival in traffic.arrivals:
        prompt = arrival.blocks[: arrival.prompt_tokens // traffic.block_size_tokens]
        repeated_blocks += next((place for place, block in enumerate(prompt) if block not in held), len(prompt))
        for block in reversed(arrival.blocks):  # what stands further back in a prompt is dropped first
            held[block] = None
            held.move_to_end(block)
        while len(held) > room_blocks:
            held.popitem(last=False)
    return repeated_blocks * traffic.block_size_tokens
