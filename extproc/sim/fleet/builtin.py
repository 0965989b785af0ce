"""The two fleets of the standard suite: sixteen equal instances, and as many of three kinds.

Prices are assumptions, rounded from public on-demand list prices of one GPU in early 2026: H100 SXM 2.5 to 4 dollars
an hour, A100 80 GB 1.5 to 2.5 (Lambda, CoreWeave, RunPod), L40S about 0.9 to 1.
The step times that `core.profile` holds are those of kernels; "real engines add about 3-10 ms a step of scheduling"
(the note of the fits). That is Python on the host, so each kind gets the same, near the lower end.
`max_num_batched_tokens` is what vLLM's server chooses by itself: 8,192 on an H100, 2,048 on an A100 and on GPUs with
less than 70 GiB (`EngineArgs` in vllm/engine/arg_utils.py).
"""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType

from extproc.sim.fleet.entries import describe
from extproc.sim.fleet.spec import FleetSpec, InstanceSpec

# The first tells whose step times they have; workloads that name no model ask for the second.
MODELS = ("llama-3.1-8b", "model")
STEP_OVERHEAD_S = 0.004
START_S = 90.0  # process, 16 GB of weights from a local disk, CUDA graphs


def uniform() -> FleetSpec:
    """Sixteen H100 with an 8B model."""
    return FleetSpec(name="uniform", instances=_group("h100", 16, "h100_sxm", 3.0, 8192))


def mixed() -> FleetSpec:
    """Six H100, six A100 and four L40S with the same 8B model."""
    return FleetSpec(
        name="mixed",
        instances=(
            *_group("h100", 6, "h100_sxm", 3.0, 8192),
            *_group("a100", 6, "a100_sxm", 2.0, 2048),
            *_group("l40s", 4, "l40s", 1.0, 2048),
        ),
    )


BUILTIN: MappingProxyType[str, Callable[[], FleetSpec]] = MappingProxyType({"uniform": uniform, "mixed": mixed})


def _group(name: str, count: int, hardware: str, price: float, batched_tokens: int) -> tuple[InstanceSpec, ...]:
    """Describe instances alike, with the KV room that the hardware leaves."""
    return tuple(
        describe(
            id=f"{name}-{number + 1}",
            models=MODELS,
            hardware=hardware,
            price_per_hour=price,
            max_num_seqs=256,
            max_num_batched_tokens=batched_tokens,
            step_overhead_s=STEP_OVERHEAD_S,
            start_s=START_S,
        )
        for number in range(count)
    )
