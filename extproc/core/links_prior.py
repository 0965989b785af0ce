"""A profile's constants for an instance whose GPUs are joined in another way than those of the profile's fit.

It changes the prior alone, under another name: what is learned of such instances corrects it and colours no other.
"""

from __future__ import annotations

from dataclasses import replace

from extproc.core.instance import Instance
from extproc.core.links import ETHERNET, NVLINK, PCIE, Link, between, inside
from extproc.core.profile import Profile
from extproc.core.shapes import Shape, shape_of

_REDUCTIONS_PER_LAYER = 2  # after attention and after the MLP (Megatron-LM, Shoeybi et al. 2019, section 3)
# Boards without NVLink: where the operator names no link, theirs is PCIe. All others are taken for what was fitted.
_PCIE_BOARDS = ("l40s", "l40", "l4", "a10", "a10g", "t4", "rtx")


def with_links(profile: Profile, model: str, instance: Instance) -> Profile:
    """The profile with what slow links add to each step and to each token.

    An all-reduce over N GPUs is a ring of 2 (N - 1) hops that moves 2 (N - 1)/N of each token's activations; one hop
    between pipeline stages moves them once. What NVLink inside of one machine takes is in the fit, so only the excess
    is added. A model of unknown shape, and links of unknown name, add nothing: they are left to learning.
    """
    shape = shape_of(model)
    if shape is None:
        return profile
    step_s, token_s = _tensor_parallel(shape, instance)
    hops_s, hop_token_s = _pipeline(shape, instance)
    step_ms, token_ms = 1e3 * (step_s + hops_s), 1e3 * (token_s + hop_token_s)
    if not step_ms and not token_ms:
        return profile
    return replace(
        profile,
        name=f"{profile.name}/{_name(instance)}",
        a_ms=profile.a_ms + step_ms,
        b_ms=profile.b_ms + token_ms,
        d_ms=profile.d_ms + step_ms,
        e_ms=profile.e_ms + token_ms,  # a decode step computes one token a sequence
    )


def _tensor_parallel(shape: Shape, instance: Instance) -> tuple[float, float]:
    """Seconds that all-reduces add to a step, and for each token in it."""
    gpus = instance.tensor_parallel
    local, wide = _local(instance), _wide(instance)
    nodes = -(-instance.nodes // instance.pipeline_parallel)  # machines of one stage
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
    nodes = f"{instance.nodes}x{instance.fabric or 'unnamed'}" if instance.nodes > 1 else ""
    return "-".join(filter(None, (stages, nodes, instance.interconnect.lower() or "default")))
