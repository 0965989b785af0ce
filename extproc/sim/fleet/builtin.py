"""Fleets by name: the two of the standard suite, and three whose instances hand prompts over to each other.

The suite's are sixteen equal instances, and as many of three kinds. The others are eight H100 of an 8B model, four of
which only compute prompts: beside four that only answer (as SGLang's in the mode `decode`), beside four that can do all
(as llm-d's and Dynamo's decode workers on vLLM), or not at all. Their fabric is 400 Gb/s of RDMA a machine.

Prices are assumptions, rounded from public on-demand list prices of one GPU in early 2026: H100 SXM 2.5 to 4 dollars
an hour, A100 80 GB 1.5 to 2.5 (Lambda, CoreWeave, RunPod), L40S about 0.9 to 1.
The step times that `core.speeds.profile` holds are those of kernels; "real engines add about 3-10 ms a step of
scheduling" (the note of the fits). That is Python on the host, so each kind gets the same, near the lower end.
`max_num_batched_tokens` is what vLLM's server chooses by itself: 8,192 on an H100, 2,048 on an A100 and on GPUs with
less than 70 GiB (`EngineArgs` in vllm/engine/arg_utils.py).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import MappingProxyType

from extproc.core.models.catalog import ModelFacts
from extproc.core.models.rules import Conditions
from extproc.core.models.virtual import Aim, ModelPolicy, Rule, VirtualModel
from extproc.core.pricing.classes import DEFAULT_CLASSES, ClassPolicy
from extproc.core.values.instance import Role
from extproc.core.values.request import RequestClass
from extproc.sim.fleet.entries import describe
from extproc.sim.fleet.spec import FleetSpec, InstanceSpec
from extproc.sim.traffic.arrival import QUALITY_HEADER

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


def disaggregated() -> FleetSpec:
    """Four H100 that compute prompts, and four that answer."""
    return _halves("disaggregated", {"prefill": (4, Role.PREFILL), "decode": (4, Role.DECODE)})


def half_disaggregated() -> FleetSpec:
    """Four H100 that compute prompts for others, and four that can do all."""
    return _halves("half_disaggregated", {"prefill": (4, Role.PREFILL), "whole": (4, Role.BOTH)})


def both_ways() -> FleetSpec:
    """Eight H100 each of which can do all, or share a request with any other."""
    return _halves("both_ways", {"whole": (8, Role.BOTH)})


def two_models() -> FleetSpec:
    """Eight H100 with an 8B model each, and four groups of four with a 70B model; `auto` stands for either.

    The prices of tokens are assumptions, rounded from public price lists of hosted open models in early 2026: 0.05 to
    0.2 dollars a million tokens for Llama 3.1 8B, 0.4 to 0.9 for 70B. An hour of an interactive client's waiting is
    taken to be worth 6, and the quality that a client asks for in vain 20 s of it.
    """
    small = tuple(replace(spec, models=("llama-3.1-8b",)) for spec in _group("small", 8, "h100_sxm", 3.0, 8192))
    big = tuple(
        describe(
            id=f"big-{number + 1}",
            models=("llama-3.1-70b",),
            hardware="h100_sxm",
            tensor_parallel=4,
            price_per_hour=12.0,
            max_num_seqs=256,
            max_num_batched_tokens=8192,
            step_overhead_s=STEP_OVERHEAD_S,
            start_s=START_S,
        )
        for number in range(4)
    )
    needy = Rule(
        name="needs quality",
        when=Conditions(headers={QUALITY_HEADER: ("2",)}),
        aim=Aim(quality=2.0, tier_s=20.0),
    )
    auto = VirtualModel(
        name="auto",
        models=("llama-3.1-8b", "llama-3.1-70b"),
        aim=Aim(quality=1.0, tier_s=20.0),
        rules=(needy,),
    )
    facts = {
        "llama-3.1-8b": ModelFacts(quality=1.0, input_price=0.1, output_price=0.2),
        "llama-3.1-70b": ModelFacts(quality=2.0, input_price=0.6, output_price=0.8),
    }
    interactive = replace(DEFAULT_CLASSES[RequestClass.INTERACTIVE], value_per_hour=6.0)
    return FleetSpec(
        name="two_models",
        instances=(*small, *big),
        models=ModelPolicy(models=facts, tiers=("basic", "good"), virtual={"auto": auto}),
        classes=ClassPolicy(classes=dict(DEFAULT_CLASSES) | {RequestClass.INTERACTIVE: interactive}),
    )


SUITE: MappingProxyType[str, Callable[[], FleetSpec]] = MappingProxyType({"uniform": uniform, "mixed": mixed})
BUILTIN: MappingProxyType[str, Callable[[], FleetSpec]] = MappingProxyType(
    {
        **SUITE,
        "disaggregated": disaggregated,
        "half_disaggregated": half_disaggregated,
        "both_ways": both_ways,
        "two_models": two_models,
    }
)


def _halves(name: str, groups: dict[str, tuple[int, Role]]) -> FleetSpec:
    made = (
        replace(spec, role=role, kv_domain="nixl", fabric="ib")
        for group, (count, role) in groups.items()
        for spec in _group(group, count, "h100_sxm", 3.0, 8192)
    )
    return FleetSpec(name=name, instances=tuple(made))


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
