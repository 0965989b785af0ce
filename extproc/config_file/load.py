"""The whole file, and what it makes of the core's values. What a file leaves out stays as it is by default."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from extproc.adapters import yaml_files
from extproc.core.admission.admission import Admission
from extproc.core.fleet.zones import Zones
from extproc.core.limits.rules import Limits
from extproc.core.models.cold import ColdPolicy
from extproc.core.models.virtual import ModelPolicy
from extproc.core.pricing.classes import ClassPolicy
from extproc.core.scaling.rules import ScalingRules
from extproc.core.values.request import RequestClass
from extproc.errors import ConfigError
from extproc.config_file.admission import AdmissionSection, admission_of
from extproc.config_file.classes import classes_of
from extproc.config_file.cold import ColdSection, cold_of
from extproc.config_file.limits import LimitsSection, limits_of
from extproc.config_file.models import ListedModel, ListedVirtual, Name, models_of
from extproc.config_file.scaling import ScalingSection, scaling_of
from extproc.config_file.zones import ListedCrossing, Way, zones_of


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorPolicy:
    """What a configuration file says, in the core's own values."""

    zones: Zones = field(default_factory=Zones)
    classes: ClassPolicy = field(default_factory=ClassPolicy)
    limits: Limits = field(default_factory=Limits)
    models: ModelPolicy = field(default_factory=ModelPolicy)
    admission: Admission | None = None  # None: nothing is held
    cold: ColdPolicy | None = None
    autoscale: ScalingRules | None = None


class File(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The sections, as they are written."""

    own_zone: str = ""
    crossings: tuple[ListedCrossing, ...] = ()
    unlisted: Way | None = None
    classes: dict[RequestClass, dict[str, Any]] = {}
    priority_step: float | None = None
    priority_span: int | None = None
    limits: LimitsSection = LimitsSection()
    quality_tiers: tuple[str, ...] = ()
    models: dict[Name, ListedModel] = {}
    virtual_models: dict[Name, ListedVirtual] = {}
    aliases: dict[Name, Name] = {}
    fallbacks: dict[Name, tuple[Name, ...]] = {}
    context_window_fallbacks: dict[Name, tuple[Name, ...]] = {}
    admission: AdmissionSection | None = None
    cold: ColdSection | None = None
    autoscale: ScalingSection | None = None


def load_policy(path: Path) -> OperatorPolicy:
    """Read a configuration file. Raises ConfigError, with one line that names what is wrong."""
    file = yaml_files.load(path, File)
    try:
        return OperatorPolicy(
            zones=zones_of(file.own_zone, file.crossings, file.unlisted),
            classes=classes_of(file.classes, file.priority_step, file.priority_span),
            limits=limits_of(file.limits),
            models=models_of(
                file.quality_tiers,
                file.models,
                file.virtual_models,
                file.aliases,
                file.fallbacks,
                file.context_window_fallbacks,
            ),
            admission=admission_of(file.admission),
            cold=cold_of(file.cold, _named(file)),
            autoscale=scaling_of(file.autoscale),
        )
    except ValueError as error:
        raise ConfigError(f"{path}: {error}") from error


def _named(file: File) -> set[str]:
    """Models that the file names, stand-ins aside."""
    listed = [*file.models, *file.aliases.values(), *file.fallbacks, *file.context_window_fallbacks]
    for chain in (*file.fallbacks.values(), *file.context_window_fallbacks.values()):
        listed += chain
    for virtual in file.virtual_models.values():
        listed += [*virtual.models, *virtual.split]
        for rule in virtual.rules:
            listed += [*rule.models, *rule.split]
    return set(listed) - file.virtual_models.keys() - file.aliases.keys()
