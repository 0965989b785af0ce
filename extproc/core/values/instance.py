"""An inference instance, as its agent publishes it."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import msgspec

# Records come from agents and from programs of others: numbers that nothing has are refused where they come in.
Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]  # beyond, a float does not hold it
Parts = Annotated[int, msgspec.Meta(ge=1, le=2**53)]  # of what there is one at the least
Rate = Annotated[float, msgspec.Meta(ge=1.0, le=1e15)]  # bytes a second, to divide by
Amount = Annotated[float, msgspec.Meta(ge=0.0, le=1e15)]


class Lifecycle(StrEnum):
    """What an instance is doing with its life; only `READY` takes new requests."""

    STARTING = "Starting"  # the process exists, its port does not answer yet
    LOADING = "Loading"  # the port answers, the model is not served yet
    READY = "Ready"
    DRAINING = "Draining"  # finishes what it has, takes nothing new, or only short continuations of it
    UNHEALTHY = "Unhealthy"  # does not answer, or answers that it is ill
    STOPPED = "Stopped"  # ended on purpose


COMING = frozenset({Lifecycle.STARTING, Lifecycle.LOADING})
"""Those that are on their way to Ready."""


class Capability(StrEnum):
    """What a request needs an instance to be able to do."""

    VISION = "vision"
    AUDIO = "audio"
    TOOLS = "tools"
    JSON_SCHEMA = "json_schema"  # or a grammar: constrained output of any kind
    LOGPROBS = "logprobs"
    REASONING = "reasoning"
    EMBEDDINGS = "embeddings"
    RERANK = "rerank"
    TRANSCRIPTION = "transcription"
    IMAGE_GENERATION = "image_generation"


class Role(StrEnum):
    """Which half of a request an instance takes where prefill and decode stand apart."""

    BOTH = "both"  # whole requests, and with a `kv_domain` either half
    PREFILL = "prefill"  # computes prompts for others, answers nobody
    DECODE = "decode"  # answers, with prompts that another one computed


class Load(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What an engine reports about its work at one moment; `None` means unknown, never zero."""

    running: Count | None = None  # requests in the batch
    waiting: Count | None = None  # requests queued in the engine
    prefilling: Count | None = None  # of those running, whose prompts are not computed yet
    kv_usage: Amount | None = None  # share of KV blocks held by running requests, 0 to 1


class Totals(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What an engine has counted since its start, over all its requests that have ended; `None` means unknown."""

    requests: Count | None = None
    prompt_tokens: Count | None = None
    output_tokens: Count | None = None
    cached_tokens: Count | None = None  # of the prompts', found in its KV cache


class Host(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How pressed the machine under an instance is; `None` means unknown.

    Pressures are shares of the last 10 s in which some task had to wait for the resource, 0 to 1.
    """

    cpu_pressure: Amount | None = None
    memory_pressure: Amount | None = None
    io_pressure: Amount | None = None
    network_bytes_s: Amount | None = None  # received and sent, all real interfaces together


class Instance(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One inference instance as its agent publishes it: an engine process on a set of GPUs.

    The record that lies in Redis is this struct as JSON. `address` is what Envoy connects to, `ip:port`.
    `incarnation` differs for every start of the engine: work in flight and cached prefixes belong to it.
    """

    id: str
    incarnation: str
    address: str
    cluster: str  # name of the Envoy cluster that holds the address
    models: tuple[str, ...]  # names it answers to, LoRA adapters included
    lifecycle: Lifecycle
    lifecycle_reason: str = ""
    engine: str = ""  # vllm, llamacpp …
    engine_version: str = ""
    hardware: str = ""  # GPU type as the profile table names it, such as h100_sxm
    tensor_parallel: Parts = 1
    zone: str = ""
    capabilities: tuple[Capability, ...] | None = None  # None: not known, taken to be able to do everything
    max_model_len_tokens: Count | None = None
    block_size_tokens: Count | None = None
    kv_blocks: Count | None = None  # KV blocks in all
    max_num_seqs: Count | None = None  # requests in one batch at the most
    step_tokens: Count | None = None  # tokens that one step computes at the most: longer prompts are cut into pieces
    load: Load = Load()
    age_s: Amount = 0.0  # how old `load` was when the record was published
    work_done: float | None = None  # a count that only grows in one incarnation: tells a restart
    totals: Totals | None = None
    asleep: bool | None = None  # its weights are put away: it serves nothing until somebody wakes it
    loading_progress: Amount | None = None  # of a start, 0 to 1
    ready_in_s: Amount | None = None  # when a start is expected to be over, from the publication on
    loadable: tuple[str, ...] = ()  # models that it does not serve now and would after a start, or a load
    start_s: Amount | None = None  # what the start of this incarnation took until it was Ready
    loras: tuple[str, ...] = ()  # adapters it answers to
    loras_active: tuple[str, ...] = ()  # those that requests use now, or wait for
    loras_running: tuple[str, ...] = ()  # of these, those of running requests; none: perhaps not told
    max_loras: Count | None = None  # adapters in one batch at the most
    lora_load_s: Amount | None = None  # what loading one takes, by its operator
    gpus: Parts | None = None
    interconnect: str = ""  # between the GPUs of one machine: nvlink, pcie …
    fabric: str = ""  # between its machines, and to others for KV transfer: ib, roce, ethernet …
    pipeline_parallel: Parts = 1
    data_parallel: Parts = 1
    expert_parallel: Parts = 1
    nodes: Parts = 1  # machines it spans
    price_per_hour: Amount | None = None  # of the whole instance, in the operator's currency
    precision: str = ""  # of the weights, such as fp8
    tags: dict[str, str] = {}
    network_limit_bytes_s: Rate | None = None  # what its machine's network can carry, both directions together
    role: Role = Role.BOTH
    kv_domain: str = ""  # instances of one domain can hand KV blocks to each other; "": to nobody
    kv_bytes_per_token: Count | None = None  # of its KV cache, over all layers and GPUs
    kv_transfer_bytes_s: Rate | None = None  # at which it hands KV blocks over, or takes them
    host: Host | None = None  # told by an agent on the same machine
    kv_events: bool = False  # its agent writes down what its engine says that it holds

    @property
    def key(self) -> str:
        """Name of this start of the instance; ledger, prefixes and cool-downs are kept under it."""
        return f"{self.id}@{self.incarnation}"


def id_of(key: str) -> str:
    """The id of the instance that a key names a start of."""
    return key.partition("@")[0]
