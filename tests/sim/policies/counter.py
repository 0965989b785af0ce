"""A router's counter to test rules at: settings, instances, requests and what becomes of them, in a line each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random

from extproc.core.values.instance import Instance, Lifecycle, Load
from extproc.sim.fleet.spec import InstanceSpec
from extproc.sim.policies.policy import Ask, Ending, Policy, Probe, Setting
from extproc.sim.traffic.arrival import Arrival

BLOCK_TOKENS = 64


def setting(
    *,
    seed: int = 1,
    replica: int = 0,
    replicas: int = 1,
    probe: Callable[[str], Probe | None] | None = None,
    specs: Mapping[str, InstanceSpec] | None = None,
) -> Setting:
    """Where a policy finds itself; nobody answers probes, and instances are H100, unless told otherwise."""
    engines: Mapping[str, object] = {}
    return Setting(
        replica=replica,
        replicas=replicas,
        block_size_tokens=BLOCK_TOKENS,
        random=Random(seed),
        probe=probe or (lambda instance_id: None),
        specs=specs or {name: InstanceSpec(id=name, models=("model",)) for name in "abcdefgh"},
        engines=engines,  # type: ignore[arg-type]
        common={},
    )


def instance(name: str, load: Load | None = None, **changes: object) -> Instance:
    """A Ready instance with room for everything."""
    known: dict[str, object] = {
        "id": name,
        "incarnation": "1",
        "address": "10.0.0.1:8000",
        "cluster": "pool",
        "models": ("model",),
        "lifecycle": Lifecycle.READY,
        "hardware": "h100_sxm",
        "block_size_tokens": 16,
        "kv_blocks": 29_000,
        "load": load or Load(),
    }
    return Instance(**(known | changes))  # type: ignore[arg-type]


def ask(name: str, tokens: int = 640, blocks: tuple[int, ...] | None = None, **changes: object) -> Ask:
    """A request; by default its full blocks are its own."""
    if blocks is None:
        first = sum(ord(letter) << 8 * place for place, letter in enumerate(name)) * 10_000
        blocks = tuple(range(first, first + tokens // BLOCK_TOKENS))
    arrival = Arrival(at_s=0.0, prompt_tokens=tokens, output_tokens=100, blocks=blocks, **changes)  # type: ignore[arg-type]
    return Ask(name, arrival, blocks)


OVER = Ending(200, 0.1, 1.0, 10, None)
BROKEN = Ending(503, None, 0.1, 0, None)


def publish(policy: Policy, loads: Mapping[str, Load], now: float = 0.0) -> None:
    """Reports of instances by name, each just read."""
    for name, load in loads.items():
        policy.published(instance(name, load), now, now)


def busy(policy: Policy, requests: Mapping[str, int], tokens: int = 640, now: float = 0.0) -> None:
    """Book so many requests at each instance, past the rule: the others do not exist meanwhile."""
    desk_seen = policy.seen  # type: ignore[attr-defined]
    for name, count in requests.items():
        others = [seen for seen in desk_seen.values() if seen.id != name]
        before = [seen.instance for seen in others]
        for seen in others:
            seen.instance = instance(seen.id, lifecycle=Lifecycle.UNHEALTHY)
        for turn in range(count):
            assert policy.choose(ask(f"{name}{turn}", tokens), now) == name
        for seen, record in zip(others, before, strict=True):
            seen.instance = record


def send(policy: Policy, name: str, request: Ask, now: float = 0.0) -> None:
    """Send one request to an instance, past the rule."""
    desk_seen = policy.seen  # type: ignore[attr-defined]
    others = [seen for seen in desk_seen.values() if seen.id != name]
    before = [seen.instance for seen in others]
    for seen in others:
        seen.instance = instance(seen.id, lifecycle=Lifecycle.UNHEALTHY)
    assert policy.choose(request, now) == name
    for seen, record in zip(others, before, strict=True):
        seen.instance = record


def picks(make: Callable[[int], str | None], times: int = 40) -> set[str | None]:
    """What comes out under many seeds."""
    return {make(seed) for seed in range(times)}
