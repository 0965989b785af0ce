"""Whether an instance is what a request's owner demands: the constraints of `values.placement`, cheapest first.

What is not known of an instance fulfils no demand: whoever asks for a zone would rather be refused than be computed
somewhere.
"""

from __future__ import annotations

from extproc.core.fleet.links import as_fast
from extproc.core.values.decision import Reason, Rejection
from extproc.core.values.instance import Instance
from extproc.core.values.placement import ANYWHERE, Placement, matches

_UNKNOWN = "unknown"
# Engines and their users have several names for one number format.
_FORMATS = {"bfloat16": "bf16", "float16": "fp16", "half": "fp16", "float32": "fp32", "float8": "fp8"}


def misplaced(placement: Placement, instance: Instance) -> Rejection | None:
    """First demand that an instance does not fulfil, None if there is none."""
    if placement is ANYWHERE:  # the usual case costs nothing
        return None
    if placement.endpoints is not None and instance.address not in placement.endpoints:
        return Rejection(instance.id, Reason.OUTSIDE_SUBSET, "an endpoint that the gateway allows", instance.address)
    if placement.unreadable:
        return Rejection(instance.id, Reason.PLACEMENT_UNREADABLE, placement.unreadable, _UNKNOWN)
    for asked, has, reason in (
        (placement.zones, instance.zone, Reason.ZONE_NOT_ALLOWED),
        (placement.hardware, instance.hardware, Reason.HARDWARE_NOT_ALLOWED),
        (_formats(placement.precisions), _format(instance.precision), Reason.PRECISION_NOT_ALLOWED),
    ):
        if asked and not matches(has, asked):
            return Rejection(instance.id, reason, asked, has or _UNKNOWN)
    for key, value in placement.tags:
        if instance.tags.get(key) != value:
            has = f"{key}={instance.tags[key]}" if key in instance.tags else _UNKNOWN
            return Rejection(instance.id, Reason.TAG_MISSING, f"{key}={value}", has)
    return _topology(placement, instance)


def gpus_of(instance: Instance) -> int:
    """GPUs of an instance: what its agent says, else those that its parallelism needs at the least."""
    if instance.gpus is not None:
        return instance.gpus
    return instance.tensor_parallel * instance.pipeline_parallel * instance.data_parallel


def _format(name: str) -> str:
    return _FORMATS.get(name.lower(), name)


def _formats(names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(map(_format, names))


def _topology(placement: Placement, instance: Instance) -> Rejection | None:
    reason = Reason.TOPOLOGY_NOT_ALLOWED
    if placement.max_nodes is not None and instance.nodes > placement.max_nodes:
        return Rejection(instance.id, reason, f"at most {placement.max_nodes} nodes", instance.nodes)
    gpus = gpus_of(instance)
    if placement.min_gpus is not None and gpus < placement.min_gpus:
        return Rejection(instance.id, reason, f"at least {placement.min_gpus} GPUs", gpus)
    links = placement.interconnects
    if links and gpus > 1 and not any(as_fast(instance.interconnect, asked) for asked in links):
        return Rejection(instance.id, reason, links, instance.interconnect or _UNKNOWN)
    return None
