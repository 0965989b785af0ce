"""Classes of requests and what waiting is worth to them, in a configuration file.

classes:
batch: {completion: 0.05, value_per_hour: 0.5}
interactive: {slo: {ttft_s: 1}}
priority_step: 2
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any

import msgspec

from extproc.config_file.keys import key
from extproc.core.pricing.classes import DEFAULT_CLASSES, ClassPolicy, ClassWeights
from extproc.core.values.request import RequestClass

_OfClass = "as the class has it"


class ListedSlo(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """When an answer is good; null is no limit."""

    ttft_s: Annotated[float | msgspec.UnsetType | None, key("until the first token", "s", usual=_OfClass)] = (
        msgspec.UNSET
    )
    tpot_s: Annotated[float | msgspec.UnsetType | None, key("mean time between two tokens", "s", usual=_OfClass)] = (
        msgspec.UNSET
    )
    completion_s: Annotated[float | msgspec.UnsetType | None, key("until the last token", "s", usual=_OfClass)] = (
        msgspec.UNSET
    )
    completion_times_unloaded: Annotated[
        float | msgspec.UnsetType | None,
        key("times of what it takes alone; with completion_s the sum", "times", usual=_OfClass),
    ] = msgspec.UNSET


class ListedClass(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What waiting is worth to requests of a class; what is left out stays as the class has it."""

    ttft: Annotated[
        float | msgspec.UnsetType, key("a second until its first token", "standard seconds", usual=_OfClass)
    ] = msgspec.UNSET
    completion: Annotated[
        float | msgspec.UnsetType, key("a second from there to the last token", "standard seconds", usual=_OfClass)
    ] = msgspec.UNSET
    pressure: Annotated[
        float | msgspec.UnsetType,
        key("a second that running out of KV blocks is expected to repeat", "standard seconds", usual=_OfClass),
    ] = msgspec.UNSET
    harm: Annotated[
        float | msgspec.UnsetType, key("a second that it adds to others", "standard seconds", usual=_OfClass)
    ] = msgspec.UNSET
    miss: Annotated[
        float | msgspec.UnsetType,
        key("so much more count seconds of an answer that comes slower than slo.tpot_s", "share", usual=_OfClass),
    ] = msgspec.UNSET
    value_per_hour: Annotated[
        float | msgspec.UnsetType | None,
        key(
            "what an hour of its waiting is worth, in your currency, 0.000001 at the least; null: money counts nothing",
            "per hour",
            usual=_OfClass,
        ),
    ] = msgspec.UNSET
    queue_share: Annotated[
        float | msgspec.UnsetType,
        key("of the limits on running and queued requests that it may fill", "share", usual=_OfClass),
    ] = msgspec.UNSET
    slo: Annotated[ListedSlo, key("when its answers are good")] = ListedSlo()


def classes_of(
    changed: Mapping[RequestClass, ListedClass], priority_step: float | None, priority_span: int | None
) -> ClassPolicy:
    """The default classes with the file's changes, field by field. Raises ValueError."""
    classes = dict(DEFAULT_CLASSES)
    for kind, changes in changed.items():
        classes[kind] = _weights(classes[kind], changes)
    usual = ClassPolicy()
    return ClassPolicy(
        classes=classes,
        priority_step=usual.priority_step if priority_step is None else priority_step,
        priority_span=usual.priority_span if priority_span is None else priority_span,
    )


def _weights(default: ClassWeights, changes: ListedClass) -> ClassWeights:
    numbers = _given(changes)
    del numbers["slo"]
    return replace(default, **numbers, slo=replace(default.slo, **_given(changes.slo)))


def _given(changes: msgspec.Struct) -> dict[str, Any]:
    return {name: value for name, value in msgspec.structs.asdict(changes).items() if value is not msgspec.UNSET}
