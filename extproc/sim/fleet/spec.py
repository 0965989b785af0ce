"""A fleet as it is described: instances with their hardware and limits, and what will happen to them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from extproc.core.models.virtual import ModelPolicy
from extproc.core.pricing.classes import ClassPolicy
from extproc.core.speeds.profile import Profile, profile_for
from extproc.core.values.instance import Capability, Instance, Lifecycle, Load, Role
from extproc.sim.physics.adapters import BASE

DEFAULT_KV_TOKENS = 467_000  # beside an 8B model in BF16 on 80 GB


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceSpec:
    """One instance: what it is, as its agent would publish it, and what is true of it."""

    id: str
    models: tuple[str, ...]
    hardware: str = "h100_sxm"
    tensor_parallel: int = 1
    zone: str = ""
    price_per_hour: float | None = None
    block_size_tokens: int = 16
    kv_tokens: int = DEFAULT_KV_TOKENS
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 8192
    loras: tuple[str, ...] = ()  # LoRA adapters that it answers to beside its models
    max_loras: int = 1  # of them in one batch
    lora_load_s: float = 0.05  # to bring one into the GPU; the batch stands still meanwhile
    max_model_len_tokens: int | None = None
    capabilities: tuple[Capability, ...] | None = None
    tags: dict[str, str] = field(default_factory=dict)
    start_s: float = 60.0  # from `add` until it is Ready
    step_overhead_s: float = 0.0  # what a real engine adds to the kernels' time in each step
    slowness: float = 1.0  # 2.0: each step takes twice as long as its hardware's fit says
    network_s: float = 0.0  # from Envoy to it, one way
    at_start: bool = True  # False: begins with an `add`
    role: Role = Role.BOTH
    kv_domain: str = ""  # members of one hand KV blocks to each other; "": to nobody
    fabric: str = ""  # over which they do
    kv_transfer_bytes_s: float | None = (
        None  # at which it sends, and at which it takes; None: what the fabric's class has
    )

    @property
    def kv_blocks(self) -> int:
        """KV blocks in all."""
        return self.kv_tokens // self.block_size_tokens

    @property
    def pool(self) -> str:
        """Those whose ids differ in nothing but the number behind the last hyphen can stand in for each other."""
        return self.id.rpartition("-")[0] or self.id

    def profile(self) -> Profile:
        """What its hardware's fit says of its first model."""
        return profile_for(self.models[0], self.hardware, self.tensor_parallel)

    def record(
        self,
        incarnation: int,
        number: int,
        lifecycle: Lifecycle,
        load: Load,
        running: Sequence[str] = (),
        waiting: Sequence[str] = (),
    ) -> Instance:
        """What its agent publishes; `number` tells its address from that of others.

        `running` and `waiting` are the adapters of such requests.
        """
        return Instance(
            id=self.id,
            incarnation=str(incarnation),
            address=f"10.0.{number // 250}.{number % 250 + 1}:8000",
            cluster="pool",
            models=(*self.models, *self.loras),
            loras=self.loras,
            loras_active=tuple(dict.fromkeys((*running, *waiting))),
            loras_running=tuple(running),
            max_loras=self.max_loras if self.loras else None,
            lifecycle=lifecycle,
            engine="vllm",
            hardware=self.hardware,
            tensor_parallel=self.tensor_parallel,
            gpus=self.tensor_parallel,
            zone=self.zone,
            capabilities=self.capabilities,
            max_model_len_tokens=self.max_model_len_tokens,
            block_size_tokens=self.block_size_tokens,
            kv_blocks=self.kv_blocks,
            max_num_seqs=self.max_num_seqs,
            step_tokens=self.max_num_batched_tokens,
            load=load,
            price_per_hour=self.price_per_hour,
            tags=self.tags,
            role=self.role,
            kv_domain=self.kv_domain,
            fabric=self.fabric,
            kv_transfer_bytes_s=self.kv_transfer_bytes_s,
        )


def adapter_of(model: str, spec: InstanceSpec) -> str:
    """The adapter that an instance needs for a model, `BASE` if none."""
    return model if model in spec.loras else BASE


class Happening(StrEnum):
    """What can happen to a fleet while it runs."""

    CRASH = "crash"  # the process is gone at once, with all it holds; it comes back after `start_s`
    DRAIN = "drain"  # takes nothing new from now on
    RESUME = "resume"
    ADD = "add"  # begins to load, and is Ready after its `start_s`
    SLOW = "slow"  # each step takes `value` times as long; 1 heals it
    NETWORK_DELAY = "network_delay"  # `value` seconds more on each way; 0 heals it
    RESET_CACHE = "reset_cache"  # all cached prefixes are forgotten as soon as nobody holds one
    REDIS_OUTAGE = "redis_outage"  # routers hear nothing for `value` seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that happens at one moment; `instance` is "" where it concerns all."""

    at_s: float
    what: Happening
    instance: str = ""
    value: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetSpec:
    """All instances and events of a fleet."""

    name: str
    instances: tuple[InstanceSpec, ...]
    events: tuple[Event, ...] = ()
    models: ModelPolicy = field(default_factory=ModelPolicy)  # what its operator says of models
    classes: ClassPolicy = field(default_factory=ClassPolicy)  # and what waiting is worth

    def serves(self, spec: InstanceSpec, model: str) -> bool:
        """Whether an instance may serve requests for a name: of its own models, or of one that stands for one."""
        return any(each in spec.models for each in self.models.stands_for(model))

    @property
    def hands_over(self) -> bool:
        """Whether any of its instances hand KV blocks to others."""
        return any(spec.kv_domain for spec in self.instances)


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """How far what routers see is from the truth."""

    state_period_s: float = 0.2  # between two readings of an engine's load
    state_delay_s: float = 0.2  # from a reading until routers have it
    state_loss: float = 0.0  # share of readings that never arrive
    cache_delay_s: float = 0.05  # from a change of a cache until routers have it
    replicas: int = 1  # routers that share the traffic
    peer_delay_s: float = 0.01  # until a router hears of another's choice
    seed: int = 0
