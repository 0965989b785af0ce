"""A profile's constants for an instance whose GPUs are joined in another way than those of the profile's fit.

Tensor and pipeline parallel GPUs compute each token together. Data-parallel ranks are engines behind one address, each
with its own batch and KV; experts that are spread over them have the ranks exchange tokens in each layer.

It changes the prior alone, under another name: what is learned of such instances corrects it and colours no other.
"""

from __future__ import annotations

from dataclasses import replace

from extproc.core.fleet.links import ETHERNET, NVLINK, PCIE, Link, between, inside
from extproc.core.speeds.profile import Profile
from extproc.core.speeds.shapes import Shape, shape_of
from extproc.core.values.instance import Instance

_REDUCTIONS_PER_LAYER = 2  # after attention and after the MLP (Megatron-LM, Shoeybi et al. 2019, section 3)
# Boards without NVLink: where the operator names no link, theirs is PCIe. All others are taken for what was fitted.
_PCIE_BOARDS = ("l40s", "l40", "l4", "a10", "a10g", "t4", "rtx")


def with_links(profile: Profile, model: str, instance: Instance) -> Profile:
    """The profile with what slow links add to each step and to each token.

    An all-reduce over N GPUs is a ring of 2 (N - 1) hops that moves 2 (N - 1)/N of each token's activations; one hop
    between pipeline stages moves them once. What NVLink inside of one machine takes is in the fit, so only the excess
    is added. A model of unknown shape, and links of unknown name, add nothing: they are left to learning.
    Of N data-parallel ranks each decodes an N-th of what the instance holds, in step with the others.
    """
    ranks = max(1, instance.data_parallel)
    shape = shape_of(model)
    step_ms = token_ms = 0.0
    if shape is not None:
        added_s = _tensor_parallel(shape, instance), _pipeline(shape, instance), _experts(shape, instance)
        step_ms, token_ms = (1e3 * sum(terms) for terms in zip(*added_s, strict=True))
    if not step_ms and not token_ms and ranks == 1:
        return profile
    return replace(
        profile,
        name=f"{profile.name}/{_name(instance)}",
        a_ms=profile.a_ms + step_ms,
        b_ms=profile.b_ms + token_ms,
        d_ms=profile.d_ms + step_ms,
        e_ms=(profile.e_ms + token_ms) / ranks,  # a decode step computes one token a sequence
        f_ms=profile.f_ms / ranks,
    )


def _tensor_parallel(shape: Shape, instance: Instance) -> tuple[float, float]:
    """Seconds that all-reduces add to a step, and for each token in it."""
    gpus = instance.tensor_parallel
    local, wide = _local(instance), _wide(instance)
    stages = instance.pipeline_parallel * max(1, instance.data_parallel)
    nodes = -(-instance.nodes // stages)  # machines of one stage of one rank
    if gpus < 2 or local is None or (nodes > 1 and wide is None):
        return 0.0, 0.0
    hops, wide_hops = 2 * (gpus - 1), 2 * nodes if nodes > 1 else 0
    slowest = local
    latency_s = (hops - wide_hops) * local.hop_s - hops * NVLINK.hop_s
    if wide_hops and wide is not None:
        latency_s += wide_hops * wide.hop_s
        slowest = min(local, wide, key=lambda link: link.bytes_s)
    per_byte_s = 1 / slowest.bytes_s - 1 / NVLINK.bytes_s
    times = _REDUCTIONS_PER_LAYER * shape.layers
    moved_bytes = 2 * (gpus - 1) / gpus * shape.activation_bytes
    return max(0.0, times * latency_s), max(0.0, times * moved_bytes * per_byte_s)


def _pipeline(shape: Shape, instance: Instance) -> tuple[float, float]:
    """Seconds that the hops between pipeline stages add to a step, and for each token in it."""
    stages = instance.pipeline_parallel
    if stages < 2:
        return 0.0, 0.0
    wide_hops = min(stages, instance.nodes) - 1
    step_s = token_s = 0.0
    for hops, link in ((wide_hops, _wide(instance)), (stages - 1 - wide_hops, _local(instance))):
        if hops and link is not None:
            step_s += hops * link.hop_s
            token_s += hops * shape.activation_bytes / link.bytes_s
    return step_s, token_s


def _experts(shape: Shape, instance: Instance) -> tuple[float, float]:
    """Seconds that experts which are spread over data-parallel ranks add to a step, and for each token of a rank.

    In each layer with experts a rank sends each of its tokens to those of its experts that are elsewhere, one byte a
    number, and gets two back (FP8 and BF16). What leaves the machine goes over the slower link. For 128 tokens of
    7,168 numbers and 8 experts that is 160 and 321 us on 8 machines of 8 GPUs; DeepEP measured 173 and 314 us
    (deepseek-ai/DeepEP, docs/legacy.md, low-latency kernels, #EP 64). Without data parallelism all GPUs of a layer
    hold all tokens, and what they exchange is the all-reduce of tensor parallelism.
    """
    ranks, spread = instance.data_parallel, instance.expert_parallel
    if ranks < 2 or spread < 2 or not shape.moe_layers:
        return 0.0, 0.0
    link, elsewhere = _local(instance), (spread - 1) / spread
    if instance.nodes > 1:
        link, elsewhere = _wide(instance), (instance.nodes - 1) / instance.nodes
    if link is None:
        return 0.0, 0.0
    moved_bytes = 3 * shape.hidden * shape.experts_per_token * elsewhere
    return 2 * shape.moe_layers * link.hop_s, shape.moe_layers * moved_bytes / link.bytes_s


def _local(instance: Instance) -> Link | None:
    if instance.interconnect:
        return inside(instance.interconnect)
    board, _, form = instance.hardware.lower().partition("_")
    return PCIE if board in _PCIE_BOARDS or form == "pcie" else NVLINK


def _wide(instance: Instance) -> Link | None:
    """Link between an instance's machines; Ethernet if none is named, the least that joins machines."""
    return between(instance.fabric) if instance.fabric else ETHERNET


def _name(instance: Instance) -> str:
    stages = f"pp{instance.pipeline_parallel}" if instance.pipeline_parallel > 1 else ""
    ranks = f"dp{instance.data_parallel}" if instance.data_parallel > 1 else ""
    experts = f"ep{instance.expert_parallel}" if ranks and instance.expert_parallel > 1 else ""
    nodes = f"{instance.nodes}x{instance.fabric or 'unnamed'}" if instance.nodes > 1 else ""
    return "-".join(filter(None, (stages, ranks, experts, nodes, instance.interconnect.lower() or "default")))
