"""The operator's policy file, YAML: zones and what crossing them takes, classes and what waiting is worth to them.

    own_zone: eu-west-1a
    crossings:
      - {between: [eu-west-1a, eu-west-1b], rtt_ms: 0.8, price_per_gb: 0.02}
    unlisted: {rtt_ms: 30}
    classes:
      batch: {completion: 0.05, value_per_hour: 0.5}
    priority_step: 2

What a file leaves out stays as it is by default, field by field.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import msgspec

from extproc.adapters import yaml_files
from extproc.core.fleet.zones import UNLISTED, Crossing, Zones
from extproc.core.pricing.classes import DEFAULT_CLASSES, ClassPolicy, ClassWeights
from extproc.core.pricing.slo import Slo
from extproc.core.values.request import RequestClass
from extproc.errors import ConfigError

_MAY_BE_NOTHING = {"value_per_hour", *(each.name for each in fields(Slo))}


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorPolicy:
    """What a policy file says, in the core's own values."""

    zones: Zones = field(default_factory=Zones)
    classes: ClassPolicy = field(default_factory=ClassPolicy)


class _Way(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    rtt_ms: float
    price_per_gb: float = 0.0
    bytes_s: float | None = None


class _Crossing(_Way, frozen=True, kw_only=True, forbid_unknown_fields=True):
    between: tuple[str, str]


class _File(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    own_zone: str = ""
    crossings: tuple[_Crossing, ...] = ()
    unlisted: _Way | None = None
    classes: dict[RequestClass, dict[str, Any]] = {}
    priority_step: float | None = None
    priority_span: int | None = None


def load_policy(path: Path) -> OperatorPolicy:
    """Read a policy file. Raises ConfigError, with one line that names what is wrong."""
    file = yaml_files.load(path, _File)
    try:
        return OperatorPolicy(zones=_zones(file), classes=_classes(file))
    except ValueError as error:
        raise ConfigError(f"{path}: {error}") from error


def _zones(file: _File) -> Zones:
    crossings: dict[tuple[str, str], Crossing] = {}
    for way in file.crossings:
        here, there = way.between
        if here == there or not here or not there or {(here, there), (there, here)} & crossings.keys():
            raise ValueError(f"crossing {here} - {there}: two different zones, and each pair once")
        crossings[here, there] = _crossing(way)
    unlisted = UNLISTED if file.unlisted is None else _crossing(file.unlisted)
    return Zones(own=file.own_zone, crossings=crossings, unlisted=unlisted)


def _crossing(way: _Way) -> Crossing:
    for name in ("rtt_ms", "price_per_gb"):
        if not 0 <= getattr(way, name) < float("inf"):
            raise ValueError(f"{name} must be 0 or more, and finite")
    if way.bytes_s is not None and not 0 < way.bytes_s < float("inf"):
        raise ValueError("bytes_s must be more than 0, and finite")
    return Crossing(rtt_s=way.rtt_ms / 1000, price_per_gb=way.price_per_gb, bytes_s=way.bytes_s)


def _classes(file: _File) -> ClassPolicy:
    classes = dict(DEFAULT_CLASSES)
    for kind, changes in file.classes.items():
        classes[kind] = _weights(classes[kind], kind, changes)
    usual = ClassPolicy()
    return ClassPolicy(
        classes=classes,
        priority_step=usual.priority_step if file.priority_step is None else file.priority_step,
        priority_span=usual.priority_span if file.priority_span is None else file.priority_span,
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
