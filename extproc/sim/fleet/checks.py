"""Whether a described fleet can be simulated: what speaks against it, told in one line."""

from __future__ import annotations

from collections import Counter

from extproc.core.fleet.events import fault
from extproc.core.pairs.disaggregation import hands_over
from extproc.core.speeds.profile import KNOWN_HARDWARE, family, fitted_on
from extproc.core.speeds.shapes import kv_bytes_per_token
from extproc.core.values.instance import Lifecycle, Load, Role
from extproc.errors import ConfigError
from extproc.sim.fleet.spec import Event, FleetSpec, Happening, InstanceSpec

_OF_ONE = (Happening.CRASH, Happening.DRAIN, Happening.RESUME, Happening.ADD)
_WITH_VALUE = (Happening.SLOW, Happening.NETWORK_DELAY, Happening.REDIS_OUTAGE)


def check(fleet: FleetSpec) -> FleetSpec:
    """Return the fleet. Raises ConfigError, naming the instance or event, if it cannot be simulated as described."""
    if not fleet.instances:
        raise ConfigError("there is no instance in it")
    for spec in fleet.instances:
        if why := _instance_fault(spec):
            raise ConfigError(f"instance {spec.id!r}: {why}")
    ids = Counter(spec.id for spec in fleet.instances)
    if twice := [name for name, times in ids.items() if times > 1]:
        raise ConfigError(f"two instances have the id {twice[0]!r}")
    if why := _roles_fault(fleet):
        raise ConfigError(why)
    for event in fleet.events:
        if why := _event_fault(event, fleet):
            raise ConfigError(f"event {event.what} at {event.at_s:g} s: {why}")
    added = {event.instance for event in fleet.events if event.what is Happening.ADD}
    for spec in fleet.instances:
        if not spec.at_start and spec.id not in added:
            raise ConfigError(f"instance {spec.id!r} is not there at the start, and no event adds it")
    return fleet


def _instance_fault(spec: InstanceSpec) -> str:
    if not spec.models:
        return "it serves no model: name at least one under models"
    if why := fault(spec.record(0, 0, Lifecycle.READY, Load())):
        return why
    if why := _fit_fault(spec):
        return why
    if spec.max_num_seqs > spec.max_num_batched_tokens:
        return (
            f"max_num_seqs ({spec.max_num_seqs}) must not be above "
            f"max_num_batched_tokens ({spec.max_num_batched_tokens})"
        )
    needed = max(2 * spec.block_size_tokens, spec.max_model_len_tokens or 0)
    if spec.kv_tokens < needed:
        return f"{spec.kv_tokens} tokens of KV are less than one request of {needed}"
    return ""


def _fit_fault(spec: InstanceSpec) -> str:
    """Tell if nobody has measured its first model on its hardware: a guess would look like a result."""
    fits = fitted_on(spec.hardware)
    if not fits:
        return f"hardware {spec.hardware!r} has no step times; known: {', '.join(KNOWN_HARDWARE)}"
    model, size = family(spec.models[0]), spec.tensor_parallel
    if (model, size) in fits:
        return ""
    known = ", ".join(f"{name} with tensor_parallel {number}" for name, number in fits)
    advice = "" if model else "; put the one that is most like it first in models"
    return (
        f"model {spec.models[0]!r} with tensor_parallel {size} has no step times on {spec.hardware}; "
        f"known: {known}{advice}"
    )


def _roles_fault(fleet: FleetSpec) -> str:
    """Tell of an instance that takes half a request and has nobody for the other half."""
    records = [spec.record(0, 0, Lifecycle.READY, Load()) for spec in fleet.instances] if _any_halves(fleet) else []
    for each in records:
        if each.role is Role.PREFILL and not any(hands_over(each, other) for other in records):
            return (
                f"instance {each.id!r}: nobody of its kv_domain {each.kv_domain!r} takes over prompts that it computes"
            )
        if each.role is Role.DECODE and not any(hands_over(other, each) for other in records):
            return f"instance {each.id!r}: nobody of its kv_domain {each.kv_domain!r} computes prompts for it"
        if each.kv_domain and kv_bytes_per_token(each, each.models[0]) is None:
            return f"instance {each.id!r}: the KV bytes of a token of {each.models[0]!r} are not known"
    return ""


def _any_halves(fleet: FleetSpec) -> bool:
    return fleet.hands_over or any(spec.role is not Role.BOTH for spec in fleet.instances)


def _event_fault(event: Event, fleet: FleetSpec) -> str:
    known = {spec.id: spec for spec in fleet.instances}
    if event.instance and event.instance not in known:
        return f"there is no instance {event.instance!r}"
    if event.what in _OF_ONE and not event.instance:
        return "say which instance or group"
    if event.what is Happening.REDIS_OUTAGE and event.instance:
        return "it concerns no single instance: the routers hear nothing"
    if event.what not in _WITH_VALUE and event.value:
        return "it takes no value"
    if event.what in (Happening.SLOW, Happening.REDIS_OUTAGE) and not event.value:
        return "it needs a value above 0"
    if event.what is Happening.ADD and known[event.instance].at_start:
        return f"instance {event.instance!r} is there from the start: give it at_start: false"
    return ""
