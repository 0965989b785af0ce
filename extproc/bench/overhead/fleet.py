"""The instances of a measurement: what is published of them, and how that changes."""

from __future__ import annotations

import random

import msgspec

from extproc.core.values.instance import Instance, Lifecycle, Load

MODEL = "llama-3.1-8b"
POOL = "pool"
_MAX_RUNNING = 48


def address(number: int) -> str:
    """Loopback address of an instance: all of 127.0.0.0/8 is answered by one upstream."""
    return f"127.1.{number // 250}.{number % 250 + 1}"


def instance(number: int, port: int) -> Instance:
    """One of them; every second has the slower GPU, and every second pair tells its KV events."""
    return Instance(
        id=f"gpu-{number}",
        incarnation="1764412345.67",
        address=f"{address(number)}:{port}",
        cluster=POOL,
        models=(MODEL,),
        lifecycle=Lifecycle.READY,
        engine="vllm",
        engine_version="0.32.0",
        hardware="h100_sxm" if number % 2 else "l40s",
        max_model_len_tokens=1_000_000,
        block_size_tokens=16,
        kv_blocks=30_000,
        max_num_seqs=256,
        load=Load(running=number % _MAX_RUNNING, waiting=0, kv_usage=0.1),
        kv_events=number % 4 >= 2,
    )


def moved(before: Instance, chance: random.Random) -> Instance:
    """The same a moment later: some requests have ended, some have begun."""
    running = max(0, min(_MAX_RUNNING, (before.load.running or 0) + chance.randint(-4, 4)))
    load = Load(running=running, waiting=max(0, running - 40), kv_usage=round(0.05 + running / 60, 3))
    done = (before.work_done or 0.0) + 500.0
    return msgspec.structs.replace(before, load=load, work_done=done, age_s=round(chance.random() * 0.01, 3))
