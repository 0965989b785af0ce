"""One value of each kind that leaves a process, no field at its default: what is not written would not be tested."""

from __future__ import annotations

from typing import Any

import msgspec

from extproc.core.flight.bookings import Batch, Booked, Over
from extproc.core.prefixes.kv_delta import KvDelta
from extproc.core.scaling.sight import Counts
from extproc.core.speeds.speed_records import Constants, FactorRecord, KindRecord, StepRecord
from extproc.core.values.instance import Capability, Host, Instance, Lifecycle, Load, Role, Totals
from extproc.core.values.outcome import Features

INSTANCE = Instance(
    id="gpu-0",
    incarnation="1",
    address="10.0.0.1:8000",
    cluster="pool",
    models=("llama-3.1-8b", "sql-lora"),
    lifecycle=Lifecycle.LOADING,
    lifecycle_reason="health: refused",
    engine="vllm",
    engine_version="0.32.0",
    hardware="h100_sxm",
    tensor_parallel=2,
    zone="eu-1a",
    capabilities=(Capability.TOOLS, Capability.VISION),
    max_model_len_tokens=32_768,
    block_size_tokens=16,
    kv_blocks=25_000,
    max_num_seqs=256,
    step_tokens=8192,
    load=Load(running=3, waiting=1, prefilling=2, kv_usage=0.5),
    age_s=0.25,
    work_done=12_345.0,
    totals=Totals(requests=7, prompt_tokens=7000, output_tokens=700, cached_tokens=3500),
    asleep=False,
    loading_progress=0.75,
    ready_in_s=12.5,
    loadable=("llama-3.1-70b",),
    start_s=61.5,
    loras=("sql-lora",),
    loras_active=("sql-lora",),
    loras_running=("sql-lora",),
    max_loras=4,
    lora_load_s=0.5,
    gpus=2,
    interconnect="nvlink",
    fabric="ib",
    pipeline_parallel=2,
    data_parallel=2,
    expert_parallel=2,
    nodes=2,
    price_per_hour=4.5,
    precision="fp8",
    tags={"rack": "r1"},
    network_limit_bytes_s=1e9,
    role=Role.DECODE,
    kv_domain="d1",
    kv_bytes_per_token=131_072,
    kv_transfer_bytes_s=2e10,
    host=Host(cpu_pressure=0.1, memory_pressure=0.2, io_pressure=0.3, network_bytes_s=1e6),
    kv_events=True,
)

BATCH = Batch(
    router="router-a",
    seq=7,
    open_requests=1,
    places=("gpu-0@1",),
    booked=(Booked("r-1", 0, 1500, 80_000, 4000, 100, 160, "sql-lora", "acme"),),
    over=(Over("r-0", 900),),
    part=1,
    parts=2,
    asks=("router-b",),
)

KIND = KindRecord(
    kind="llama-3.1-8b/h100_sxm/tp1",
    constants=Constants(a_ms=4.3, b_ms=0.018, c_ms=8e-7, d_ms=6.4, e_ms=0.01, f_ms=2e-5),
    deviation=0.15,
    prefill=StepRecord(
        overhead_s=0.004,
        scale=1.1,
        covariance=(1e-5, 0.01, 1e-6),
        noise=0.1,
        samples=40,
        age_s=3.0,
        watched_s=60.0,
        since_change_s=900.0,
    ),
    decode=StepRecord(
        overhead_s=0.001,
        scale=0.9,
        covariance=(1e-6, 0.02, 1e-6),
        noise=0.2,
        samples=50,
        age_s=4.0,
        watched_s=61.0,
        since_change_s=901.0,
    ),
    instances={
        "gpu-0@1": FactorRecord(
            prefill=1.05,
            decode=1.2,
            covariance=(0.01, 0.02, 0.001),
            samples=(30, 35),
            age_s=5.0,
            since_change_s=902.0,
        )
    },
)
"""`lain_s` is left out: it is never written."""

FEATURES = Features(
    request_id="r-1",
    api="chat",
    model="llama-3.1-8b",
    instance_key="gpu-0@1",
    stream=True,
    prompt_tokens=1000,
    token_counts=(700, 12, 4),
    media_tokens=1,
    cached_tokens=512,
    learned_tokens=528,
    told_tokens=512,
    recent_tokens=544,
    tenant="acme",
    choices=2,
    cap_tokens=300,
    output_tokens=120,
    output_p50_tokens=100,
    output_p90_tokens=250,
    queue_s=0.01,
    ttft_s=0.2,
    tpot_s=0.008,
    batch_requests=3,
    batch_tokens=6000.0,
    engine_waiting=1,
    loading_s=0.5,
    partner_key="gpu-1@1",
    charge="1120 1700000000000000 llama-3.1-8b",
    request_class="interactive",
    shadow_key="gpu-2@1",
    shadow_ttft_s=0.3,
    trace="00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
)

DELTA = KvDelta(16, cleared=True, gpu=(1, 2**63), cpu=(3,), disk=(4, 5), removed=(6,))

COUNTS = Counts(
    requests=10, shed=2, prompt_tokens=9000, cached_tokens=3000, answers=7, output_tokens=700, judged=6, late=1,
    slow=2, paced=5,
)  # fmt: skip


def left_at_default(value: msgspec.Struct, but: tuple[str, ...] = ()) -> list[str]:
    """Fields of a value, and of the values in it, that say nothing because they are as they would be without a word."""
    found = []
    for field in msgspec.structs.fields(value):
        told: Any = getattr(value, field.name)
        if field.name in but:
            continue
        if field.default is not msgspec.NODEFAULT and told == field.default:
            found.append(field.name)
        if isinstance(told, msgspec.Struct):
            found += [f"{field.name}.{each}" for each in left_at_default(told, but)]
    return found
