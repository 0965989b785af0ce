"""What is known of one backend: its readings over time put together, and the record that is published of it. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from extproc.adapters.engines.reading import Reading
from extproc.core.values.instance import Host, Instance

if TYPE_CHECKING:
    from extproc.agent.backend import Backend
    from extproc.agent.lifecycle import Standing


def recalled(last: Instance) -> Reading:
    """Return what a record says of the engine itself, not what an operator may have said of it."""
    return Reading(
        models=last.models,
        version=last.engine_version,
        work_done=last.work_done,
        totals=last.totals,
        max_model_len_tokens=last.max_model_len_tokens,
        block_size_tokens=last.block_size_tokens,
        kv_blocks=last.kv_blocks,
        loras=last.loras,
        loras_active=last.loras_active,
        loras_running=last.loras_running,
        max_loras=last.max_loras,
        asleep=last.asleep,
        load=last.load,
    )


def merge(facts: Reading, reading: Reading, *, load_told: bool) -> Reading:
    """Keep what a page told before if it does not answer now; a load grows old then, and is never zero."""
    merged = Reading(
        models=reading.models or facts.models,
        version=reading.version or facts.version,
        work_done=facts.work_done if reading.work_done is None else reading.work_done,
        totals=reading.totals or facts.totals,
        max_model_len_tokens=reading.max_model_len_tokens or facts.max_model_len_tokens,
        block_size_tokens=reading.block_size_tokens or facts.block_size_tokens,
        kv_blocks=reading.kv_blocks or facts.kv_blocks,
        max_num_seqs=reading.max_num_seqs or facts.max_num_seqs,
        step_tokens=reading.step_tokens or facts.step_tokens,
        loras=reading.loras if reading.models else facts.loras,
        loras_active=facts.loras_active,
        loras_running=facts.loras_running,
        max_loras=facts.max_loras if reading.max_loras is None else reading.max_loras,
        asleep=facts.asleep if reading.asleep is None else reading.asleep,
        precision=reading.precision or facts.precision,
        ranks=reading.ranks or facts.ranks,
        load=facts.load,
    )
    if not load_told:
        return merged
    return replace(merged, load=reading.load, loras_active=reading.loras_active, loras_running=reading.loras_running)


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """What belongs to one publication, beside the operator's word and the engine's."""

    engine: str  # its name
    address: str
    age_s: float  # of the load
    learned_max_num_seqs: int | None = None
    loading_progress: float | None = None
    ready_in_s: float | None = None
    start_s: float | None = None  # that its start took
    model: str = ""  # that it starts with, as far as that is known
    host: Host | None = None


def record(backend: Backend, facts: Reading, standing: Standing, moment: Moment) -> Instance:
    """Return the record to publish. The operator's word goes before the engine's, and that before what was learned."""
    return Instance(
        id=backend.name,
        incarnation=standing.incarnation,
        address=moment.address,
        cluster=backend.cluster,
        models=facts.models,
        lifecycle=standing.lifecycle,
        lifecycle_reason=standing.reason,
        engine=moment.engine,
        engine_version=facts.version,
        hardware=backend.hardware,
        tensor_parallel=backend.tensor_parallel,
        zone=backend.zone,
        capabilities=backend.capabilities,
        max_model_len_tokens=facts.max_model_len_tokens,
        block_size_tokens=facts.block_size_tokens,
        kv_blocks=facts.kv_blocks,
        max_num_seqs=backend.max_num_seqs or facts.max_num_seqs or moment.learned_max_num_seqs,
        step_tokens=backend.step_tokens or facts.step_tokens,
        load=facts.load,
        age_s=moment.age_s,
        work_done=facts.work_done,
        totals=facts.totals,
        asleep=facts.asleep,
        loading_progress=moment.loading_progress,
        ready_in_s=moment.ready_in_s,
        loadable=(moment.model,) if moment.model and not facts.models else (),
        start_s=moment.start_s,
        loras=facts.loras,
        loras_active=facts.loras_active,
        loras_running=facts.loras_running,
        max_loras=facts.max_loras,
        lora_load_s=backend.lora_load_s,
        gpus=backend.gpus,
        interconnect=backend.interconnect,
        fabric=backend.fabric,
        pipeline_parallel=backend.pipeline_parallel,
        data_parallel=backend.data_parallel or facts.ranks or 1,
        expert_parallel=backend.expert_parallel,
        nodes=backend.nodes,
        price_per_hour=backend.price_per_hour,
        precision=backend.precision or facts.precision,
        tags=backend.tags,
        network_limit_bytes_s=backend.network_limit_bytes_s,
        role=backend.role,
        kv_domain=backend.kv_domain,
        kv_bytes_per_token=backend.kv_bytes_per_token,
        kv_transfer_bytes_s=backend.kv_transfer_bytes_s,
        host=moment.host,
        kv_events=backend.kv_events is not None and not _hides_adapters(backend, facts),
    )


def _hides_adapters(backend: Backend, facts: Reading) -> bool:
    """Whether its KV events do not say by which adapter a block was computed: then they name the wrong prompts."""
    return backend.engine in ("sglang", "sglang-old") and bool(facts.loras)
