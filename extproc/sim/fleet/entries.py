"""What may stand in a fleet file: one entry for one instance or for many alike, and what happens to them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from extproc.core.values.instance import Capability, Role
from extproc.errors import ConfigError
from extproc.sim.fleet.memory import kv_tokens_beside
from extproc.sim.fleet.spec import Event, Happening, InstanceSpec

if TYPE_CHECKING:
    from collections.abc import Iterator

_Count = Annotated[int, msgspec.Meta(ge=1, le=1_000_000_000)]
_Amount = Annotated[float, msgspec.Meta(ge=0, le=1e9)]


class Facts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What is said of an instance; None: not said. Names and units as in `InstanceSpec`."""

    models: tuple[str, ...] | None = None
    hardware: str | None = None
    tensor_parallel: _Count | None = None
    zone: str | None = None
    price_per_hour: _Amount | None = None
    block_size_tokens: _Count | None = None
    kv_tokens: _Count | None = None  # or in blocks; computed from hardware and model where neither is said
    kv_blocks: _Count | None = None
    max_num_seqs: _Count | None = None
    max_num_batched_tokens: _Count | None = None
    loras: tuple[str, ...] | None = None
    max_loras: _Count | None = None
    lora_load_s: _Amount | None = None
    max_model_len_tokens: _Count | None = None
    capabilities: tuple[Capability, ...] | None = None
    tags: dict[str, str] | None = None
    start_s: _Amount | None = None
    step_overhead_s: _Amount | None = None
    slowness: Annotated[float, msgspec.Meta(gt=0, le=1e9)] | None = None
    network_s: _Amount | None = None
    at_start: bool | None = None
    role: Role | None = None
    kv_domain: str | None = None
    fabric: str | None = None
    kv_transfer_bytes_s: Annotated[float, msgspec.Meta(gt=0, le=1e13)] | None = None


class Entry(Facts, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One instance, or with `count` a group of as many, whose ids are the group's with -1, -2 … behind."""

    id: str
    count: Annotated[int, msgspec.Meta(ge=1, le=10_000)] | None = None

    @property
    def ids(self) -> list[str]:
        """Ids of its instances."""
        return [self.id] if self.count is None else [f"{self.id}-{number + 1}" for number in range(self.count)]

    def instances(self, defaults: Facts) -> Iterator[InstanceSpec]:
        """Describe its instances; what it does not say is taken from `defaults`. Raises ConfigError."""
        usual, own = _said(defaults), _said(self)
        for place, facts in (("defaults", usual), (f"instance {self.id!r}", own)):
            if "kv_tokens" in facts and "kv_blocks" in facts:
                raise ConfigError(f"{place}: give kv_tokens or kv_blocks, not both")
        said = usual | own
        if "kv_tokens" in own:
            said.pop("kv_blocks", None)
        for key in ("models", "hardware"):
            if not said.get(key):
                raise ConfigError(f"instance {self.id!r}: {key} is missing, here and in defaults")
        for name in ("id", "count"):
            said.pop(name, None)
        for instance_id in self.ids:
            yield describe(id=instance_id, **said)


class Happens(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A scripted event, of one instance, of all of a group, or of none in particular."""

    at_s: _Amount
    what: Happening
    instance: str = ""
    group: str = ""
    value: _Amount = 0.0

    def events(self, groups: dict[str, list[str]]) -> Iterator[Event]:
        """Return one event an instance. Raises ConfigError if there is no such group."""
        ids = [self.instance]
        if self.group:
            if self.instance:
                raise ConfigError(f"event {self.what} at {self.at_s:g} s: give instance or group, not both")
            if self.group not in groups:
                raise ConfigError(f"event {self.what} at {self.at_s:g} s: there is no group {self.group!r}")
            ids = groups[self.group]
        for instance_id in ids:
            yield Event(at_s=self.at_s, what=self.what, instance=instance_id, value=self.value)


class FleetFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A fleet file as it is written."""

    name: str = ""  # that of the file if left out
    defaults: Facts = Facts()
    instances: tuple[Entry, ...]
    events: tuple[Happens, ...] = ()


def describe(*, kv_blocks: int | None = None, **said: Any) -> InstanceSpec:
    """Describe an instance by `InstanceSpec`'s fields, its KV room also in blocks or not at all."""
    spec = InstanceSpec(**said)
    tokens: int | None = None
    if kv_blocks is not None:
        tokens = kv_blocks * spec.block_size_tokens
    elif "kv_tokens" not in said:
        tokens = kv_tokens_beside(spec.models[0], spec.hardware, spec.tensor_parallel)
    return spec if tokens is None else InstanceSpec(**{**said, "kv_tokens": tokens})


def _said(facts: Facts) -> dict[str, Any]:
    return {key: value for key, value in msgspec.structs.asdict(facts).items() if value is not None}
