"""Classes of requests and what waiting is worth to them, in a configuration file.

classes:
batch: {completion: 0.05, value_per_hour: 0.5}
interactive: {slo: {ttft_s: 1}}
priority_step: 2
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from extproc.core.pricing.classes import DEFAULT_CLASSES, ClassPolicy, ClassWeights
from extproc.core.pricing.slo import Slo
from extproc.core.values.request import RequestClass

_MAY_BE_NOTHING = {"value_per_hour", *(each.name for each in fields(Slo))}


def classes_of(
    changed: Mapping[RequestClass, dict[str, Any]], priority_step: float | None, priority_span: int | None
) -> ClassPolicy:
    """The default classes with the file's changes, field by field. Raises ValueError."""
    classes = dict(DEFAULT_CLASSES)
    for kind, changes in changed.items():
        classes[kind] = _weights(classes[kind], kind, changes)
    usual = ClassPolicy()
    return ClassPolicy(
        classes=classes,
        priority_step=usual.priority_step if priority_step is None else priority_step,
        priority_span=usual.priority_span if priority_span is None else priority_span,
    )


def _weights(default: ClassWeights, kind: RequestClass, changes: dict[str, Any]) -> ClassWeights:
    slo = changes.get("slo", {})
    if not isinstance(slo, dict):
        raise ValueError(f"slo of {kind.value} must be a mapping, such as {{ttft_s: 0.5}}")
    for given, known in ((changes, ClassWeights), (slo, Slo)):
        wrong = given.keys() - {each.name for each in fields(known)}
        if wrong:
            raise ValueError(f"class {kind.value} has no {', '.join(sorted(wrong))}")
    numbers = {name: value for name, value in changes.items() if name != "slo"}
    for name, value in (*numbers.items(), *slo.items()):
        nothing = value is None and name in _MAY_BE_NOTHING
        if not nothing and (isinstance(value, bool) or not isinstance(value, (int, float))):
            raise ValueError(f"{name} of {kind.value} must be a number, not {value!r}")
    return replace(default, **numbers, slo=replace(default.slo, **slo))
